#include "atlas/channels.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include "atlas/error.h"

namespace hologram {

Channels::Channels(Backend& backend, PlanCache& plans, Scratch& scratch)
    : several_(backend.properties().asynchronous),
      backend_(backend),
      plans_(plans),
      scratch_(scratch),
      checks_(backend),
      first_(backend.make_queue(StreamTable::priority(kDefaultStream)), plans, scratch, checks_,
             several_ ? &lock_ : nullptr) {}

Channels::~Channels() {
  for (Channel* channel = last_made_.load(); channel != nullptr;)
    delete std::exchange(channel, channel->next);
}

Channel& Channels::make(StreamId stream) {
  const std::lock_guard guard(making_);
  const size_t place = place_of(stream);
  if (Channel* const made = others_[place].load(std::memory_order_relaxed)) return *made;
  return add(place, backend_.make_queue(StreamTable::priority(stream)));
}

// Under making_.
Channel& Channels::add(size_t place, std::unique_ptr<Queue> queue) {
  auto channel = std::make_unique<Channel>(std::move(queue), plans_, scratch_, checks_, &lock_);
  if (capturing_) channel->window.start_capture();
  channel->next = last_made_.load(std::memory_order_relaxed);
  last_made_.store(channel.get(), std::memory_order_release);
  others_[place].store(channel.get(), std::memory_order_release);
  return *channel.release();
}

StreamId Channels::of_vendor(void* vendors) {
  if (vendors == first_.queue->vendor_stream()) return kDefaultStream;
  const std::lock_guard guard(making_);
  const auto has = [&](size_t place) {
    const Channel* const channel = others_[place].load(std::memory_order_relaxed);
    return channel != nullptr && channel->queue->vendor_stream() == vendors;
  };
  // The first of the streams that share a channel, see place_of().
  for (size_t i = 0; i < kPerPriority; ++i) {
    const auto number = static_cast<StreamId>(i);
    if (has(i)) return 2 * (number + 1);
    if (has(kPerPriority + i)) return 2 * number + 1;
  }
  const StreamId count = of_vendor_.load(std::memory_order_relaxed);
  for (StreamId i = 0; i < count; ++i) {
    if (has(2 * kPerPriority + static_cast<size_t>(i))) return kFirstOfVendor + 2 * i;
  }
  if (count == static_cast<StreamId>(kMostOfVendor)) {
    throw Error("more than " + std::to_string(kMostOfVendor) +
                " streams that the device's vendor has made cannot be used");
  }
  std::unique_ptr<Queue> queue = backend_.make_queue_on(vendors);
  if (queue == nullptr) throw Error("a queue of this device is no stream of its vendor's");
  add(2 * kPerPriority + static_cast<size_t>(count), std::move(queue));
  of_vendor_.store(count + 1, std::memory_order_release);
  return kFirstOfVendor + 2 * count;
}

template <class F>
void Channels::each(F&& call) {
  call(first_);
  Channel* channel = last_made_.load(std::memory_order_acquire);
  for (; channel != nullptr; channel = channel->next) call(*channel);
}

template <class F>
void Channels::each_to_the_end(F&& call) {
  std::exception_ptr raised;
  each([&](Channel& channel) {
    try {
      call(channel);
    } catch (...) {
      if (!raised) raised = std::current_exception();
    }
  });
  if (raised) std::rethrow_exception(raised);
}

// Waits also where the flush raises something.
template <class F>
void Channels::flush_and_wait(FlushReason reason, F&& wait) {
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

static void wait_for_all_of(Channel& channel) {
  channel.queue->wait(channel.queue->last());
  channel.queue->checks->raise();
}

void Channels::synchronize(StreamId stream) {
  if (Channel* const channel = if_used(stream)) {
    channel->window.flush(FlushReason::synchronize);
    wait_for_all_of(*channel);
  }
}

void Channels::synchronize() {
  flush_and_wait(FlushReason::synchronize, wait_for_all_of);
}

bool Channels::idle(StreamId stream) {
  Channel* const channel = if_used(stream);
  if (channel == nullptr) return true;
  if (several_) channel->window.flush(FlushReason::synchronize);
  return channel->queue->done(channel->queue->last());
}

bool Channels::idle() {
  if (several_) flush(FlushReason::synchronize);
  bool idle = true;
  each([&](Channel& channel) { idle = idle && channel.queue->done(channel.queue->last()); });
  return idle;
}

void Channels::flush(FlushReason reason) {
  each_to_the_end([&](Channel& channel) { channel.window.flush(reason); });
}

void Channels::finish(FlushReason reason) {
  flush_and_wait(reason, [](Channel& channel) { channel.window.submitted().finish(); });
}

bool Channels::empty() const noexcept {
  const Channel* channel = last_made_.load(std::memory_order_acquire);
  while (channel != nullptr && channel->window.empty()) channel = channel->next;
  return channel == nullptr && first_.window.empty();
}

void Channels::drop_plans() {
  each([](Channel& channel) { channel.window.drop_plan(); });
}

WindowStats Channels::stats() const {
  WindowStats sum = first_.window.stats();
  const Channel* channel = last_made_.load(std::memory_order_acquire);
  for (; channel != nullptr; channel = channel->next) sum += channel->window.stats();
  return sum;
}

void Channels::reset_stats() {
  each([](Channel& channel) { channel.window.reset_stats(); });
}

void Channels::start_capture() {
  {
    const std::lock_guard guard(making_);
    capturing_ = true;
  }
  each([](Channel& channel) { channel.window.start_capture(); });
}

std::vector<Flushed> Channels::end_capture() {
  {
    const std::lock_guard guard(making_);
    capturing_ = false;
  }
  std::vector<Flushed> all;
  each([&](Channel& channel) {
    std::vector<Flushed> flushed = channel.window.end_capture();
    std::ranges::move(flushed, std::back_inserter(all));
  });
  std::ranges::sort(all, {}, &Flushed::number);
  return all;
}

void Channels::lock_for_fork() noexcept {
  try {
    finish(FlushReason::exit);
  } catch (...) {
    // What could not run raises where it is read.
  }
  making_.lock();
  each([](Channel& channel) { channel.window.lock_for_fork(); });
  if (several_) lock_.lock();
}

void Channels::unlock_after_fork() noexcept {
  if (several_) lock_.unlock();
  each([](Channel& channel) { channel.window.unlock_after_fork(); });
  making_.unlock();
}

}  // namespace hologram
