// What the device does, for torch.profiler's ProfilerActivity.PrivateUse1: the passes of recorded
// programs, and torch's kernels over device memory.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace hologram::aten {

// Whether a profiler collects device activities now, and whether one ever has.
inline std::atomic<bool> activities_on{false}, activities_known{false};

// From begin to end the device is busy for an owner, on this thread. Activities nest; the outer one
// stands still meanwhile. One without a name has that of the innermost operator.
void begin_activity(const void* owner, c10::DeviceIndex device, std::string name);
void end_activity(const void* owner) noexcept;  // does nothing if it did not begin

inline void begin_activity_of(const void* owner, c10::DeviceIndex device) {
  if (C10_UNLIKELY(activities_on.load(std::memory_order_relaxed))) {
    begin_activity(owner, device, {});
  }
}
inline void end_activity_of(const void* owner) noexcept {
  if (C10_UNLIKELY(activities_known.load(std::memory_order_relaxed))) end_activity(owner);
}

// Tells torch's profiler where device activities come from. From torch 2.12 on; before, there is
// nothing to tell.
void register_activities();

}  // namespace hologram::aten
