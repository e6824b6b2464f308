#include "queue.h"

#include <utility>
#include <vector>

#include "atlas/error.h"
#include "atlas/float_mode.h"
#include "atlas/own_bindings.h"
#include "cpu/code.h"

namespace sim {

using namespace hologram;

double Moment::milliseconds_since(const hologram::Moment& other) const {
  const auto passed = time_ - static_cast<const Moment&>(other).time_;
  return std::chrono::duration<double, std::milli>(passed).count();
}

Queue::Queue(uint64_t seed, int most_microseconds)
    : random_(static_cast<std::minstd_rand::result_type>(seed)),
      most_microseconds_(most_microseconds),
      thread_([this] { work(); }) {}

Queue::~Queue() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Ticket Queue::push(Task task) {
  const std::lock_guard guard(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return ++last_;
}

Ticket Queue::submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) {
  const auto& code = static_cast<const cpu::Code&>(*compiled->code);
  std::vector<OwnBindings> passes;
  for (size_t i = 0; i < code.groups.size(); ++i) {
    Frame::Pass pass(frame, i);
    passes.emplace_back(compiled->plan.batches[i].group, pass.bindings());
  }
  // std::function copies what it holds.
  auto kept = std::make_shared<std::vector<OwnBindings>>(std::move(passes));
  return push([compiled, kept, mode = frame.program().float_mode] {
    const FloatModeGuard guard(mode);
    const auto& its = static_cast<const cpu::Code&>(*compiled->code);
    for (size_t i = 0; i < kept->size(); ++i) cpu::run(*its.groups[i], (*kept)[i].bindings());
  });
}

Ticket Queue::record(std::shared_ptr<hologram::Moment> moment) {
  return push([moment = std::move(moment)] {
    if (moment != nullptr) static_cast<Moment&>(*moment).take();
  });
}

void Queue::wait_for(const Fence& fence) {
  push([fence] { fence.wait(); });
}

Ticket Queue::last() noexcept {
  const std::lock_guard guard(mutex_);
  return last_;
}

bool Queue::done(Ticket ticket) noexcept {
  return finished_.load(std::memory_order_acquire) >= ticket;
}

void Queue::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done(ticket); });
  if (!error_.empty()) throw Error(std::exchange(error_, {}));
}

void Queue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (most_microseconds_ > 0) {
      std::uniform_int_distribution<int> delay(0, most_microseconds_);
      std::this_thread::sleep_for(std::chrono::microseconds(delay(random_)));
    }
    std::string error;
    try {
      task();
    } catch (const std::exception& raised) {
      error = raised.what();
    }
    task = nullptr;
    lock.lock();
    if (error_.empty()) error_ = error;
    finished_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }
}

}  // namespace sim
