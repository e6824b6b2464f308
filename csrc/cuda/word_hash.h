// A hash of words, for what is looked up again.
#pragma once

#include <bit>
#include <cstdint>

namespace hologram::cuda {

class WordHash {
 public:
  void add(uint64_t word) noexcept { hash_ = (std::rotl(hash_, 23) ^ word) * 0x9e3779b97f4a7c15; }
  void add(const void* pointer) noexcept { add(reinterpret_cast<uint64_t>(pointer)); }
  uint64_t get() const noexcept { return hash_ ^ hash_ >> 32; }

 private:
  uint64_t hash_ = 0;
};

}  // namespace hologram::cuda
