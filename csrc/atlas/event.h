// Events: marks in a stream's order, with the time they were reached.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "atlas/queue.h"
#include "atlas/stream.h"

namespace hologram {

// Errors are worded as torch.cuda's. An event may be used from several threads.
class Event {
 public:
  // Throws InvalidDevice.
  Event(int device, bool enable_timing);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  uint64_t id() const noexcept { return id_; }  // unique in the process, never 0
  int device() const noexcept { return device_; }
  bool enable_timing() const noexcept { return enable_timing_; }

  // Marks the present end of `stream`; recording again moves the mark.
  // Throws Error when `device` is not the event's or has no such stream.
  void record(int device, StreamId stream);

  bool recorded() const noexcept { return epoch() != 0; }
  uint64_t epoch() const noexcept {
    return epoch_.load(std::memory_order_acquire);
  }  // 0: never recorded

  // Whether the work before the mark is done; true for an event never recorded, as in CUDA.
  bool query() const noexcept;
  // Raises what Queue::wait does.
  void synchronize() const;

  // Work queued on `stream` from now on runs after the mark. The stream may be another device's.
  // Throws what check_stream() throws.
  void wait(int device, StreamId stream) const;

  // Milliseconds from this mark to `end`'s; negative when `end` came first.
  // Throws Error when one of them was made without timing, was never recorded or has not been
  // reached.
  double elapsed_ms(const Event& end) const;

 private:
  struct Mark {
    Fence fence;
    std::shared_ptr<Moment> moment;  // null without timing
  };
  Mark mark() const;

  const uint64_t id_;
  const int device_;
  const bool enable_timing_;
  mutable std::mutex lock_;  // guards the mark
  Mark mark_;
  std::atomic<uint64_t> epoch_{0};
};

// Next value of the process-wide event order: 1, 2, 3, ...
uint64_t next_epoch() noexcept;

}  // namespace hologram
