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
  with_element<uint8_t>(from, [&]<class S>() {
    S s;
    std::memcpy(&s, x, sizeof s);
    value = convert<T>(s);
  });
  if (from == DType::b8 || to == DType::b8) value = value != T(0) ? T(1) : T(0);
  if (to != DType::b8 && !is_exact(from, to)) {
    with_element<uint8_t>(to, [&]<class D>() { value = convert<T>(convert<D>(value)); });
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

}  // namespace hologram::cpu
