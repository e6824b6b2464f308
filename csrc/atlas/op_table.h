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
  kPredicate = 8,    // the result is b8: T(1) or T(0) in the class of the operands
  kCondition = 16,   // the first operand is b8, T(1) or T(0) in the class of the others
};

// Dtypes a group computes in f32, rounding each result; and all that order has a meaning for.
inline constexpr DTypeSet kHalves = dtype_bit(DType::bf16) | dtype_bit(DType::f16);
inline constexpr DTypeSet kReal = kFloating | kHalves;
inline constexpr DTypeSet kOrdered = kReal | kIntegral | dtype_bit(DType::b8) |
                                     dtype_bit(DType::u8) | dtype_bit(DType::i8) |
                                     dtype_bit(DType::i16);

// What becomes of integers and truth values.
enum class Integers : uint8_t {
  keep,     // computed as such if among the dtypes; else torch's kernel computes or refuses them
  promote,  // computed in torch's default dtype, as torch's kernel does (sqrt of int64 is float32)
};
inline constexpr Integers kKeep = Integers::keep, kPromote = Integers::promote;

// Value e with f(x, e) = x for all x; converted to an integer dtype with saturation.
inline constexpr double kNoIdentity = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// X(name, arity, dtypes, integers, expression over x, y and z of type T, flags, identity)
//
// Every row is registered with ATen by its name.
// An expression compiles for a scalar T and for a vector of lanes; select(c, a, b) is c ? a : b.
// Every float expression here is correctly rounded, so results equal torch CPU's bit for bit.
// (torch's sqrt is up to 1 ulp off where it goes through MKL; it has no row, or small and large
// tensors would disagree.) wrap_* is the operation modulo 2^n on integers and the plain one on
// floats; helpers are in atlas/scalar.h.
//   add: -0 is the identity, not +0: (-0) + (+0) = +0.
//   maximum, minimum: propagate NaN. Of two zeros the second operand is returned, as by torch's
//     vectorised loop and x86 maxps (torch's loop for tails and strided operands returns the
//     first); hence they are not commutative in bits.
//   relu: keeps NaN and -0, as torch's clamp_min(x, 0) does.
#define HOLOGRAM_POINTWISE_OPS(X)                                                        \
  X(add, 2, kNumeric, kKeep, wrap_add(x, y), kCommutative, -0.0)                         \
  X(sub, 2, kNumeric, kKeep, wrap_sub(x, y), kNone, +0.0)                                \
  X(mul, 2, kNumeric, kKeep, wrap_mul(x, y), kCommutative, 1.0)                          \
  X(div, 2, kFloating, kPromote, x / y, kNone, 1.0)                                      \
  X(maximum, 2, kNumeric, kKeep, select(is_nan(x), x, select(x > y, x, y)), kIdempotent, \
    -kInfinity)                                                                          \
  X(minimum, 2, kNumeric, kKeep, select(is_nan(x), x, select(x < y, x, y)), kIdempotent, \
    kInfinity)                                                                           \
  X(neg, 1, kNumeric, kKeep, wrap_neg(x), kInvolution, kNoIdentity)                      \
  X(abs, 1, kNumeric, kKeep, wrap_abs(x), kIdempotent, kNoIdentity)                      \
  X(relu, 1, kNumeric, kKeep, select(x < T(0), T(0), x), kIdempotent, kNoIdentity)       \
  X(reciprocal, 1, kFloating, kPromote, T(1) / x, kNone, kNoIdentity)

// Rows that exist in groups only (atlas/group.h). math_* is at most 1.5 ulp off, with the special
// values of C's functions and the same bits on every instruction set; see cpu/math.h. The others
// are exact or correctly rounded.
//   exp2 to pow: of f64 by the C library.
//   round: ties to even.
//   where: x is the condition.
//   clamp: minimum(maximum(x, y), z) by comparisons; keeps x where it equals a bound (so -0 stays
//     with a bound of +0), NaN of any operand propagates.
//   fma: x * y + z with one rounding, for the opt-in contraction.
#define HOLOGRAM_GROUP_OPS(X)                                                                     \
  X(sqrt, 1, kReal, kPromote, math_sqrt(x), kNone, kNoIdentity)                                   \
  X(rsqrt, 1, kReal, kPromote, T(1) / math_sqrt(x), kNone, kNoIdentity)                           \
  X(exp, 1, kReal, kPromote, math_exp(x), kNone, kNoIdentity)                                     \
  X(exp2, 1, kReal, kPromote, math_exp2(x), kNone, kNoIdentity)                                   \
  X(expm1, 1, kReal, kPromote, math_expm1(x), kNone, kNoIdentity)                                 \
  X(log, 1, kReal, kPromote, math_log(x), kNone, kNoIdentity)                                     \
  X(log2, 1, kReal, kPromote, math_log2(x), kNone, kNoIdentity)                                   \
  X(log1p, 1, kReal, kPromote, math_log1p(x), kNone, kNoIdentity)                                 \
  X(tanh, 1, kReal, kPromote, math_tanh(x), kNone, kNoIdentity)                                   \
  X(sigmoid, 1, kReal, kPromote, math_sigmoid(x), kNone, kNoIdentity)                             \
  X(erf, 1, kReal, kPromote, math_erf(x), kNone, kNoIdentity)                                     \
  X(sin, 1, kReal, kPromote, math_sin(x), kNone, kNoIdentity)                                     \
  X(cos, 1, kReal, kPromote, math_cos(x), kNone, kNoIdentity)                                     \
  X(pow, 2, kReal, kKeep, math_pow(x, y), kNone, 1.0)                                             \
  X(floor, 1, kReal, kKeep, math_floor(x), kIdempotent, kNoIdentity)                              \
  X(ceil, 1, kReal, kKeep, math_ceil(x), kIdempotent, kNoIdentity)                                \
  X(round, 1, kReal, kKeep, math_round(x), kIdempotent, kNoIdentity)                              \
  X(trunc, 1, kReal, kKeep, math_trunc(x), kIdempotent, kNoIdentity)                              \
  X(eq, 2, kOrdered, kKeep, select(x == y, T(1), T(0)), kCommutative | kPredicate, kNoIdentity)   \
  X(ne, 2, kOrdered, kKeep, select(x != y, T(1), T(0)), kCommutative | kPredicate, kNoIdentity)   \
  X(lt, 2, kOrdered, kKeep, select(x < y, T(1), T(0)), kPredicate, kNoIdentity)                   \
  X(le, 2, kOrdered, kKeep, select(x <= y, T(1), T(0)), kPredicate, kNoIdentity)                  \
  X(gt, 2, kOrdered, kKeep, select(x > y, T(1), T(0)), kPredicate, kNoIdentity)                   \
  X(ge, 2, kOrdered, kKeep, select(x >= y, T(1), T(0)), kPredicate, kNoIdentity)                  \
  X(where, 3, kOrdered, kKeep, select(x != T(0), y, z), kCondition, kNoIdentity)                  \
  X(clamp, 3, kOrdered, kKeep, clamp_value(x, y, z), kNone, kNoIdentity)                          \
  X(logical_not, 1, dtype_bit(DType::b8), kKeep, T(1) - x, kInvolution | kPredicate, kNoIdentity) \
  X(logical_and, 2, dtype_bit(DType::b8), kKeep, select(x < y, x, y),                             \
    kCommutative | kIdempotent | kPredicate, 1.0)                                                 \
  X(logical_or, 2, dtype_bit(DType::b8), kKeep, select(x > y, x, y),                              \
    kCommutative | kIdempotent | kPredicate, 0.0)                                                 \
  X(logical_xor, 2, dtype_bit(DType::b8), kKeep, select(x != y, T(1), T(0)),                      \
    kCommutative | kPredicate, 0.0)                                                               \
  X(fma, 3, kReal, kKeep, math_fma(x, y, z), kNone, kNoIdentity)

#define HOLOGRAM_OPS(X) HOLOGRAM_POINTWISE_OPS(X) HOLOGRAM_GROUP_OPS(X)

enum class Op : uint16_t {
#define HOLOGRAM_X(name, arity, dtypes, integers, expression, flags, identity) name,
  HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
};

#define HOLOGRAM_X(name, arity, dtypes, integers, expression, flags, identity) +1
inline constexpr int kPointwiseOpCount = 0 HOLOGRAM_POINTWISE_OPS(HOLOGRAM_X);  // the first ones
inline constexpr int kOpCount = 0 HOLOGRAM_OPS(HOLOGRAM_X);
#undef HOLOGRAM_X

struct OpInfo {
  const char* name;
  int arity;  // number of operands, 1 to 3
  DTypeSet dtypes;
  Integers integers;
  const char* expression;  // in x, y, z and T, for messages and generated kernels
  uint8_t flags;           // OpFlags
  double identity;         // NaN: none

  bool supports(DType dtype) const { return (dtypes & dtype_bit(dtype)) != 0; }
  // The same for a compute node of a group (atlas/group.h): narrow dtypes are rounded after the
  // operation. `dtype` is the operands' (the second and third's of a kCondition row).
  bool supports_in_group(DType dtype) const {
    DTypeSet all = dtypes;
    if (supports(DType::f32)) all |= kHalves;
    if (supports(DType::i32)) {
      all |= dtype_bit(DType::u8) | dtype_bit(DType::i8) | dtype_bit(DType::i16);
    }
    return (all & dtype_bit(dtype)) != 0;
  }
  bool has(OpFlags flag) const { return (flags & flag) != 0; }
  bool has_identity() const { return !std::isnan(identity); }
};

const OpInfo& op_info(Op op) noexcept;

}  // namespace hologram
