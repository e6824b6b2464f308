// The queue of the CPU: the calling thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>

#include "atlas/queue.h"
#include "cpu/parallel.h"

namespace hologram::cpu {

// Where the threads of groups come from, the calling thread alone until set. The embedder sets it
// once, to something that lives as long as the process.
void set_parallel(Parallel& parallel) noexcept;
Parallel& parallel() noexcept;

class Moment final : public hologram::Moment {
 public:
  void take() noexcept { time_.store(Clock::now(), std::memory_order_relaxed); }
  double milliseconds_since(const hologram::Moment& other) const override;

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::time_point> time_{};
};

// What is submitted is finished on return.
class Queue final : public hologram::Queue {
 public:
  Ticket submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) override;
  Ticket copy(void* to, const void* from, size_t bytes, Direction direction) override;
  Ticket fill(void* to, const void* element, size_t element_bytes, size_t count) override;
  Ticket record(std::shared_ptr<hologram::Moment> moment) override;
  void wait_for(const Fence& fence) override { fence.wait(); }
  Ticket last() noexcept override { return last_.load(std::memory_order_relaxed); }
  bool done(Ticket) noexcept override { return true; }
  bool known_done(Ticket) noexcept override { return true; }
  void wait(Ticket) override {}

 private:
  Ticket next() noexcept { return last_.fetch_add(1, std::memory_order_relaxed) + 1; }
  std::atomic<Ticket> last_{0};
};

}  // namespace hologram::cpu
