// Page-locked host memory as torch names it. Copies between it and a device need not wait, and it
// is not used again before they are done.
//
// What users ask for is torch's own for the hardware of the current device, where torch has that:
// so memory pinned by either is pinned for both. Else it is the package's, from a backend.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

namespace hologram::aten {

// For users.
at::HostAllocator& pinned_allocator();
// The package's, for itself.
at::HostAllocator& own_pinned_allocator();
bool is_pinned_pointer(const void* pointer);
// Whether it is the package's.
bool is_own_pinned_pointer(const void* pointer);
// Pinned memory that a copy which has been enqueued on the current stream of a device uses is not
// used again before that is done.
void keep_until_done(c10::StorageImpl* pinned, c10::DeviceIndex device);

}  // namespace hologram::aten
