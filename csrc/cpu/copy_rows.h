// Copies of many short runs of elements.
#pragma once

#include <cstdint>

namespace hologram::cpu {

// `rows` runs of `count` floats, or of what has their size; the first ones at `to` and `from`, each
// next one so many floats further on. Runs are apart.
void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t rows,
               int64_t count) noexcept;

}  // namespace hologram::cpu
