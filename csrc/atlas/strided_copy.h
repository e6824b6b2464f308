// A copy of elements between strided memory of one device, as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hologram {

// Read while it is enqueued. No two elements of `to` share memory, nor does one with
// `from`; a stride of `from` may be 0.
struct StridedCopy {
  void* to;  // the first element
  const void* from;
  size_t element_bytes;            // 1, 2, 4, 8 or 16; of 16, an address may be a multiple of 8
  std::span<const int64_t> sizes;  // none is 0
  std::span<const int64_t> to_strides, from_strides;  // in elements
  bool is_watched;                                    // by a profiler

  size_t bytes() const noexcept {
    size_t all = element_bytes;
    for (const int64_t size : sizes) all *= static_cast<size_t>(size);
    return all;
  }
};

}  // namespace hologram
