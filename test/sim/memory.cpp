#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace sim {
namespace {

constexpr size_t kAlignment = size_t{2} << 20;

size_t rounded(size_t bytes) noexcept {
  return (bytes + kAlignment - 1) & ~(kAlignment - 1);
}

}  // namespace

Memory& Memory::instance() {
  static auto* memory = new Memory();
  return *memory;
}

Memory::Memory() {
  void* const range = ::mmap(nullptr, 2 * kDistance + kAlignment, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return;
  start_ = rounded(reinterpret_cast<uintptr_t>(range));
  free_.emplace(start_, kDistance);
}

void* Memory::allocate(size_t bytes) noexcept {
  const size_t wanted = rounded(bytes);
  const std::lock_guard guard(mutex_);
  const auto found = std::ranges::find_if(free_, [&](auto& part) { return part.second >= wanted; });
  if (found == free_.end()) return nullptr;
  const auto [start, size] = *found;
  auto* const data = reinterpret_cast<void*>(start);
  if (::mprotect(bytes_of(data), wanted, PROT_READ | PROT_WRITE) != 0) return nullptr;
  free_.erase(found);
  if (size > wanted) free_.emplace(start + wanted, size - wanted);
  return data;
}

void Memory::free(void* data, size_t bytes) noexcept {
  const size_t size = rounded(bytes);
  // New pages: what was there is gone, and whoever goes there faults.
  ::mmap(bytes_of(data), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
  const std::lock_guard guard(mutex_);
  auto part = free_.emplace(reinterpret_cast<uintptr_t>(data), size).first;
  if (const auto next = std::next(part);
      next != free_.end() && part->first + part->second == next->first) {
    part->second += next->second;
    free_.erase(next);
  }
  if (part == free_.begin()) return;
  if (const auto before = std::prev(part); before->first + before->second == part->first) {
    before->second += part->second;
    free_.erase(part);
  }
}

}  // namespace sim
