#include "cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "atlas/backend.h"

namespace hologram::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

size_t page_size() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

void* map_memory(size_t bytes) noexcept {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kSegmentAlignment;
  const size_t wanted = round_up(bytes, page_size());
  // mmap aligns to pages only: map more and give back both ends.
  const size_t mapped = wanted + alignment - page_size();
  if (bytes == 0 || mapped < bytes) return nullptr;
  void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(address);
  const uintptr_t place = reinterpret_cast<uintptr_t>(start);
  char* const data = start + (round_up(place, alignment) - place);
  const size_t before = static_cast<size_t>(data - start);
  const size_t after = mapped - before - wanted;
  if (before != 0) munmap(start, before);
  if (after != 0) munmap(data + wanted, after);
#if defined(MADV_HUGEPAGE)
  if (bytes >= kHugePage) madvise(data, wanted, MADV_HUGEPAGE);
#endif
  return data;
}

void populate_memory(void* data, size_t bytes) noexcept {
#if defined(MADV_POPULATE_WRITE)  // Linux 5.14; what it cannot do is done at the first touch
  const uintptr_t place = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = place / page_size() * page_size();
  const size_t populated = round_up(place + bytes - begin, page_size());
  if (bytes < kHugePage && populated > page_size()) {
    madvise(reinterpret_cast<void*>(begin), populated, MADV_POPULATE_WRITE);
  }
#else
  static_cast<void>(data), static_cast<void>(bytes);
#endif
}

void unmap_memory(void* data, size_t bytes) noexcept {
  if (data != nullptr) munmap(data, round_up(bytes, page_size()));
}

}  // namespace hologram::cpu
