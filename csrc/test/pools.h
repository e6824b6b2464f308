// A memory pool for tests: its memory can be made to fail, its queues come as far as they are told.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "atlas/backend.h"
#include "atlas/error.h"
#include "atlas/memory.h"
#include "check.h"

namespace hologram::test {

inline constexpr size_t kKiB = 1024, kMiB = kKiB * 1024;

// Host memory that can be made to fail and that counts what it handed out.
class FakeBackend final : public Backend {
 public:
  FakeBackend() {
    properties_.backend = "fake";
    properties_.total_memory = 1000 * kMiB;
    properties_.host_addressable = true;
  }
  ~FakeBackend() override { CHECK_EQ(held.load(), 0u); }

  std::unique_ptr<PlanCode> compile(const Plan&) override { std::abort(); }
  std::unique_ptr<Queue> make_queue(int) override { std::abort(); }
  std::shared_ptr<Moment> make_moment() override { std::abort(); }

  const DeviceProperties& properties() const noexcept override { return properties_; }
  void* allocate_segment(size_t bytes) noexcept override {
    if (refuse || (refuse_odd && (++requests & 1) != 0)) return nullptr;
    const size_t rounded = (bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
    held += bytes;
    return std::aligned_alloc(kSegmentAlignment, rounded);
  }
  void free_segment(void* data, size_t bytes) noexcept override {
    held -= bytes;
    std::free(data);
  }
  void populate(void* data, size_t bytes) noexcept override {
    const std::lock_guard guard(populating);
    populated.emplace_back(data, bytes);
  }
  size_t available_memory() const noexcept override { return available; }
  std::string failure() const noexcept override { return why; }
  // Before there is a pool of it.
  void set_host_addressable(bool its) noexcept { properties_.host_addressable = its; }

  bool refuse = false;
  std::string why;          // it cannot be used any more
  bool refuse_odd = false;  // every second request
  size_t available = std::numeric_limits<size_t>::max();
  std::atomic<size_t> held{0};
  std::atomic<int> requests{0};
  std::mutex populating;
  std::vector<std::pair<void*, size_t>> populated;

 private:
  DeviceProperties properties_;
};

// Comes as far as it is told to, or is waited for.
class FakeQueue : public Queue {
 public:
  Ticket submit(const std::shared_ptr<const Compiled>&, Frame&) override { std::abort(); }
  Ticket copy(void*, const void*, size_t, Direction) override { std::abort(); }
  Ticket fill(void*, const void*, size_t, size_t) override { std::abort(); }
  Ticket record(std::shared_ptr<Moment>) override { std::abort(); }
  void wait_for(const Fence&) override { std::abort(); }
  Ticket last() noexcept override { return reached; }
  bool done(Ticket ticket) noexcept override { return ticket <= reached; }
  void wait(Ticket ticket) override {
    reached = std::max(reached, ticket);
    ++waits;
    if (fails) throw Error("what was submitted failed");
  }
  Ticket reached = 0;
  int waits = 0;
  bool fails = false;
};

struct Fixture {
  explicit Fixture(size_t limit = 1000 * kMiB) : pool(backend, limit) {}
  FakeBackend backend;
  MemoryPool pool;
};

inline bool same(const Counter& counter, int64_t current, int64_t peak, int64_t allocated,
                 int64_t freed) {
  return counter.current == current && counter.peak == peak && counter.allocated == allocated &&
         counter.freed == freed;
}

}  // namespace hologram::test
