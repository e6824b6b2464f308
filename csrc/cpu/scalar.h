// Scalar operands as numbers of the compute type.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/convert.h"
#include "cpu/exact.h"

namespace hologram::cpu {

// Bits of `x` in the compute type's representation, rounded to `to`.
template <class T>
uint64_t scalar_bits(const void* x, DType from, DType to) {
  T value{};
  const auto each = [](DType dtype, auto&& body) {
    switch (dtype) {
      case DType::b8: body.template operator()<uint8_t>(); break;
      case DType::u8: body.template operator()<uint8_t>(); break;
      case DType::i8: body.template operator()<int8_t>(); break;
      case DType::i16: body.template operator()<int16_t>(); break;
      case DType::i32: body.template operator()<int32_t>(); break;
      case DType::i64: body.template operator()<int64_t>(); break;
      case DType::f16: body.template operator()<F16>(); break;
      case DType::bf16: body.template operator()<Bf16>(); break;
      case DType::f32: body.template operator()<float>(); break;
      case DType::f64: body.template operator()<double>(); break;
      default: break;
    }
  };
  each(from, [&]<class S>() {
    S s;
    std::memcpy(&s, x, sizeof s);
    value = convert<T>(s);
  });
  if (from == DType::b8 || to == DType::b8) value = value != T(0) ? T(1) : T(0);
  if (to != DType::b8 && !is_exact(from, to)) {
    each(to, [&]<class D>() { value = convert<T>(convert<D>(value)); });
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

}  // namespace hologram::cpu
