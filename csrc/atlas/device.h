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
#include "atlas/error.h"
#include "atlas/memory.h"
#include "atlas/plan_cache.h"
#include "atlas/queue.h"
#include "atlas/stream.h"
#include "atlas/window.h"

namespace hologram {

inline constexpr int kMaxDevices = 128;

// One device. Made at its first use and leaked on purpose: a tensor freed by a static destructor
// must still find its pool.
class Device {
 public:
  int index() const noexcept { return index_; }
  const DeviceProperties& properties() const noexcept { return backend_->properties(); }
  MemoryPool& memory() noexcept { return memory_; }
  // Of all streams: what is recorded runs in program order, which is every stream's order too.
  Window& window() noexcept { return window_; }
  PlanCache& plans() noexcept { return plans_; }
  Backend& backend() noexcept { return *backend_; }
  Queue& queue() noexcept { return *queue_; }
  StreamTable& streams() noexcept { return streams_; }

  // Returns when all work queued on any stream of the device is done.
  void synchronize();

  // Whether all work queued on any stream is done; never waits for it. On an asynchronous device
  // what is recorded is submitted first, so that asking again gets an answer in the end.
  bool idle();

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
  std::unique_ptr<Queue> queue_;
  PlanCache plans_;
  Window window_;
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

// The device whose memory `pointer` lies in, nullptr if none.
Device* device_owning(const void* pointer) noexcept;

// The calling thread's current device, 0 until set. The setters throw what device() throws.
int current_device() noexcept;
void set_current_device(int index);
int exchange_current_device(int index);  // returns the index before

// Used by the fork guard only: takes and releases the locks of every device in order.
void lock_devices_for_fork() noexcept;
void unlock_devices_after_fork() noexcept;

}  // namespace hologram
