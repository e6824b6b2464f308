// Pieces of device memory for what kernels read as long as an owner wants it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

namespace hologram::gpu {

// Not synchronised. Its chunks are never given back.
class WordPool {
 public:
  // `allocate(bytes)` gives the address of a new chunk, or throws.
  template <class Allocate>
  uint64_t take(size_t bytes, Allocate&& allocate) {
    const size_t wanted = rounded(bytes);
    auto found = free_.lower_bound(wanted);
    if (found == free_.end()) {
      const size_t chunk = std::max(kChunk, wanted);
      found = free_.emplace(chunk, allocate(chunk));
    }
    const auto [size, address] = *found;
    free_.erase(found);
    if (size > wanted) free_.emplace(size - wanted, address + wanted);
    return address;
  }
  // With the bytes that were asked for.
  void give(uint64_t address, size_t bytes) { free_.emplace(rounded(bytes), address); }

 private:
  static size_t rounded(size_t bytes) noexcept { return (bytes + kUnit - 1) / kUnit * kUnit; }
  static constexpr size_t kUnit = 256;
  static constexpr size_t kChunk = size_t{1} << 20;

  std::multimap<size_t, uint64_t> free_;  // by bytes
};

}  // namespace hologram::gpu
