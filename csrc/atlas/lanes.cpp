#include "atlas/lanes.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace hologram {

Lanes::Lanes(Backend& backend, PlanCache& plans, Scratch& scratch)
    : several_(backend.properties().asynchronous),
      backend_(backend),
      plans_(plans),
      scratch_(scratch),
      first_(backend, plans, scratch, several_ ? &lock_ : nullptr,
             StreamTable::priority(kDefaultStream)) {}

Lanes::~Lanes() {
  for (Lane* lane = last_made_.load(); lane != nullptr;) delete std::exchange(lane, lane->next);
}

Lane& Lanes::make(StreamId stream) {
  const std::lock_guard guard(making_);
  std::atomic<Lane*>& place = others_[place_of(stream)];
  if (Lane* const made = place.load(std::memory_order_relaxed)) return *made;
  auto lane =
      std::make_unique<Lane>(backend_, plans_, scratch_, &lock_, StreamTable::priority(stream));
  if (capturing_) lane->window.start_capture();
  lane->next = last_made_.load(std::memory_order_relaxed);
  last_made_.store(lane.get(), std::memory_order_release);
  place.store(lane.get(), std::memory_order_release);
  return *lane.release();
}

template <class F>
void Lanes::each(F&& call) {
  call(first_);
  Lane* lane = last_made_.load(std::memory_order_acquire);
  for (; lane != nullptr; lane = lane->next) call(*lane);
}

template <class F>
void Lanes::each_to_the_end(F&& call) {
  std::exception_ptr raised;
  each([&](Lane& lane) {
    try {
      call(lane);
    } catch (...) {
      if (!raised) raised = std::current_exception();
    }
  });
  if (raised) std::rethrow_exception(raised);
}

// Waits also where the flush raises something.
template <class F>
void Lanes::flush_and_wait(FlushReason reason, F&& wait) {
  std::exception_ptr raised;
  try {
    flush(reason);
  } catch (...) {
    raised = std::current_exception();
  }
  try {
    each_to_the_end(wait);
  } catch (...) {
    if (!raised) throw;
  }
  if (raised) std::rethrow_exception(raised);
}

static void wait_for_all_of(Lane& lane) {
  lane.queue->wait(lane.queue->last());
}

void Lanes::synchronize(StreamId stream) {
  if (Lane* const lane = if_used(stream)) {
    lane->window.flush(FlushReason::synchronize);
    wait_for_all_of(*lane);
  }
}

void Lanes::synchronize() {
  flush_and_wait(FlushReason::synchronize, wait_for_all_of);
}

bool Lanes::idle(StreamId stream) {
  Lane* const lane = if_used(stream);
  if (lane == nullptr) return true;
  if (several_) lane->window.flush(FlushReason::synchronize);
  return lane->queue->done(lane->queue->last());
}

bool Lanes::idle() {
  if (several_) flush(FlushReason::synchronize);
  bool idle = true;
  each([&](Lane& lane) { idle = idle && lane.queue->done(lane.queue->last()); });
  return idle;
}

void Lanes::flush(FlushReason reason) {
  each_to_the_end([&](Lane& lane) { lane.window.flush(reason); });
}

void Lanes::finish(FlushReason reason) {
  flush_and_wait(reason, [](Lane& lane) { lane.window.submitted().wait(); });
}

bool Lanes::empty() const noexcept {
  const Lane* lane = last_made_.load(std::memory_order_acquire);
  while (lane != nullptr && lane->window.empty()) lane = lane->next;
  return lane == nullptr && first_.window.empty();
}

void Lanes::drop_plans() {
  each([](Lane& lane) { lane.window.drop_plan(); });
}

WindowStats Lanes::stats() const {
  WindowStats sum = first_.window.stats();
  const Lane* lane = last_made_.load(std::memory_order_acquire);
  for (; lane != nullptr; lane = lane->next) sum += lane->window.stats();
  return sum;
}

void Lanes::reset_stats() {
  each([](Lane& lane) { lane.window.reset_stats(); });
}

void Lanes::start_capture() {
  {
    const std::lock_guard guard(making_);
    capturing_ = true;
  }
  each([](Lane& lane) { lane.window.start_capture(); });
}

std::vector<Flushed> Lanes::end_capture() {
  {
    const std::lock_guard guard(making_);
    capturing_ = false;
  }
  std::vector<Flushed> all;
  each([&](Lane& lane) {
    std::vector<Flushed> flushed = lane.window.end_capture();
    std::ranges::move(flushed, std::back_inserter(all));
  });
  std::ranges::sort(all, {}, &Flushed::number);
  return all;
}

void Lanes::lock_for_fork() noexcept {
  try {
    finish(FlushReason::exit);
  } catch (...) {
    // What could not run raises where it is read.
  }
  making_.lock();
  each([](Lane& lane) { lane.window.lock_for_fork(); });
  if (several_) lock_.lock();
}

void Lanes::unlock_after_fork() noexcept {
  if (several_) lock_.unlock();
  each([](Lane& lane) { lane.window.unlock_after_fork(); });
  making_.unlock();
}

}  // namespace hologram
