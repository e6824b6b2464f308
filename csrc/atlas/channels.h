// Channels: for each stream of an asynchronous device a queue, and a window of what is recorded for
// it.
//
// A channel is made when its stream is first used. On a synchronous device all streams share the
// first one: what is recorded runs in program order, which is every stream's order too.
//
// Streams are never forgotten, so that there may be any number of them: the first kPerPriority of a
// priority have channels of their own, which those that come later share in turn. That orders more
// than was asked for, and nothing otherwise.
//
// Where queues are streams of the device's vendor (Queue::vendor_stream), a stream that somebody
// else has made with the vendor's library is one of the device's: it gets an id and a channel when
// it is first used.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "atlas/backend.h"
#include "atlas/plan_cache.h"
#include "atlas/queue.h"
#include "atlas/scratch.h"
#include "atlas/spin_lock.h"
#include "atlas/stream.h"
#include "atlas/window.h"

namespace hologram {

struct Channel {
  Channel(std::unique_ptr<Queue> its, PlanCache& plans, Scratch& scratch, Checks& checks,
          SpinLock* shared)
      : queue(std::move(its)), window(plans, *queue, scratch, shared) {
    queue->checks = &checks;
  }

  const std::unique_ptr<Queue> queue;
  Window window;
  Channel* next = nullptr;  // of those that have been made after the first one
};

// What is done to all channels is done to those that there are; one that fails does not keep it
// from the others, and the first failure is raised in the end.
class Channels {
 public:
  // All outlive it, except at the end of the process.
  Channels(Backend& backend, PlanCache& plans, Scratch& scratch);
  ~Channels();
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  // Whether streams have channels of their own.
  bool several() const noexcept { return several_; }
  Channel& first() noexcept { return first_; }

  // The channel of a stream, which is made if need be. Throws what Backend::make_queue does.
  Channel& of(StreamId stream) {
    if (!several_ || stream == kDefaultStream) return first_;
    Channel* const channel = others_[place_of(stream)].load(std::memory_order_acquire);
    return channel != nullptr ? *channel : make(stream);
  }
  // Null where nothing has been enqueued on the stream.
  Channel* if_used(StreamId stream) noexcept {
    if (!several_ || stream == kDefaultStream) return &first_;
    return others_[place_of(stream)].load(std::memory_order_acquire);
  }

  // The stream whose queue is a stream of the vendor's, which is made if need be. Throws Error
  // where there would be too many, and what Backend::make_queue_on does.
  StreamId of_vendor(void* vendors);
  // Whether it has made this one.
  bool is_of_vendor(StreamId stream) const noexcept {
    return stream >= kFirstOfVendor && (stream & 1) == 0 &&
           stream < kFirstOfVendor + 2 * of_vendor_.load(std::memory_order_acquire);
  }

  // Returns when all work queued on a stream, or on any, is done.
  void synchronize(StreamId stream);
  void synchronize();

  // Whether all work queued on a stream, or on any, is done; never waits for it. On an asynchronous
  // device what is recorded is submitted first, so that asking again gets an answer in the end.
  bool idle(StreamId stream);
  bool idle();

  // Submits what is recorded for any stream.
  void flush(FlushReason reason);
  // The same, and returns when it has been executed.
  void finish(FlushReason reason);

  bool empty() const noexcept;                      // nothing is recorded
  void fence() noexcept { first_.window.fence(); }  // see Window::fence()
  void drop_plans();

  WindowStats stats() const;
  void reset_stats();

  // Of the windows, in the order of the flushes.
  void start_capture();
  std::vector<Flushed> end_capture();

  // Used by the fork guard only.
  void lock_for_fork() noexcept;
  void unlock_after_fork() noexcept;

 private:
  static constexpr size_t kPerPriority = 32;
  static constexpr size_t kMostOfVendor = 512;
  static size_t place_of(StreamId stream) noexcept {
    if (stream >= kFirstOfVendor) {
      return 2 * kPerPriority + static_cast<size_t>(stream - kFirstOfVendor) / 2;
    }
    // Number 0 of the normal priority is the default stream (atlas/stream.h).
    const auto number = static_cast<size_t>(stream >> 1);
    return (stream & 1) != 0 ? kPerPriority + number % kPerPriority : (number - 1) % kPerPriority;
  }
  Channel& make(StreamId stream);
  Channel& add(size_t place, std::unique_ptr<Queue> queue);
  template <class F>
  void each(F&& call);
  template <class F>
  void each_to_the_end(F&& call);
  template <class F>
  void flush_and_wait(FlushReason reason, F&& wait);

  const bool several_;
  Backend& backend_;
  PlanCache& plans_;
  Scratch& scratch_;
  Checks checks_;
  SpinLock lock_;  // of the windows, where there are several
  Channel first_;  // the default stream's, or all streams'
  std::array<std::atomic<Channel*>, 2 * kPerPriority + kMostOfVendor> others_{};
  std::atomic<StreamId> of_vendor_{0};  // how many of the vendor's streams have channels
  std::atomic<Channel*> last_made_{nullptr};
  std::mutex making_;       // held while a channel is being made
  bool capturing_ = false;  // guarded by making_
};

}  // namespace hologram
