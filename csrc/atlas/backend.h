// What a kind of hardware provides to the core: memory segments, code for plans, queues that run
// it, and facts about the device.
//
// The core depends on this interface only. A backend folder (csrc/cpu, ...) implements it, or a
// library outside the package (atlas/backend_library.h).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atlas/queue.h"

namespace hologram {

struct DeviceProperties {
  std::string name;         // marketing name of the processor
  std::string backend;      // "cpu"
  size_t total_memory = 0;  // bytes this device may use
  int multi_processor_count = 0;
  std::string isa;                // "avx512", "avx2", "baseline" or "neon"
  size_t l2_cache_size = 0;       // bytes per core, 0 when unknown
  bool computes_on_host = false;  // on the threads that flush, and on torch's
  bool host_addressable = false;  // its memory is the host's: both may read and write it
  bool asynchronous = false;      // what a queue is given may be finished after the return
  // The type of torch's device whose kernels run on this memory in the order of a queue
  // (Queue::lend), and which of them it is: "cuda", 0. Empty where torch's CPU kernels are all
  // there is. A torch that lacks the device or its kernels uses copies on the host.
  std::string vendor;
  int vendor_ordinal = 0;
  // A queue is one of the vendor's streams (Queue::vendor_stream), and each of these can be one
  // (Backend::make_queue_on).
  bool queues_are_streams = false;
  int major = 0, minor = 0;  // capability; (0, 0) where the hardware has no such number
};

// Every segment starts at a multiple of this, so that a pointer finds its segment by its high bits.
inline constexpr size_t kSegmentAlignment = size_t{1} << 20;

class Backend : public PlanCompiler {
 public:
  virtual const DeviceProperties& properties() const noexcept = 0;

  // `bytes` bytes aligned to kSegmentAlignment (to 2 MiB from 2 MiB on), or nullptr when the system
  // has no more. The contents are unspecified. Thread-safe.
  virtual void* allocate_segment(size_t bytes) noexcept = 0;

  // Gives back a segment with the size it was asked with. Thread-safe.
  virtual void free_segment(void* data, size_t bytes) noexcept = 0;

  // These bytes of a segment are about to be used for the first time. A system that finds memory
  // for a page when it is touched can be asked for all pages at once. Thread-safe.
  virtual void populate(void*, size_t) noexcept {}

  // Host memory of so many bytes that copies can use without waiting, aligned to 64 bytes; nullptr
  // where there is no more. Any will do where queues copy on the host. Thread-safe.
  virtual void* allocate_host(size_t bytes) noexcept {
    return std::aligned_alloc(64, (bytes + 63) & ~size_t{63});
  }
  // Gives it back with the size it was asked with. Thread-safe.
  virtual void free_host(void* data, size_t) noexcept { std::free(data); }

  // A queue that is idle. The backend outlives it. A device that is asynchronous has one for each
  // stream in use, any other only one. Below 0, the priority says that its work is more urgent
  // than that of queues with 0, as far as the device tells them apart.
  virtual std::unique_ptr<Queue> make_queue(int priority) = 0;

  // A queue that is a stream which somebody else has made with the vendor's library, and which is
  // there for as long as anything of the queue's is to be waited for. Null where queues are no
  // streams.
  virtual std::unique_ptr<Queue> make_queue_on(void* /*vendors*/) { return nullptr; }

  // For the backend's queues.
  virtual std::shared_ptr<Moment> make_moment() = 0;

  // The library of Queue::product; may look for it. Thread-safe.
  virtual ProductLibrary products() { return {}; }

  // Bytes the system could hand out now without pushing other processes out. Moves constantly.
  virtual size_t available_memory() const noexcept = 0;

  // Why the device cannot be used any more by this process; empty where it can.
  virtual std::string failure() const noexcept { return {}; }

  // What it counts of its own since the process began, for stream_stats(): "kernels.compiled".
  virtual std::vector<std::pair<std::string, uint64_t>> counters() const { return {}; }

  // Has the pools give back what lies idle, for memory that is no segment. The device sets it; it
  // waits for what is enqueued, so no lock of a queue is held.
  std::function<void()> give_back_idle = [] {};
};

}  // namespace hologram
