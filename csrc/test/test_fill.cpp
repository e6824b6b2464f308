#include "cpu/fill.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"

TEST(fill_writes_every_element_and_nothing_else) {
  constexpr unsigned char kGuard = 0xa5;
  for (const size_t size : {1, 2, 4, 8, 16}) {
    for (const bool uniform : {false, true}) {
      unsigned char element[16];
      for (size_t i = 0; i < size; ++i)
        element[i] = static_cast<unsigned char>(uniform ? 0 : 7 + i);
      for (const size_t n : {0, 1, 2, 3, 15, 16, 17, 63, 64, 100, 4097}) {
        alignas(16) static unsigned char memory[16 * 4097 + 32];
        std::memset(memory, kGuard, sizeof memory);
        hologram::cpu::fill(memory + 16, element, size, n);
        bool right = true;
        for (size_t i = 0; i < n; ++i) {
          right = right && std::memcmp(memory + 16 + i * size, element, size) == 0;
        }
        for (size_t i = 0; i < 16; ++i) {
          right = right && memory[i] == kGuard && memory[16 + n * size + i] == kGuard;
        }
        if (!right) {
          check::fail(__FILE__, __LINE__,
                      "fill of " + std::to_string(n) + " x " + std::to_string(size) + " bytes");
        }
      }
    }
  }
}

TEST(fill_accepts_nothing) {
  hologram::cpu::fill(nullptr, "x", 1, 0);
}
