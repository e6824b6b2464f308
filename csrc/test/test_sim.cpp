// The simulated device (test/sim) under the sanitizers: its queues are threads.
#include "atlas/backend_library.h"

#include <bit>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "atlas/device.h"
#include "atlas/op_table.h"
#include "check.h"
#include "operands.h"

using namespace hologram;
using namespace hologram::test;

namespace {

// Number 0 of a process; leaked, as devices are.
Device& simulated() {
  static Device* const device = [] {
    ::setenv("HOLOGRAM_TEST_SIM_DELAY", "20", 0);
    std::unique_ptr<Backend> backend(hologram_backend()->make(0));
    const size_t limit = backend->properties().total_memory;
    return new Device(0, std::move(backend), limit);
  }();
  return *device;
}

struct SimBlock final : BlockState {
  SimBlock(Device& of, int64_t count) : device(of) {
    const Allocation taken = device.memory().allocate(static_cast<size_t>(count) * 4);
    data = static_cast<char*>(taken.data);
    bytes = static_cast<size_t>(count) * 4;
    last_use.store(taken.fence);
    born = device.channels().first().window.open_program();
  }
  void give_back_memory() noexcept override {
    device.memory().deallocate({data, 0, last_use.load()});
  }
  void retire_memory() noexcept override { device.memory().retire(data); }
  Device& device;
};

void record(Code code, int arity, int64_t count, SimBlock* out, View a, View b = {}) {
  out->device.channels().first().window.record(
      {code, DType::f32, static_cast<uint8_t>(arity), count, {}, dense(out), {a, b, {}}});
}

std::vector<float> read(SimBlock* block) {
  std::vector<float> values(block->bytes / 4);
  Window::submit(*block);
  Queue& queue = *block->device.channels().first().queue;
  queue.wait(queue.copy(values.data(), block->data, block->bytes, Direction::to_host));
  return values;
}

// What each thread does is its own; memory goes from thread to thread, and back while it is used.
void work(int thread) {
  Device& device = simulated();
  std::minstd_rand random(static_cast<unsigned>(thread) + 1);
  for (int step = 0; step < 100; ++step) {
    const int64_t count = 1 + static_cast<int64_t>(random() % 5000);
    const auto start = static_cast<float>(thread * 1000 + step);
    auto* a = new SimBlock(device, count);
    record(kCopy, 1, count, a, number(start));
    auto* b = new SimBlock(device, count);
    record(static_cast<Code>(Op::mul), 2, count, b, dense(a), number(2));
    if (random() % 2 == 0) device.channels().first().window.flush(FlushReason::user);
    drop(a);
    auto* c = new SimBlock(device, count);
    record(static_cast<Code>(Op::add), 2, count, c, dense(b), number(1));
    if (random() % 3 == 0) {
      for (const float value : read(c)) CHECK_EQ(value, start * 2 + 1);
    }
    drop(b);
    drop(c);
  }
}

}  // namespace

TEST(sim_threads_share_a_device) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (auto& thread : threads) thread.join();
  simulated().channels().synchronize();
  CHECK_EQ(simulated().memory().stats().allocation.current, 0);
}

TEST(sim_threads_flush_and_trim) {
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) {
      simulated().memory().trim();
      simulated().channels().idle();
    }
  });
  work(7);
  done = true;
  other.join();
}

TEST(sim_copies_and_fills) {
  Device& device = simulated();
  auto* block = new SimBlock(device, 1000);
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Queue& queue = (*device.channels().first().queue);
  queue.copy(block->data, values.data(), 4000, Direction::to_device);
  const float seven = 7;
  queue.fill(block->data + 40, &seven, 4, 10);
  queue.copy(block->data + 2000, block->data + 40, 400, Direction::on_device);
  const auto result = read(block);
  CHECK_EQ(result[9], 9.0f);
  CHECK_EQ(result[10], 7.0f);
  CHECK_EQ(result[20], 20.0f);
  CHECK_EQ(result[500], 7.0f);
  CHECK_EQ(result[510], 20.0f);
  CHECK_EQ(result[599], 109.0f);
  CHECK_EQ(result[600], 600.0f);
  drop(block);
}
