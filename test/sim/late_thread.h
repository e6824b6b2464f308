// A thread that does what it is given in order, some time later.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

namespace sim {

class LateThread {
 public:
  using Task = std::function<void()>;  // throws nothing

  // Waits before each task, up to so many microseconds, at random.
  LateThread(uint64_t seed, int most_delay);
  ~LateThread();  // does what is left first
  LateThread(const LateThread&) = delete;
  LateThread& operator=(const LateThread&) = delete;

  // Returns the number of the task, from 1.
  uint64_t push(Task task);
  uint64_t last();  // the number of the last one
  // Whether a task, and what it held, is gone.
  bool done(uint64_t number) const noexcept {
    return finished_.load(std::memory_order_acquire) >= number;
  }
  void wait(uint64_t number);

 private:
  void work();

  const int most_delay_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // guarded by mutex_
  uint64_t last_ = 0;       // likewise
  bool ending_ = false;     // likewise
  std::atomic<uint64_t> finished_{0};
  std::minstd_rand random_;  // the thread's
  std::thread thread_;       // last: it uses all of the above
};

}  // namespace sim
