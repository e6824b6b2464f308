// Memory of a device that torch's own allocator holds as well: each gives back what lies idle when
// the other has no more.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <optional>

#include "atlas/backend.h"

namespace hologram::aten {

// Has torch's allocator of the hardware's vendor give back what it does not use. False where there
// is none, or nobody has used it.
bool empty_vendor_cache(const DeviceProperties& properties) noexcept;

// Has torch's allocators ask ours, as far as they can be told. Once.
void offer_idle_memory();

// While one of these lives, torch's allocators ask ours in vain in its thread: who holds a queue
// cannot wait for it.
class KeepIdleMemory {
 public:
  KeepIdleMemory() noexcept;
  ~KeepIdleMemory();
  KeepIdleMemory(const KeepIdleMemory&) = delete;
  KeepIdleMemory& operator=(const KeepIdleMemory&) = delete;

 private:
  bool before_;
};

// What torch's allocator holds of the same device; none where there is none or nobody has used it.
std::optional<c10::CachingDeviceAllocator::DeviceStats> vendor_stats(
    const DeviceProperties& properties);

}  // namespace hologram::aten
