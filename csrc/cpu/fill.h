// Filling memory with one element.
#pragma once

#include <cstddef>

namespace hologram::cpu {

// dst[i] = *element for i < n. `element_size` is 1, 2, 4, 8 or 16 bytes; `dst` is aligned to the
// smaller of it and 8. Bits are copied, so every dtype of that size is served.
void fill(void* dst, const void* element, size_t element_size, size_t n) noexcept;

}  // namespace hologram::cpu
