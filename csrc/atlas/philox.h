// Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw ("Parallel random
// numbers: as easy as 1, 2, 3", SC 2011): a key and a counter give four words of 32 bits, whatever
// was drawn before.
#pragma once

#include <array>
#include <cstdint>

namespace hologram {

struct Philox {
  static constexpr int kRounds = 10;
  static constexpr uint32_t kMultipliers[] = {0xd2511f53u, 0xcd9e8d57u};
  static constexpr uint32_t kSteps[] = {0x9e3779b9u, 0xbb67ae85u};  // of the key, round by round

  using Words = std::array<uint32_t, 4>;

  static constexpr Words block(std::array<uint32_t, 2> key, Words counter) noexcept {
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t p = uint64_t{kMultipliers[0]} * counter[0];
      const uint64_t q = uint64_t{kMultipliers[1]} * counter[2];
      counter = {static_cast<uint32_t>(q >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(q),
                 static_cast<uint32_t>(p >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p)};
      key = {key[0] + kSteps[0], key[1] + kSteps[1]};
    }
    return counter;
  }
  // Low words first; the counter's upper half is zero.
  static constexpr Words block(uint64_t key, uint64_t counter) noexcept {
    return block({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
                 {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0});
  }
};

}  // namespace hologram
