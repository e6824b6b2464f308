#include "cpu/pointwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "check.h"

using namespace hologram;

namespace {

template <class T>
constexpr DType kDType = std::is_same_v<T, float>     ? DType::f32
                         : std::is_same_v<T, double>  ? DType::f64
                         : std::is_same_v<T, int32_t> ? DType::i32
                                                      : DType::i64;

// Equal in bits, all NaNs being one.
template <class T>
bool identical(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return a == b && std::signbit(a) == std::signbit(b);
  } else {
    return a == b;
  }
}

// What the operations mean, written without the op table: integers through 128 bits, signs and NaNs
// by cases.
template <class T>
T expected(Op op, T x, T y) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = __int128;
    const Wide a = x, b = y;
    Wide wide = 0;
    switch (op) {
      case Op::add: wide = a + b; break;
      case Op::sub: wide = a - b; break;
      case Op::mul: wide = a * b; break;
      case Op::maximum: wide = std::max(a, b); break;
      case Op::minimum: wide = std::min(a, b); break;
      case Op::neg: wide = -a; break;
      case Op::abs: wide = a < 0 ? -a : a; break;
      case Op::relu: wide = std::max<Wide>(a, 0); break;
      default: check::fail(__FILE__, __LINE__, op_info(op).name);
    }
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(wide));
  } else {
    switch (op) {
      case Op::add: return x + y;
      case Op::sub: return x - y;
      case Op::mul: return x * y;
      case Op::div: return x / y;
      case Op::maximum:
        if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<T>::quiet_NaN();
        return x == y ? y : std::fmax(x, y);
      case Op::minimum:
        if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<T>::quiet_NaN();
        return x == y ? y : std::fmin(x, y);
      case Op::neg: return std::copysign(x, std::signbit(x) ? T(1) : T(-1));
      case Op::abs: return std::copysign(x, T(1));
      case Op::relu: return std::isnan(x) || x == 0 ? x : std::fmax(x, T(0));
      case Op::reciprocal: return T(1) / x;
      default: check::fail(__FILE__, __LINE__, op_info(op).name);
    }
  }
  return T(0);
}

template <class T>
std::vector<T> special_values() {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_integral_v<T>) {
    return {0, 1, -1, 2, -2, 7, Limits::max(), Limits::min(), Limits::min() + 1, Limits::max() / 2};
  } else {
    return {T(0),
            -T(0),
            T(1),
            T(-1),
            T(0.1),
            T(-3.75),
            T(1) / 3,
            Limits::max(),
            Limits::lowest(),
            Limits::min(),
            -Limits::min(),
            Limits::denorm_min(),
            -Limits::denorm_min(),
            Limits::infinity(),
            -Limits::infinity(),
            Limits::quiet_NaN(),
            Limits::epsilon(),
            T(16777216)};
  }
}

// Every pair of special values, then random bits.
template <class T>
void make_operands(std::vector<T>& x, std::vector<T>& y) {
  for (const T a : special_values<T>()) {
    for (const T b : special_values<T>()) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  std::mt19937_64 random(7);
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  while (x.size() < 1000) {
    x.push_back(std::bit_cast<T>(static_cast<Bits>(random())));
    y.push_back(std::bit_cast<T>(static_cast<Bits>(random())));
  }
}

std::vector<cpu::Isa> supported_sets() {
  switch (cpu::best_isa()) {
    case cpu::Isa::avx512: return {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512};
    case cpu::Isa::avx2: return {cpu::Isa::baseline, cpu::Isa::avx2};
    default: return {cpu::best_isa()};
  }
}

template <class T>
void compare(const char* what, Op op, cpu::Isa isa, size_t n, const std::vector<T>& x,
             const std::vector<T>& y, const std::vector<T>& out) {
  for (size_t i = 0; i < n; ++i) {
    const T want = expected(op, x[i], y[i]);
    if (identical(out[i], want)) continue;
    check::fail(__FILE__, __LINE__,
                std::string(op_info(op).name) + " " + dtype_name(kDType<T>) + " " + what + " " +
                    cpu::isa_name(isa) + " (" + check::text(x[i]) + ", " + check::text(y[i]) +
                    ") is " + check::text(out[i]) + ", expected " + check::text(want));
    return;
  }
  for (size_t i = n; i < out.size(); ++i) {
    if (identical(out[i], T(77))) continue;
    check::fail(__FILE__, __LINE__, std::string(op_info(op).name) + " wrote past the end");
    return;
  }
}

template <class T>
void check_op(Op op, cpu::Isa isa) {
  const DType dtype = kDType<T>;
  const OpInfo& info = op_info(op);
  const bool here = info.supports(dtype);
  const auto unary = cpu::unary(op, dtype, isa);
  const auto binary = cpu::binary(op, dtype, isa);
  const auto binary_scalar = cpu::binary_scalar(op, dtype, isa);
  const auto scalar_binary = cpu::scalar_binary(op, dtype, isa);
  CHECK_EQ(unary != nullptr, here && info.arity == 1);
  CHECK_EQ(binary != nullptr, here && info.arity == 2);
  CHECK_EQ(binary_scalar != nullptr, here && info.arity == 2);
  CHECK_EQ(scalar_binary != nullptr, here && info.arity == 2);
  if (!here) return;

  std::vector<T> x, y;
  make_operands(x, y);
  const size_t size = x.size() + 1;
  const auto blank = [&] { return std::vector<T>(size, T(77)); };
  // `out` starting as a copy of an input, for out = x and out = y.
  const auto copy = [&](const std::vector<T>& from, size_t n) {
    std::vector<T> out = blank();
    std::copy_n(from.begin(), n, out.begin());
    return out;
  };
  for (const size_t n : {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 129, 1000}) {
    std::vector<T> out = blank();
    if (info.arity == 1) {
      unary(x.data(), out.data(), n);
      compare("unary", op, isa, n, x, y, out);
      out = copy(x, n);
      unary(out.data(), out.data(), n);
      compare("unary in place", op, isa, n, x, y, out);
      continue;
    }
    binary(x.data(), y.data(), out.data(), n);
    compare("binary", op, isa, n, x, y, out);
    out = copy(x, n);
    binary(out.data(), y.data(), out.data(), n);
    compare("binary out = x", op, isa, n, x, y, out);
    out = copy(y, n);
    binary(x.data(), out.data(), out.data(), n);
    compare("binary out = y", op, isa, n, x, y, out);
    out = copy(x, n);
    binary(out.data(), out.data(), out.data(), n);
    compare("binary x = y = out", op, isa, n, x, x, out);
  }
  if (info.arity != 2) return;
  for (const T scalar : special_values<T>()) {
    const std::vector<T> scalars(x.size(), scalar);
    const size_t n = x.size();
    std::vector<T> out = blank();
    binary_scalar(x.data(), &scalar, out.data(), n);
    compare("binary_scalar", op, isa, n, x, scalars, out);
    out = copy(x, n);
    binary_scalar(out.data(), &scalar, out.data(), n);
    compare("binary_scalar in place", op, isa, n, x, scalars, out);
    out = copy(x, n);
    scalar_binary(out.data(), &scalar, out.data(), n);
    compare("scalar_binary in place", op, isa, n, scalars, x, out);
  }
}

template <class T>
T to_element(double value) {
  if constexpr (std::is_integral_v<T>) {
    if (value == kInfinity) return std::numeric_limits<T>::max();
    if (value == -kInfinity) return std::numeric_limits<T>::min();
  }
  return static_cast<T>(value);
}

// The algebra of a row, on every pair of special values and on random bits.
template <class T>
void check_algebra(Op op) {
  const OpInfo& info = op_info(op);
  if (!info.supports(kDType<T>)) return;
  std::vector<T> x, y;
  make_operands(x, y);
  const auto f = [&](T a, T b) {
    T out;
    if (info.arity == 1) {
      cpu::unary(op, kDType<T>)(&a, &out, 1);
    } else {
      cpu::binary(op, kDType<T>)(&a, &b, &out, 1);
    }
    return out;
  };
  bool commutative = true, idempotent = true, involution = true, identity = true;
  for (size_t i = 0; i < x.size(); ++i) {
    const T a = x[i], b = y[i];
    const T once = f(a, b);
    commutative = commutative && identical(once, f(b, a));
    idempotent =
        idempotent && (info.arity == 1 ? identical(f(once, once), once) : identical(f(a, a), a));
    involution = involution && identical(f(once, once), a);
    identity = identity && identical(f(a, to_element<T>(info.identity)), a);
  }
  const std::string where = std::string(info.name) + " " + dtype_name(kDType<T>);
  const auto require = [&](bool claimed, bool holds, const char* what) {
    if (claimed && !holds) check::fail(__FILE__, __LINE__, where + " is not " + what);
  };
  require(info.has(kCommutative), commutative, "commutative");
  require(info.has(kIdempotent), idempotent, "idempotent");
  require(info.has(kInvolution), involution, "an involution");
  require(info.has_identity(), identity, "left alone by its identity");
}

}  // namespace

TEST(pointwise_matches_the_definition_on_every_instruction_set) {
  for (const cpu::Isa isa : supported_sets()) {
    for (int i = 0; i < kPointwiseOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      check_op<float>(op, isa);
      check_op<double>(op, isa);
      check_op<int32_t>(op, isa);
      check_op<int64_t>(op, isa);
    }
  }
}

TEST(pointwise_algebra_holds_in_bits) {
  for (int i = 0; i < kPointwiseOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    check_algebra<float>(op);
    check_algebra<double>(op);
    check_algebra<int32_t>(op);
    check_algebra<int64_t>(op);
  }
}

TEST(pointwise_dtypes_without_kernels) {
  for (const DType dtype : {DType::b8, DType::u8, DType::f16, DType::bf16, DType::c64}) {
    CHECK(cpu::binary(Op::add, dtype) == nullptr);
    CHECK(cpu::unary(Op::neg, dtype) == nullptr);
  }
}
