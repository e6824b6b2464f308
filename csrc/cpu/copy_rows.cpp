#include "cpu/copy_rows.h"

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace hologram::cpu {
namespace {

template <class Count>
void copy_rows_of(char* to, int64_t to_pitch, const char* from, int64_t from_pitch, int64_t rows,
                  Count count) noexcept {
  constexpr auto kSize = static_cast<int64_t>(sizeof(float));
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_pitch * kSize, from + row * from_pitch * kSize,
                static_cast<size_t>(count * kSize));
  }
}

}  // namespace

// The widths of the last layers of networks are constants: a call for each row takes longer than
// the row.
void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t rows,
               int64_t count) noexcept {
  const auto of = [&](auto its) {
    copy_rows_of(static_cast<char*>(to), to_pitch, static_cast<const char*>(from), from_pitch, rows,
                 its);
  };
  switch (count) {
    case 1: return of(std::integral_constant<int64_t, 1>());
    case 2: return of(std::integral_constant<int64_t, 2>());
    case 3: return of(std::integral_constant<int64_t, 3>());
    case 4: return of(std::integral_constant<int64_t, 4>());
    case 7: return of(std::integral_constant<int64_t, 7>());
    case 8: return of(std::integral_constant<int64_t, 8>());
    case 9: return of(std::integral_constant<int64_t, 9>());
    case 14: return of(std::integral_constant<int64_t, 14>());
    case 16: return of(std::integral_constant<int64_t, 16>());
    default: return of(count);
  }
}

}  // namespace hologram::cpu
