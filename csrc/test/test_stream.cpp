#include "atlas/stream.h"

#include <algorithm>
#include <set>
#include <thread>
#include <vector>

#include "atlas/device.h"
#include "check.h"

using namespace hologram;

TEST(stream_default_is_valid) {
  StreamTable table;
  CHECK(table.valid(kDefaultStream));
  CHECK_EQ(table.priority(kDefaultStream), 0);
  CHECK(!table.valid(-1));
  CHECK(!table.valid(-2));
}

TEST(stream_create_never_repeats) {
  StreamTable table;
  std::set<StreamId> seen{kDefaultStream};
  for (int i = 0; i < 32; ++i) {
    seen.insert(table.from_pool(false));
    seen.insert(table.from_pool(true));
  }
  CHECK_EQ(seen.size(), 65u);
  for (const int priority : {0, -1, 3, -7, 0, -1}) {
    const StreamId stream = table.create(priority);
    CHECK(seen.insert(stream).second);
    CHECK(table.valid(stream));
    CHECK_EQ(table.priority(stream), priority < 0 ? -1 : 0);
    CHECK(!table.valid(stream + 2));  // the next of its priority has not been made
  }
}

TEST(stream_pool_is_round_robin) {
  StreamTable table;
  for (const bool high : {false, true}) {
    std::vector<StreamId> first, second;
    for (int i = 0; i < 32; ++i) first.push_back(table.from_pool(high));
    for (int i = 0; i < 32; ++i) second.push_back(table.from_pool(high));
    CHECK(first == second);
    CHECK_EQ((std::set<StreamId>(first.begin(), first.end()).size()), 32u);
    for (const StreamId stream : first) {
      CHECK(stream != kDefaultStream);
      CHECK(table.valid(stream));
      CHECK_EQ(table.priority(stream), high ? -1 : 0);
    }
  }
}

TEST(stream_current_is_per_thread) {
  CHECK_EQ(current_stream(0), kDefaultStream);
  const StreamId stream = device(0).streams().create(0);
  CHECK_EQ(exchange_current_stream(0, stream), kDefaultStream);
  CHECK_EQ(current_stream(0), stream);
  StreamId elsewhere = -1;
  std::thread([&] { elsewhere = current_stream(0); }).join();
  CHECK_EQ(elsewhere, kDefaultStream);
  CHECK_EQ(exchange_current_stream(0, kDefaultStream), stream);
}

TEST(stream_current_rejects_what_does_not_exist) {
  CHECK_THROWS(exchange_current_stream(0, 123456), Error,
               "hologram:0 has no stream with id 123456");
  CHECK_THROWS(exchange_current_stream(0, -5), Error, "no stream with id -5");
  CHECK_THROWS(exchange_current_stream(9, kDefaultStream), InvalidDevice,
               "index 9 is out of range");
  CHECK_EQ(current_stream(0), kDefaultStream);
  CHECK_EQ(current_stream(-1), kDefaultStream);
  CHECK_EQ(current_stream(kMaxDevices), kDefaultStream);
}

TEST(stream_threads_create_distinct_ids) {
  StreamTable table;
  std::vector<std::vector<StreamId>> made(4);
  std::vector<std::thread> threads;
  for (auto& mine : made) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) mine.push_back(table.create(-(i & 1)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<StreamId> all;
  for (const auto& mine : made) all.insert(mine.begin(), mine.end());
  CHECK_EQ(all.size(), 4000u);
  CHECK(std::all_of(all.begin(), all.end(), [&](StreamId stream) { return table.valid(stream); }));
}
