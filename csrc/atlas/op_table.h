// The table of pointwise operations: one row is everything the project knows about an operation.
#pragma once

#include "atlas/op_info.h"

namespace hologram {

// X(name, arity, expression over x, y and z of type T, columns)
//
// Every row is registered with ATen by its name.
// An expression compiles for a scalar T and for a vector of lanes; select(c, a, b) is c ? a : b.
// wrap_* is the operation modulo 2^n on integers and the plain one on floats; helpers are in
// atlas/scalar.h. math_* is at most 1.5 ulp off, with the special values of C's functions and the
// same bits on every instruction set; see cpu/math.h. The others are exact or correctly rounded, so
// results equal torch CPU's bit for bit.
//   add: -0 is the identity, not +0: (-0) + (+0) = +0.
//   maximum, minimum: propagate NaN. Of two zeros the second operand is returned, as by torch's
//     vectorised loop and x86 maxps (torch's loop for tails and strided operands returns the
//     first); hence they are not commutative in bits.
//   relu: keeps NaN and -0, as torch's clamp_min(x, 0) does.
//   sign: of NaN and of -0 it is +0, as torch's.
//   sqrt: of torch up to 1 ulp off where it goes through MKL.
//   exp2 to pow: of f64 by the C library.
//   gelu: recorded by composites.cpp; a row since it is shorter than by erf. Below -5.7 it is +0,
//     where torch's is -0.
//   gelu_tanh: recorded by composites.cpp; a row since it has a form for bf16.
//   round: ties to even.
//   where: x is the condition.
//   clamp: minimum(maximum(x, y), z) by comparisons; keeps x where it equals a bound (so -0 stays
//     with a bound of +0), NaN of any operand propagates. Its gradient at a bound depends on the
//     version of torch (shares_ties).
//   fma: x * y + z with one rounding, for the opt-in contraction.
// clang-format off: a line per column group reads better than what a formatter makes of it
#define HOLOGRAM_OPS(X)                                                                            \
  X(add, 2, wrap_add(x, y), .dtypes = kNumeric, .flags = kCommutative | kForPairs,                 \
    .identity = -0.0, .cost = Cost::arithmetic, .fold = "sum", .scan = "cumsum",                   \
    .derivative = {"g", "g"})                                                                      \
  X(sub, 2, wrap_sub(x, y), .dtypes = kNumeric, .integers = Integers::but_no_bool,                 \
    .flags = kForPairs, .identity = +0.0, .cost = Cost::arithmetic, .derivative = {"g", "-g"})     \
  X(mul, 2, wrap_mul(x, y), .dtypes = kNumeric, .numbers = Numbers::kept,                          \
    .flags = kCommutative | kForPairs, .identity = 1.0, .cost = Cost::arithmetic,                  \
    .integer_cost = Cost::function, .fold = "prod", .scan = "cumprod",                             \
    .derivative = {"g * y", "g * x"})                                                              \
  X(div, 2, x / y, .dtypes = kFloating, .integers = Integers::promote, .numbers = Numbers::kept,   \
    .flags = kQuotient, .identity = 1.0, .cost = Cost::arithmetic,                                 \
    .derivative = {"g / y", "-g * ((x / y) / y)"})                                                 \
  X(maximum, 2, select(is_nan(x), x, select(x > y, x, y)), .dtypes = kNumeric,                     \
    .flags = kIdempotent | kAnyOrder, .identity = -kInfinity, .exact = Exact::always,              \
    .fold = "amax",                                                                                \
    .derivative = {"where(x < y, 0.0, where(x == y, g * 0.5, g))",                                 \
                   "where(y < x, 0.0, where(x == y, g * 0.5, g))"})                                \
  X(minimum, 2, select(is_nan(x), x, select(x < y, x, y)), .dtypes = kNumeric,                     \
    .flags = kIdempotent | kAnyOrder, .identity = kInfinity, .exact = Exact::always,               \
    .fold = "amin",                                                                                \
    .derivative = {"where(x > y, 0.0, where(x == y, g * 0.5, g))",                                 \
                   "where(y > x, 0.0, where(x == y, g * 0.5, g))"})                                \
  X(neg, 1, wrap_neg(x), .dtypes = kNumeric, .flags = kInvolution, .exact = Exact::real,           \
    .derivative = {"-g"})                                                                          \
  X(abs, 1, wrap_abs(x), .dtypes = kNumeric, .flags = kIdempotent, .exact = Exact::real,           \
    .derivative = {"g * where(x > 0.0, 1.0, where(x < 0.0, -1.0, 0.0))"})                          \
  X(sign, 1, select(x > T(0), T(1), select(x < T(0), T(-1), T(0))), .dtypes = kNumeric,            \
    .flags = kIdempotent, .exact = Exact::always, .derivative = {"0"})                             \
  X(relu, 1, select(x < T(0), T(0), x), .dtypes = kNumeric, .flags = kIdempotent,                  \
    .exact = Exact::always, .derivative = {"where(x <= 0.0, 0.0, g)"})                             \
  X(reciprocal, 1, T(1) / x, .dtypes = kFloating, .integers = Integers::promote,                   \
    .derivative = {"-g * (r * r)"})                                                                \
  X(sqrt, 1, math_sqrt(x), .integers = Integers::promote, .derivative = {"g / (r * 2.0)"})         \
  X(rsqrt, 1, T(1) / math_sqrt(x), .integers = Integers::promote,                                  \
    .derivative = {"g * -0.5 * r ** 3.0"})                                                         \
  X(exp, 1, math_exp(x), .integers = Integers::promote, .flags = kForBf16 | kForPairs,             \
    .cost = Cost::short_function, .derivative = {"g * r"})                                         \
  X(exp2, 1, math_exp2(x), .integers = Integers::promote, .cost = Cost::function,                  \
    .derivative = {"g * r * log(2.0)"})                                                            \
  X(expm1, 1, math_expm1(x), .integers = Integers::promote, .cost = Cost::function,                \
    .derivative = {"g * (r + 1.0)"})                                                               \
  X(log, 1, math_log(x), .integers = Integers::promote, .cost = Cost::short_function,              \
    .derivative = {"g / x"})                                                                       \
  X(log2, 1, math_log2(x), .integers = Integers::promote, .cost = Cost::function,                  \
    .derivative = {"g / (x * log(2.0))"})                                                          \
  X(log1p, 1, math_log1p(x), .integers = Integers::promote, .cost = Cost::function,                \
    .derivative = {"g / (x + 1.0)"})                                                               \
  X(tanh, 1, math_tanh(x), .integers = Integers::promote, .flags = kForBf16,                       \
    .cost = Cost::short_function, .derivative = {"g * (1.0 - r * r)"})                             \
  X(sigmoid, 1, math_sigmoid(x), .integers = Integers::promote, .flags = kForBf16,                 \
    .cost = Cost::short_function, .derivative = {"g * (1.0 - r) * r"})                             \
  X(erf, 1, math_erf(x), .integers = Integers::promote, .cost = Cost::function,                    \
    .derivative = {"exp(-(x * x)) * (2.0 / sqrt(pi)) * g"})                                        \
  X(gelu, 1, math_gelu(x), .dtypes = kReal, .flags = kForBf16, .cost = Cost::function)             \
  X(gelu_tanh, 1, math_gelu_tanh(x), .dtypes = kReal, .flags = kForBf16 | kEpilogue,               \
    .cost = Cost::function)                                                                        \
  X(sin, 1, math_sin(x), .integers = Integers::promote, .flags = kForBf16, .cost = Cost::function, \
    .derivative = {"g * cos(x)"})                                                                  \
  X(cos, 1, math_cos(x), .integers = Integers::promote, .flags = kForBf16, .cost = Cost::function, \
    .derivative = {"g * -sin(x)"})                                                                 \
  X(pow, 2, math_pow(x, y), .numbers = Numbers::parameter, .flags = kForBf16, .identity = 1.0,     \
    .cost = Cost::function,                                                                        \
    .derivative = {"where(is_number(y), where(y == 0.0, 0.0, g * (x ** (y - 1.0) * y)),"           \
                   " where(y == 0.0, 0.0, g * (y * x ** (y - 1.0))))",                             \
                   "where(is_tensor(x), g * where((x == 0.0) & (y >= 0.0), 0.0, r * log(x)),"      \
                   " where(x == 0.0, where(y >= 0.0, 0.0, g * (r * log(x))), g * (r * log(x))))"}) \
  X(floor, 1, math_floor(x), .flags = kIdempotent, .exact = Exact::always, .derivative = {"0"})    \
  X(ceil, 1, math_ceil(x), .flags = kIdempotent, .exact = Exact::always, .derivative = {"0"})      \
  X(round, 1, math_round(x), .flags = kIdempotent, .exact = Exact::always, .derivative = {"0"})    \
  X(trunc, 1, math_trunc(x), .flags = kIdempotent, .exact = Exact::always, .derivative = {"0"})    \
  X(eq, 2, select(x == y, T(1), T(0)), .dtypes = kOrdered, .flags = kCommutative | kPredicate)     \
  X(ne, 2, select(x != y, T(1), T(0)), .dtypes = kOrdered, .flags = kCommutative | kPredicate)     \
  X(lt, 2, select(x < y, T(1), T(0)), .dtypes = kOrdered, .flags = kPredicate)                     \
  X(le, 2, select(x <= y, T(1), T(0)), .dtypes = kOrdered, .flags = kPredicate)                    \
  X(gt, 2, select(x > y, T(1), T(0)), .dtypes = kOrdered, .flags = kPredicate)                     \
  X(ge, 2, select(x >= y, T(1), T(0)), .dtypes = kOrdered, .flags = kPredicate)                    \
  X(where, 3, select(x != T(0), y, z), .dtypes = kOrdered, .flags = kCondition,                    \
    .exact = Exact::always, .derivative = {"0", "where(x, g, 0.0)", "where(x, 0.0, g)"})           \
  X(clamp, 3, clamp_value(x, y, z), .dtypes = kOrdered, .exact = Exact::always,                    \
    .integer_cost = Cost::function,                                                                \
    .derivative = {                                                                                \
        "where(shares_ties,"                                                                       \
        " where(is_number(y) & is_number(z), where((x > y) & (x < z), g, 0.0),"                    \
        "  where((x < y) | (x > z), 0.0,"                                                          \
        "   where(((y < z) & (x == y)) | ((y < z) & (x == z)), g * 0.5, g))),"                     \
        " where((x >= y) & (x <= z), g, 0.0))",                                                    \
        "where(shares_ties,"                                                                       \
        " where((x < y) & (y <= z), g, where((y < z) & (x == y), g * 0.5, 0.0)),"                  \
        " where((x < y) & (y < z), g, 0.0))",                                                      \
        "where(shares_ties,"                                                                       \
        " where((y > z) | ((x > z) & (y <= z)), g, where((y < z) & (x == z), g * 0.5, 0.0)),"      \
        " where((x > z) | (z < y), g, 0.0))"})                                                     \
  X(logical_not, 1, T(1) - x, .dtypes = kTruth, .flags = kInvolution | kPredicate)                 \
  X(logical_and, 2, select(x < y, x, y), .dtypes = kTruth,                                         \
    .flags = kCommutative | kIdempotent | kPredicate, .identity = 1.0)                             \
  X(logical_or, 2, select(x > y, x, y), .dtypes = kTruth,                                          \
    .flags = kCommutative | kIdempotent | kPredicate, .identity = 0.0)                             \
  X(logical_xor, 2, select(x != y, T(1), T(0)), .dtypes = kTruth,                                  \
    .flags = kCommutative | kPredicate, .identity = 0.0)                                           \
  X(fma, 3, math_fma(x, y, z), .cost = Cost::fused)
// clang-format on

enum class Op : uint16_t {
#define HOLOGRAM_X(name, ...) name,
  HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
};

#define HOLOGRAM_X(...) +1
inline constexpr int kOpCount = 0 HOLOGRAM_OPS(HOLOGRAM_X);
#undef HOLOGRAM_X

inline constexpr OpInfo kOpTable[] = {
#define HOLOGRAM_X(name, arity, expression, ...) \
  {OpColumns{__VA_ARGS__}, #name, arity, #expression},
    HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
};

// op_info() for who needs it while compiling.
constexpr const OpInfo& op_row(Op op) noexcept {
  return kOpTable[static_cast<size_t>(op)];
}

// The number of a row among those whose cost is arithmetic.
constexpr int arithmetic_index(Op op) noexcept {
  int index = 0;
  for (int i = 0; i < static_cast<int>(op); ++i) index += kOpTable[i].cost == Cost::arithmetic;
  return index;
}
inline constexpr int kArithmeticCount = arithmetic_index(static_cast<Op>(kOpCount));

}  // namespace hologram
