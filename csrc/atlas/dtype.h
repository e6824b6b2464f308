// Element types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hologram {

// X(name, bytes per element)
#define HOLOGRAM_DTYPES(X) \
  X(b8, 1)                 \
  X(u8, 1)                 \
  X(i8, 1)                 \
  X(i16, 2)                \
  X(i32, 4)                \
  X(i64, 8)                \
  X(f16, 2)                \
  X(bf16, 2)               \
  X(f32, 4)                \
  X(f64, 8)                \
  X(c64, 8)                \
  X(c128, 16)

enum class DType : uint8_t {
#define HOLOGRAM_X(name, bytes) name,
  HOLOGRAM_DTYPES(HOLOGRAM_X)
#undef HOLOGRAM_X
};

#define HOLOGRAM_X(name, bytes) +1
inline constexpr int kDTypeCount = 0 HOLOGRAM_DTYPES(HOLOGRAM_X);
#undef HOLOGRAM_X

// Bytes per element.
// At namespace scope: an array of the function would be put on the stack at each call.
inline constexpr uint8_t kDTypeSizes[] = {
#define HOLOGRAM_X(name, bytes) bytes,
    HOLOGRAM_DTYPES(HOLOGRAM_X)
#undef HOLOGRAM_X
};

constexpr size_t dtype_size(DType dtype) {
  return kDTypeSizes[static_cast<size_t>(dtype)];
}

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* names[] = {
#define HOLOGRAM_X(name, bytes) #name,
      HOLOGRAM_DTYPES(HOLOGRAM_X)
#undef HOLOGRAM_X
  };
  return names[static_cast<size_t>(dtype)];
}

// A set of element types, one bit each.
using DTypeSet = uint32_t;

constexpr DTypeSet dtype_bit(DType dtype) {
  return DTypeSet{1} << static_cast<unsigned>(dtype);
}

inline constexpr DTypeSet kFloating = dtype_bit(DType::f32) | dtype_bit(DType::f64);
inline constexpr DTypeSet kIntegral = dtype_bit(DType::i32) | dtype_bit(DType::i64);
inline constexpr DTypeSet kNumeric = kFloating | kIntegral;

}  // namespace hologram
