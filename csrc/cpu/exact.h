// Which dtypes hold the values of others.
#pragma once

#include "atlas/dtype.h"
#include "atlas/group.h"

namespace hologram::cpu {

// Dtypes whose every value a compute type represents.
inline DTypeSet exact_dtypes(ComputeType compute_type) {
  constexpr DTypeSet small =
      dtype_bit(DType::b8) | dtype_bit(DType::u8) | dtype_bit(DType::i8) | dtype_bit(DType::i16);
  constexpr DTypeSet f32 = small | kHalves | dtype_bit(DType::f32);
  switch (compute_type) {
    case ComputeType::f32: return f32;
    case ComputeType::f64: return f32 | dtype_bit(DType::i32) | dtype_bit(DType::f64);
    case ComputeType::i64: break;
  }
  return small | kIntegral;
}

// Whether `to` holds every value of `from`.
inline bool is_exact(DType from, DType to) {
  if (from == to || from == DType::b8) return true;
  switch (to) {
    case DType::i16: return from == DType::u8 || from == DType::i8;
    case DType::i32: return dtype_size(from) < 4 && !(dtype_bit(from) & kReal);
    case DType::i64: return !(dtype_bit(from) & kReal);
    case DType::f16: return from == DType::u8 || from == DType::i8;
    case DType::bf16: return from == DType::u8 || from == DType::i8;
    case DType::f32: return dtype_size(from) < 4;
    case DType::f64: return from != DType::i64;
    default: return false;
  }
}

}  // namespace hologram::cpu
