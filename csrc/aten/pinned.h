// Page-locked host memory as torch names it, from the backend of the current device. Copies between
// it and a device need not wait, and it is not used again before they are done.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>

namespace hologram::aten {

c10::Allocator* pinned_allocator();
at::HostAllocator& pinned_host_allocator();
bool is_pinned_pointer(const void* pointer);

}  // namespace hologram::aten
