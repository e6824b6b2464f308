// The devices of this process: hologram:0 .. n-1.
//
// Environment, read once: HOLOGRAM_BACKENDS (comma-separated backend names in priority order,
// default "cpu"; empty for no device), HOLOGRAM_BACKEND_PATH (folders with libraries of backends
// that the package does not have, see atlas/backends.h), HOLOGRAM_CPU_DEVICES (1..64, default 1: as
// how many devices the CPU appears), HOLOGRAM_MEMORY_LIMIT (bytes per device, suffix K, M, G or T,
// default: the device's total memory). With a wrong value there is no device: the count is 0, and
// the use of a device raises what is wrong.
#pragma once

#include "atlas/backend.h"
#include "atlas/channels.h"
#include "atlas/error.h"
#include "atlas/memory.h"
#include "atlas/plan_cache.h"
#include "atlas/random.h"
#include "atlas/stream.h"

namespace hologram {

inline constexpr int kMaxDevices = 128;

// One device. Made at its first use and leaked on purpose: a tensor freed by a static destructor
// must still find its pool.
class Device {
 public:
  int index() const noexcept { return index_; }
  const DeviceProperties& properties() const noexcept { return backend_->properties(); }
  MemoryPool& memory() noexcept { return memory_; }
  PlanCache& plans() noexcept { return plans_; }
  Backend& backend() noexcept { return *backend_; }
  Channels& channels() noexcept { return channels_; }
  StreamTable& streams() noexcept { return streams_; }

  // Of a stream of the device. Throws what making a queue does.
  Window& window(StreamId stream) { return channels_.of(stream).window; }
  Queue& queue(StreamId stream) { return *channels_.of(stream).queue; }
  bool has_stream(StreamId stream) const noexcept {
    return streams_.valid(stream) || channels_.is_of_vendor(stream);
  }

  // Returns when all work queued on any stream is done.
  void synchronize() { channels_.synchronize(); }

  // Gives back the memory of all plans.
  void drop_plans();

  Device(int index, std::unique_ptr<Backend> backend, size_t memory_limit);
  ~Device() = delete;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

 private:
  int index_;
  std::unique_ptr<Backend> backend_;
  MemoryPool memory_;
  PlanCache plans_;
  Channels channels_;
  StreamTable streams_;
};

// Number of devices; 0 where HOLOGRAM_BACKENDS is empty or a variable of the environment is wrong.
int device_count() noexcept;

// Throws Error with the reason if there is no device, not even number 0.
void check_any_device();

// Throws InvalidDevice for an index outside 0..device_count()-1, and what check_any_device()
// throws.
Device& device(int index);

// Throws what device() throws, without making the device.
void check_device_index(int index);

// The device if it has been used already, else nullptr.
Device* device_if_used(int index) noexcept;

// Called with each device when it has been made, perhaps by several threads at once. Set once,
// before any is used.
void set_device_made(void (*hook)(Device& device)) noexcept;

// What the default generator of a device draws from. Throws what device() throws, without making
// the device: programs seed all devices and use one.
RandomSource& default_random_source(int index);

// The device whose memory `pointer` lies in, nullptr if none.
Device* device_owning(const void* pointer) noexcept;

// The calling thread's current device, 0 until set. The setters throw what device() throws.
int current_device() noexcept;
void set_current_device(int index);
int exchange_current_device(int index);  // returns the index before

// Of the calling thread's current stream of a device: what it records belongs there. Throws what
// device() and current_stream() throw.
inline Channel& current_channel(int index) {
  Channels& channels = device(index).channels();
  return channels.several() ? channels.of(current_stream(index)) : channels.first();
}
inline Window& current_window(int index) {
  return current_channel(index).window;
}
// Likewise, of the channels of a device; null where it has one queue for all streams.
inline Queue* current_queue(Channels& channels, int index) {
  return channels.several() ? channels.of(current_stream(index)).queue.get() : nullptr;
}
// Used by the fork guard only: takes and releases the locks of every device in order.
void lock_devices_for_fork() noexcept;
void unlock_devices_after_fork() noexcept;

}  // namespace hologram
