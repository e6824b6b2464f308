// A queue of the simulated device: a thread that runs what it is given some time later.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "atlas/queue.h"
#include "late_thread.h"
#include "order.h"

namespace sim {

using hologram::Ticket;

class Moment final : public hologram::Moment {
 public:
  void take() { time_ = Clock::now(); }
  // Throws Error where one of them was never taken.
  double milliseconds_since(const hologram::Moment& other) const override;

 private:
  using Clock = std::chrono::steady_clock;
  // Written before the ticket is done, read afterwards.
  std::optional<Clock::time_point> time_;
};

struct QueueOptions {
  std::string device;  // for errors
  bool own_memory;     // the device's addresses are not the host's (memory.h)
  bool on_copies;      // torch's CPU kernels run on copies
  uint64_t seed;       // of the delays
  int most_delay;      // microseconds before each task, at random
  // Of each which ones fail, counted from 1.
  std::set<int> failing_launches;   // of passes: cannot be enqueued
  std::set<int> failing_runs;       // of passes: fail while they run
  std::set<int> failing_transfers;  // of copies and fills
  std::set<int> lost_records;       // of events: their moment does not come
};

class Queue final : public hologram::Queue {
 public:
  inline static std::atomic<uint64_t> waits{0};      // calls of wait() on all queues
  inline static std::atomic<void*> stream{nullptr};  // of the last lend() or take_back()

  explicit Queue(QueueOptions options);

  Ticket submit(const std::shared_ptr<const hologram::Compiled>& compiled,
                hologram::Frame& frame) override;
  Ticket copy(void* to, const void* from, size_t bytes, hologram::Direction direction) override;
  Ticket fill(void* to, const void* element, size_t element_bytes, size_t count) override;
  std::optional<Ticket> copy_strided(const hologram::StridedCopy& copy) override;
  Ticket record(std::shared_ptr<hologram::Moment> moment) override;
  void wait_for(const hologram::Fence& fence) override;
  void lend(void* vendors) override;
  Ticket take_back(void* vendors) override;
  Ticket last() noexcept override;
  bool done(Ticket ticket) noexcept override;
  void wait(Ticket ticket) override;

 private:
  using Task = std::function<void()>;  // may throw
  Ticket push(Task task, Order::Text what = {}, const std::vector<Range>& ranges = {});
  void call(hologram::Frame::Pass& pass, Order::Text what);
  void run(const hologram::Compiled& compiled, size_t pass,
           std::span<const hologram::Binding> bindings);
  void transfer(const char* what, size_t bytes, const Task& task);
  void* bytes_of(const void* address) const;

  const QueueOptions options_;
  std::mutex mutex_;   // tasks are pushed in the order of their tickets
  std::string error_;  // guarded by mutex_: the first one that nobody has been told of
  std::atomic<int> passes_submitted_{0};
  int passes_ = 0, transfers_ = 0, records_ = 0;  // the thread's
  LateThread thread_;                             // last: it uses all of the above
};

}  // namespace sim
