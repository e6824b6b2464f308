// Memory that the host and the GPU share: every address of it lies in a buffer of Metal's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>

#include "metal/runtime.h"

namespace hologram::metal {

// Thread-safe.
class Memory {
 public:
  explicit Memory(const Device& device) : device_(device) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // A buffer of its own, whose address is a multiple of `alignment`. Null where the device or the
  // host has no more, or a buffer cannot be so large.
  void* allocate(size_t bytes, size_t alignment) noexcept;
  // The same; throws OutOfMemory.
  void* allocate_or_throw(size_t bytes, size_t alignment);
  // The GPU has done what uses it.
  void free(void* memory) noexcept;

  // The buffer that has an address, and how far behind its beginning that is; none for other memory
  // of the host. It stays valid until the memory is freed.
  std::optional<Commands::Place> find(const void* address) const noexcept;

  size_t available() const noexcept;

 private:
  struct Piece {
    size_t bytes;
    Buffer buffer;
  };

  const Device& device_;
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, Piece> pieces_;  // by their addresses
};

}  // namespace hologram::metal
