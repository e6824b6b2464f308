// Page-locked host memory as torch names it. On the CPU backend any host memory is as good, so
// pinned memory is ordinary memory whose addresses are remembered: is_pinned() tells the truth.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>

namespace hologram::aten {

c10::Allocator* pinned_allocator();
at::HostAllocator& pinned_host_allocator();
bool is_pinned_pointer(const void* pointer);

}  // namespace hologram::aten
