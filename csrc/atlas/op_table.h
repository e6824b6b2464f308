// The table of pointwise operations: one row is everything the project knows about an operation.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "atlas/dtype.h"

namespace hologram {

// Algebraic facts, each exact in bits (NaN payloads excepted) for every dtype of the row.
enum OpFlags : uint8_t {
  kNone = 0,
  kCommutative = 1,  // f(x, y) = f(y, x)
  kIdempotent = 2,   // f(f(x)) = f(x); binary: f(x, x) = x
  kInvolution = 4,   // f(f(x)) = x
};

// Value e with f(x, e) = x for all x; converted to an integer dtype with saturation.
inline constexpr double kNoIdentity = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// X(name, arity, dtypes, expression over x and y of type T, flags, identity)
//
// Every float expression is correctly rounded, so results equal torch CPU's bit for bit. (torch's
// sqrt is up to 1 ulp off where it goes through MKL; it has no row, or small and large tensors
// would disagree.) wrap_* is the operation modulo 2^n on integers and the plain one on floats;
// helpers are in atlas/scalar.h.
//   add: -0 is the identity, not +0: (-0) + (+0) = +0.
//   maximum, minimum: propagate NaN. Of two zeros the second operand is returned, as by torch's
//     vectorised loop and x86 maxps (torch's loop for tails and strided operands returns the
//     first); hence they are not commutative in bits.
//   relu: keeps NaN and -0, as torch's clamp_min(x, 0) does.
#define HOLOGRAM_POINTWISE_OPS(X)                                                   \
  X(add, 2, kNumeric, wrap_add(x, y), kCommutative, -0.0)                           \
  X(sub, 2, kNumeric, wrap_sub(x, y), kNone, +0.0)                                  \
  X(mul, 2, kNumeric, wrap_mul(x, y), kCommutative, 1.0)                            \
  X(div, 2, kFloating, x / y, kNone, 1.0)                                           \
  X(maximum, 2, kNumeric, is_nan(x) ? x : (x > y ? x : y), kIdempotent, -kInfinity) \
  X(minimum, 2, kNumeric, is_nan(x) ? x : (x < y ? x : y), kIdempotent, kInfinity)  \
  X(neg, 1, kNumeric, wrap_neg(x), kInvolution, kNoIdentity)                        \
  X(abs, 1, kNumeric, wrap_abs(x), kIdempotent, kNoIdentity)                        \
  X(relu, 1, kNumeric, x < T(0) ? T(0) : x, kIdempotent, kNoIdentity)               \
  X(reciprocal, 1, kFloating, T(1) / x, kNone, kNoIdentity)

enum class Op : uint16_t {
#define HOLOGRAM_X(name, arity, dtypes, expression, flags, identity) name,
  HOLOGRAM_POINTWISE_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
};

#define HOLOGRAM_X(name, arity, dtypes, expression, flags, identity) +1
inline constexpr int kOpCount = 0 HOLOGRAM_POINTWISE_OPS(HOLOGRAM_X);
#undef HOLOGRAM_X

struct OpInfo {
  const char* name;
  int arity;  // number of tensor operands, 1 or 2
  DTypeSet dtypes;
  const char* expression;  // in x, y and T, for messages and generated kernels
  uint8_t flags;           // OpFlags
  double identity;         // NaN: none

  bool supports(DType dtype) const { return (dtypes & dtype_bit(dtype)) != 0; }
  bool has(OpFlags flag) const { return (flags & flag) != 0; }
  bool has_identity() const { return !std::isnan(identity); }
};

const OpInfo& op_info(Op op) noexcept;

}  // namespace hologram
