// Who wants to know of every allocation and free: torch's profiler with profile_memory=True, and
// the history behind torch.hologram.memory._record_memory_history.
//
// A free is reported when the owner is done with the memory. The window may hold it until the
// program that touches it has run; statistics count in the same way.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "aten/runtime.h"

// The headers of pybind11 take seconds, and who allocates memory needs none of it.
namespace pybind11 {
class dict;
class list;
}  // namespace pybind11

namespace hologram::aten {

// Whether a history is recorded.
inline std::atomic<bool> memory_history_on{false};

// Whether anybody listens on this thread. A few nanoseconds.
inline bool memory_traced() {
  return C10_UNLIKELY(memory_history_on.load(std::memory_order_relaxed)) ||
         C10_UNLIKELY(c10::memoryProfilingEnabled());
}

// Of a block of the device's pools. Only after memory_traced().
void trace_allocation(c10::DeviceIndex device, const void* data);
void trace_free(c10::DeviceIndex device, const void* data);  // before it is given back
void trace_out_of_memory(c10::DeviceIndex device, size_t nbytes);

// What is kept: "state" (the frames of the blocks that live), "all" (events, too), none (nothing,
// and no longer). `context` says which of them get frames: none, "state", "alloc", "all"; `cpp`
// whether these include C++ frames. Throws ValueError for other words.
void record_memory_history(const std::optional<std::string>& enabled,
                           const std::optional<std::string>& context, bool cpp, size_t most_events,
                           bool clear);

// The events of a device as torch.cuda.memory._snapshot() has them in "device_traces".
pybind11::list memory_history(c10::DeviceIndex device);

// Adds "frames" to dictionaries of blocks with "address".
void add_frames(const std::vector<pybind11::dict>& blocks);

}  // namespace hologram::aten
