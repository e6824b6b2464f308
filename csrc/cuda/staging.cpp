#include "cuda/staging.h"

#include <algorithm>

namespace hologram::cuda {

void Staging::free() noexcept {
  for (const Chunk& chunk : chunks_) driver().free_host(chunk.memory);
  chunks_.clear();
}

// Puts a chunk last that has room for so many bytes: one that is done with, or a new one. False
// where there is none.
bool Staging::make_room(size_t bytes, Ticket done) {
  const auto found = std::ranges::find_if(
      chunks_, [&](const Chunk& chunk) { return chunk.ticket <= done && chunk.size >= bytes; });
  Chunk chunk{nullptr, 0, 0, 0};
  if (found != chunks_.end()) {
    chunk = *found;
    chunk.used = 0;
    chunks_.erase(found);
  } else {
    chunk.size = std::max(kChunk, (bytes + kUnit - 1) / kUnit * kUnit);
    void* memory = nullptr;
    if (driver().allocate_host(&memory, chunk.size, kHostMemoryPortable) != kSuccess) return false;
    chunk.memory = static_cast<std::byte*>(memory);
  }
  chunks_.push_back(chunk);
  return true;
}

}  // namespace hologram::cuda
