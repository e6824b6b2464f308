// Scalar helpers of the op table's expressions. Nothing here is undefined for any operand.
#pragma once

#include <type_traits>

namespace hologram {

// Integers: modulo 2^n. Floats: the IEEE operation. Narrow types are widened to `unsigned` first,
// or the usual promotion to int would bring the overflow back.
#define HOLOGRAM_WRAP(name, op)                                        \
  template <class T>                                                   \
  [[gnu::always_inline]] inline T wrap_##name(T x, T y) {              \
    if constexpr (std::is_integral_v<T>) {                             \
      using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>; \
      return static_cast<T>(static_cast<U>(x) op static_cast<U>(y));   \
    } else {                                                           \
      return x op y;                                                   \
    }                                                                  \
  }
HOLOGRAM_WRAP(add, +)
HOLOGRAM_WRAP(sub, -)
HOLOGRAM_WRAP(mul, *)
#undef HOLOGRAM_WRAP

// -INT_MIN = INT_MIN. Floats: flips the sign bit.
template <class T>
[[gnu::always_inline]] inline T wrap_neg(T x) {
  if constexpr (std::is_integral_v<T>) {
    return wrap_sub(T(0), x);
  } else {
    return -x;
  }
}

// |INT_MIN| = INT_MIN. Floats: clears the sign bit.
template <class T>
[[gnu::always_inline]] inline T wrap_abs(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x < 0 ? wrap_neg(x) : x;
  } else if constexpr (std::is_same_v<T, float>) {
    return __builtin_fabsf(x);
  } else {
    return __builtin_fabs(x);
  }
}

// c ? a : b. Vectors of lanes have an overload of their own.
template <class T>
[[gnu::always_inline]] inline T select(bool c, T a, T b) {
  return c ? a : b;
}

// NaN: false for every integer.
template <class T>
[[gnu::always_inline]] inline auto is_nan(T x) {
  if constexpr (std::is_integral_v<T>) {
    return false;
  } else {
    return x != x;
  }
}

// The magnitude of a float x with the sign of y.
template <class T>
[[gnu::always_inline]] inline T with_sign(T x, T y) {
  static_assert(std::is_floating_point_v<T>);
  return std::is_same_v<T, float> ? __builtin_copysignf(x, y) : __builtin_copysign(x, y);
}

// x between two bounds, `high` where they cross.
template <class T>
[[gnu::always_inline]] inline T clamp_value(T x, T low, T high) {
  T y = select(x < low, low, x);
  y = select(y > high, high, y);
  y = select(is_nan(high), high, y);
  return select(is_nan(low), low, y);
}

}  // namespace hologram
