// Memory from the operating system.
#pragma once

#include <cstddef>

namespace hologram::cpu {

// Zeroed private pages, aligned to 1 MiB; from 2 MiB on aligned to 2 MiB and advised to use huge
// pages, which makes first touch about ten times cheaper. nullptr when the system refuses.
void* map_memory(size_t bytes) noexcept;

// Has the system find memory for all pages with these bytes, in place of one fault for each when it
// is touched; does nothing for a single page, and where huge pages are faults few enough.
void populate_memory(void* data, size_t bytes) noexcept;

// `bytes` as given to map_memory.
void unmap_memory(void* data, size_t bytes) noexcept;

}  // namespace hologram::cpu
