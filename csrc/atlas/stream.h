// Streams: ordered queues of a device.
//
// A stream is an id and a priority; what is enqueued on it waits in its channel (atlas/channels.h).
// Ids are per device and never reused. Even ids have normal priority (0), odd ids high priority
// (-1); of each kind the first 32 after the default stream form the shared pool. Streams that the
// device's vendor has made (Channels::of_vendor) have the ids from kFirstOfVendor on.
#pragma once

#include <atomic>
#include <cstdint>

namespace hologram {

using StreamId = int64_t;
inline constexpr StreamId kDefaultStream = 0;
inline constexpr StreamId kFirstOfVendor = StreamId{1} << 48;

class StreamTable {
 public:
  // A new stream. Any negative priority is high; as in CUDA the value is clamped to the range [-1,
  // 0].
  StreamId create(int priority) noexcept;

  // Round robin over 32 shared streams of each priority.
  StreamId from_pool(bool high_priority) noexcept;

  bool valid(
      StreamId stream) const noexcept;  // has been handed out, or is the default or a pool stream
  static int priority(StreamId stream) noexcept { return (stream & 1) != 0 ? -1 : 0; }

 private:
  static constexpr int64_t kPoolSize = 32;

  // Index 0: normal, 1: high priority. Stream number n of a kind has the id 2 * n + kind; number 0
  // of the normal kind is the default stream, so its pool is 1..32 and that of the high kind 0..31.
  std::atomic<uint64_t> next_pooled_[2] = {0, 0};
  std::atomic<int64_t> next_created_[2] = {kPoolSize + 1, kPoolSize};
};

// Throws InvalidDevice, or Error when the device has no such stream.
void check_stream(int device, StreamId stream);

// The current stream of each thread, where somebody else has one, too: there is one truth then,
// which is his.
class CurrentStream {
 public:
  virtual ~CurrentStream() = default;
  // Throws Error.
  virtual StreamId get() = 0;
  virtual void set(StreamId stream) = 0;
};
// Of a device, from now on. Leaked by the caller.
void follow_current_stream(int device, CurrentStream* its) noexcept;

// The calling thread's current stream of a device; the default stream until exchanged.
// An index outside 0..kMaxDevices-1 reads as the default stream. Throws what CurrentStream does.
StreamId current_stream(int device);

// Makes `stream` current for the calling thread and returns the one before.
// Throws what check_stream() throws.
StreamId exchange_current_stream(int device, StreamId stream);

}  // namespace hologram
