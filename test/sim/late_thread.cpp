#include "late_thread.h"

#include <chrono>
#include <utility>

namespace sim {

LateThread::LateThread(uint64_t seed, int most_delay)
    : most_delay_(most_delay),
      random_(static_cast<std::minstd_rand::result_type>(seed)),
      thread_([this] { work(); }) {}

LateThread::~LateThread() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

uint64_t LateThread::push(Task task) {
  const std::lock_guard guard(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return ++last_;
}

uint64_t LateThread::last() {
  const std::lock_guard guard(mutex_);
  return last_;
}

void LateThread::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done(number); });
}

void LateThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (most_delay_ > 0) {
      std::uniform_int_distribution<int> delay(0, most_delay_);
      std::this_thread::sleep_for(std::chrono::microseconds(delay(random_)));
    }
    task();
    task = nullptr;
    lock.lock();
    finished_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }
}

}  // namespace sim
