#include "atlas/immediates.h"

#include "atlas/canonicalise.h"

namespace hologram {
namespace {

// Bits of the compute type with every NaN as the default one.
uint64_t default_nan(uint64_t bits, ComputeType compute) noexcept {
  constexpr uint64_t kFloat = 0x7fc0'0000, kDouble = 0x7ff8'0000'0000'0000;
  switch (compute) {
    case ComputeType::f32: return (bits & 0x7fff'ffff) > 0x7f80'0000 ? kFloat : bits;
    case ComputeType::f64:
      return (bits & ~(uint64_t{1} << 63)) > 0x7ff0'0000'0000'0000 ? kDouble : bits;
    case ComputeType::i64: break;
  }
  return bits;
}

Special special_of(uint64_t bits, DType dtype) noexcept {
  const auto is_one_of = [&](uint64_t zero, uint64_t one, uint64_t sign) {
    return bits == zero           ? Special::zero
           : bits == one          ? Special::one
           : bits == sign         ? Special::negative_zero
           : bits == (sign | one) ? Special::minus_one
                                  : Special::none;
  };
  switch (compute_type_of(dtype)) {
    case ComputeType::f32: {
      const Special special = is_one_of(0, 0x3f80'0000, 0x8000'0000);
      const bool is_nan = (bits & 0x7fff'ffff) > 0x7f80'0000;
      const bool is_held = dtype == DType::bf16 && (bits & 0xffff) == 0 && !is_nan;
      return special == Special::none && is_held ? Special::bf16 : special;
    }
    case ComputeType::f64: return is_one_of(0, 0x3ff0'0000'0000'0000, uint64_t{1} << 63);
    case ComputeType::i64: break;
  }
  return bits == 0 ? Special::zero : bits == 1 ? Special::one : Special::none;
}

}  // namespace

uint16_t Immediates::find_or_add(Program& program, uint64_t bits, DType dtype) {
  bits = default_nan(bits, compute_type_of(dtype));
  // Equal bits of two dtypes are two values where only one of them is special.
  const Special special = special_of(bits, dtype);
  uint16_t& newest = newest_[bits * 0x9e3779b97f4a7c15u >> 56];
  const size_t count = program.immediates.size();
  for (uint16_t i = newest; i < count; i = before_[i]) {
    if (program.immediates[i] == bits && program.specials[i] == special) return i;
  }
  before_.push(newest < count ? newest : kNone);
  newest = static_cast<uint16_t>(count);
  program.immediates.push(bits);
  program.specials.push(special);
  return newest;
}

uint16_t Immediates::add(Program& program, uint64_t bits) {
  before_.push(kNone);
  program.immediates.push(bits);
  program.specials.push(Special::none);
  return static_cast<uint16_t>(program.immediates.size() - 1);
}

}  // namespace hologram
