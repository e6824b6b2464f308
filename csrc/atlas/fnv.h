// FNV-1a, a hash of bytes that is the same in every process and on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace hologram {

inline constexpr uint64_t kFnvBasis = 0xcbf29ce484222325u;

constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = kFnvBasis) noexcept {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace hologram
