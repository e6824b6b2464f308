#include "atlas/event.h"

#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "atlas/device.h"
#include "check.h"

using namespace hologram;

TEST(event_measures_time_between_marks) {
  Event start(0, true), end(0, true);
  start.record(0, kDefaultStream);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  end.record(0, device(0).streams().from_pool(false));
  const double elapsed = start.elapsed_ms(end);
  CHECK(elapsed >= 20.0);
  CHECK(elapsed < 20'000.0);  // milliseconds, not micro- or nanoseconds
  CHECK_EQ(end.elapsed_ms(start), -elapsed);
  start.record(0, kDefaultStream);  // the mark moves
  CHECK(start.elapsed_ms(end) <= 0.0);
}

TEST(event_query_and_wait) {
  Event event(0, false);
  CHECK(!event.recorded());
  CHECK(event.query());
  event.wait(0, kDefaultStream);
  event.record(0, kDefaultStream);
  CHECK(event.recorded());
  CHECK(event.query());
  event.synchronize();
  CHECK_THROWS(event.wait(0, 98765), Error, "hologram:0 has no stream with id 98765");
  CHECK_THROWS(event.wait(5, kDefaultStream), InvalidDevice, "index 5 is out of range");
}

TEST(event_epochs_order_the_process) {
  Event first(0, false), second(0, true);
  CHECK(first.id() != second.id());
  CHECK_EQ(first.epoch(), 0u);
  second.record(0, kDefaultStream);
  first.record(0, kDefaultStream);
  CHECK(second.epoch() < first.epoch());
  const uint64_t before = first.epoch();
  first.record(0, kDefaultStream);
  CHECK(first.epoch() > before);
}

TEST(event_errors_name_the_cause) {
  Event timed(0, true), other(0, true), untimed(0, false);
  CHECK_THROWS(timed.elapsed_ms(other), Error, "Both events must be recorded");
  timed.record(0, kDefaultStream);
  CHECK_THROWS(timed.elapsed_ms(other), Error, "Both events must be recorded");
  CHECK_THROWS(other.elapsed_ms(timed), Error, "Both events must be recorded");
  untimed.record(0, kDefaultStream);
  CHECK_THROWS(timed.elapsed_ms(untimed), Error, "enable_timing=True");
  CHECK_THROWS(untimed.elapsed_ms(timed), Error, "enable_timing=True");
  CHECK_THROWS(timed.record(1, kDefaultStream), Error,
               "Event device 0 does not match recording stream's device 1");
  CHECK_THROWS(timed.record(0, 4321), Error, "no stream with id 4321");
  CHECK_THROWS(Event(3, true), InvalidDevice, "index 3 is out of range");
}

TEST(event_threads_share_one) {
  Event event(0, true);
  std::vector<std::thread> threads;
  std::vector<std::vector<uint64_t>> seen(4);
  for (auto& mine : seen) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        event.record(0, kDefaultStream);
        mine.push_back(next_epoch());
        CHECK(event.query());
        CHECK(event.epoch() != 0);
        CHECK_EQ(event.elapsed_ms(event) < 1e6, true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (const auto& mine : seen) all.insert(mine.begin(), mine.end());
  CHECK_EQ(all.size(), 2000u);
}
