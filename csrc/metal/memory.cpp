#include "metal/memory.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "atlas/error.h"

namespace hologram::metal {

Memory::~Memory() {
  for (auto& [address, piece] : pieces_) {
    piece.buffer = Buffer();
    std::free(reinterpret_cast<void*>(address));
  }
}

// The host's own, of whole pages, which Metal uses where it lies: a buffer that Metal allocates
// begins at a multiple of a page, where segments begin at one of a MiB.
void* Memory::allocate(size_t bytes, size_t alignment) noexcept {
  const size_t page = Device::page_size();
  const size_t whole = (bytes + page - 1) / page * page;
  if (whole < bytes) return nullptr;
  const size_t multiple = std::max(page, alignment);
  void* const memory = std::aligned_alloc(multiple, (whole + multiple - 1) / multiple * multiple);
  if (memory == nullptr) return nullptr;
  try {
    if (Buffer buffer = device_.wrap(memory, whole)) {
      const std::lock_guard lock(mutex_);
      pieces_.emplace(reinterpret_cast<uintptr_t>(memory), Piece{whole, std::move(buffer)});
      return memory;
    }
  } catch (const std::exception&) {  // there is no memory to keep it in
  }
  std::free(memory);
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
  piece.buffer = Buffer();  // before its bytes
  std::free(memory);
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
