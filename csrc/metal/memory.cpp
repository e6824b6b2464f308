#include "metal/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "atlas/error.h"

namespace hologram::metal {
namespace {

// Memory of the host that Metal uses where it lies. A buffer that Metal allocates begins at a
// multiple of a page, where segments begin at one of a MiB; and Metal takes no memory of malloc(),
// but pages that are a region of their own. On either side there is one that nobody may touch.
char* map_pages(size_t bytes, size_t alignment) noexcept {
  const size_t page = Device::page_size(), all = bytes + alignment + 2 * page;
  if (all < bytes) return nullptr;
  void* const mapped =
      ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  const auto first = reinterpret_cast<uintptr_t>(begin) + page;
  char* const memory = begin + page + (alignment - first % alignment) % alignment;
  char* const end = memory + bytes + page;
  if (memory - page != begin) ::munmap(begin, static_cast<size_t>(memory - page - begin));
  if (end != begin + all) ::munmap(end, static_cast<size_t>(begin + all - end));
  if (::mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0) return memory;
  ::munmap(memory - page, bytes + 2 * page);
  return nullptr;
}

void unmap_pages(void* memory, size_t bytes) {
  const size_t page = Device::page_size();
  ::munmap(static_cast<char*>(memory) - page, bytes + 2 * page);
}

}  // namespace

void* Memory::allocate(size_t bytes, size_t alignment) noexcept {
  const size_t page = Device::page_size();
  const size_t whole = (bytes + page - 1) / page * page;
  if (whole < bytes) return nullptr;
  char* const memory = map_pages(whole, std::max(page, alignment));
  if (memory == nullptr) return nullptr;
  try {
    if (Buffer buffer = device_.wrap(memory, whole, &unmap_pages)) {
      const std::lock_guard lock(mutex_);
      pieces_.emplace(reinterpret_cast<uintptr_t>(memory), Piece{whole, std::move(buffer)});
      return memory;
    }
    unmap_pages(memory, whole);
  } catch (const std::exception&) {  // no memory to keep it in: the buffer has given it back
  }
  return nullptr;
}

void* Memory::allocate_or_throw(size_t bytes, size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory != nullptr) return memory;
  const size_t used = device_.allocated_bytes();
  throw OutOfMemory(bytes, used, used, device_.info().memory);
}

void Memory::free(void* memory) noexcept {
  Piece piece{0, Buffer()};
  {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(reinterpret_cast<uintptr_t>(memory));
    if (found == pieces_.end()) return;
    piece = std::move(found->second);
    pieces_.erase(found);
  }
}

std::optional<Commands::Place> Memory::find(const void* address) const noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const std::shared_lock lock(mutex_);
  auto found = pieces_.upper_bound(at);
  if (found == pieces_.begin()) return std::nullopt;
  --found;
  if (at - found->first >= found->second.bytes) return std::nullopt;
  return Commands::Place{&found->second.buffer, at - found->first};
}

size_t Memory::available() const noexcept {
  const size_t all = device_.info().memory, used = device_.allocated_bytes();
  return all > used ? all - used : 0;
}

}  // namespace hologram::metal
