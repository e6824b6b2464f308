// A queue of the simulated device: a thread that runs what it is given some time later.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "atlas/queue.h"

namespace sim {

using hologram::Ticket;

class Moment final : public hologram::Moment {
 public:
  void take() { time_ = Clock::now(); }
  double milliseconds_since(const hologram::Moment& other) const override;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point time_;  // written before the ticket is done, read afterwards
};

class Queue final : public hologram::Queue {
 public:
  // Before each task it sleeps for a random time of up to so many microseconds.
  Queue(uint64_t seed, int most_microseconds);
  ~Queue() override;

  Ticket submit(const std::shared_ptr<const hologram::Compiled>& compiled,
                hologram::Frame& frame) override;
  Ticket record(std::shared_ptr<hologram::Moment> moment) override;
  void wait_for(const hologram::Fence& fence) override;
  Ticket last() noexcept override;
  bool done(Ticket ticket) noexcept override;
  void wait(Ticket ticket) override;

 private:
  using Task = std::function<void()>;
  Ticket push(Task task);
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // guarded by mutex_
  Ticket last_ = 0;         // likewise
  bool ending_ = false;     // likewise
  std::string error_;       // likewise: of a task, until somebody waits
  std::atomic<Ticket> finished_{0};
  std::minstd_rand random_;  // the thread's
  int most_microseconds_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sim
