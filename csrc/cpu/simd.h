// A vector register as a value, on which the op table's expressions compile as on a scalar.
//
// Every function is inlined: the caller decides about the instruction set. W is the register's
// size in bytes: 16 for the baseline and NEON, 32 for AVX2, 64 for AVX-512.
#pragma once

#include <cstdint>
#include <type_traits>

#include "atlas/scalar.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // only code of one instruction set calls these
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

#define HOLOGRAM_INLINE [[gnu::always_inline]] inline
#define HOLOGRAM_INLINED __attribute__((always_inline))  // of a lambda

namespace hologram::cpu {

template <class E, int W>
struct NativeVector {
  typedef E type __attribute__((vector_size(W)));
};
template <class E, int W>
using Native = typename NativeVector<E, W>::type;

template <size_t size>
using UnsignedOf = std::conditional_t<
    size == 1, uint8_t,
    std::conditional_t<size == 2, uint16_t, std::conditional_t<size == 4, uint32_t, uint64_t>>>;

// Whether vectors of W bytes are the least that every processor of a kind has: no fused
// multiply-adds, no rounding to whole numbers. NEON, which all 64-bit ARM processors have, has
// both.
#if defined(__aarch64__)
template <int W>
inline constexpr bool kIsBaseline = false;
#else
template <int W>
inline constexpr bool kIsBaseline = W == 16;
#endif

// What a comparison of lanes gives: all bits of a lane, or none.
template <size_t element, int W>
struct LaneMask {
  Native<std::make_signed_t<UnsignedOf<element>>, W> v;

  HOLOGRAM_INLINE friend LaneMask operator&(LaneMask a, LaneMask b) { return {a.v & b.v}; }
  HOLOGRAM_INLINE friend LaneMask operator|(LaneMask a, LaneMask b) { return {a.v | b.v}; }
  HOLOGRAM_INLINE friend LaneMask operator!(LaneMask a) { return {~a.v}; }
};

template <class E, int W>
struct Simd {
  using Element = E;
  using V = Native<E, W>;
  using Mask = LaneMask<sizeof(E), W>;
  using Bits = Simd<UnsignedOf<sizeof(E)>, W>;
  static constexpr int kLanes = W / static_cast<int>(sizeof(E));

  V v;

  Simd() = default;
  HOLOGRAM_INLINE Simd(V native) : v(native) {}
  template <class S, class = std::enable_if_t<std::is_arithmetic_v<S>>>
  HOLOGRAM_INLINE explicit Simd(S scalar) : v(static_cast<E>(scalar) - V{}) {}  // x - 0 is x

  HOLOGRAM_INLINE friend Simd operator+(Simd a, Simd b) { return a.v + b.v; }
  HOLOGRAM_INLINE friend Simd operator-(Simd a, Simd b) { return a.v - b.v; }
  HOLOGRAM_INLINE friend Simd operator*(Simd a, Simd b) { return a.v * b.v; }
  HOLOGRAM_INLINE friend Simd operator/(Simd a, Simd b) { return a.v / b.v; }
  HOLOGRAM_INLINE friend Simd operator-(Simd a) { return -a.v; }
  HOLOGRAM_INLINE friend Simd operator&(Simd a, Simd b) { return a.v & b.v; }
  HOLOGRAM_INLINE friend Simd operator|(Simd a, Simd b) { return a.v | b.v; }
  HOLOGRAM_INLINE friend Simd operator^(Simd a, Simd b) { return a.v ^ b.v; }
  HOLOGRAM_INLINE friend Simd operator<<(Simd a, int n) { return a.v << n; }
  HOLOGRAM_INLINE friend Simd operator>>(Simd a, int n) { return a.v >> n; }
  HOLOGRAM_INLINE friend Mask operator==(Simd a, Simd b) { return {a.v == b.v}; }
  HOLOGRAM_INLINE friend Mask operator!=(Simd a, Simd b) { return {a.v != b.v}; }
  HOLOGRAM_INLINE friend Mask operator<(Simd a, Simd b) { return {a.v < b.v}; }
  HOLOGRAM_INLINE friend Mask operator<=(Simd a, Simd b) { return {a.v <= b.v}; }
  HOLOGRAM_INLINE friend Mask operator>(Simd a, Simd b) { return {a.v > b.v}; }
  HOLOGRAM_INLINE friend Mask operator>=(Simd a, Simd b) { return {a.v >= b.v}; }

  HOLOGRAM_INLINE Bits bits() const { return (typename Bits::V)v; }
  HOLOGRAM_INLINE static Simd from_bits(Bits bits) { return (V)bits.v; }
};

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> select(typename Simd<E, W>::Mask c, Simd<E, W> a, Simd<E, W> b) {
  if constexpr (W ==
                16) {  // else GCC compares the mask with zero again, lane by lane without SSE4.1
    using V = typename Simd<E, W>::V;
    using M = decltype(c.v);
    return (V)(((M)a.v & c.v) | ((M)b.v & ~c.v));
  } else {
    return c.v ? a.v : b.v;
  }
}

// The op table's helpers (atlas/scalar.h) for lanes, beside those for scalars. Integers wrap.
using hologram::is_nan;
using hologram::select;
using hologram::with_sign;
using hologram::wrap_abs;
using hologram::wrap_add;
using hologram::wrap_mul;
using hologram::wrap_neg;
using hologram::wrap_sub;

#define HOLOGRAM_WRAP(name, op)                                        \
  template <class E, int W>                                            \
  HOLOGRAM_INLINE Simd<E, W> wrap_##name(Simd<E, W> x, Simd<E, W> y) { \
    if constexpr (std::is_integral_v<E>) {                             \
      return Simd<E, W>::from_bits(x.bits() op y.bits());              \
    } else {                                                           \
      return x op y;                                                   \
    }                                                                  \
  }
HOLOGRAM_WRAP(add, +)
HOLOGRAM_WRAP(sub, -)
HOLOGRAM_WRAP(mul, *)
#undef HOLOGRAM_WRAP

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> wrap_neg(Simd<E, W> x) {
  if constexpr (std::is_integral_v<E>) {
    return wrap_sub(Simd<E, W>(0), x);
  } else {
    return -x;
  }
}

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> wrap_abs(Simd<E, W> x) {
  using T = Simd<E, W>;
  if constexpr (std::is_integral_v<E>) {
    return select(x < T(0), wrap_neg(x), x);
  } else {
    using U = typename T::Bits;
    return T::from_bits(x.bits() & U(~T(-0.0).bits().v));
  }
}

template <class E, int W>
HOLOGRAM_INLINE typename Simd<E, W>::Mask is_nan(Simd<E, W> x) {
  return x != x;
}

// The magnitude of x with the sign of y.
template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> with_sign(Simd<E, W> x, Simd<E, W> y) {
  using T = Simd<E, W>;
  const auto sign = T(-0.0).bits();
  return T::from_bits((x.bits() & typename T::Bits(~sign.v)) | (y.bits() & sign));
}

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> load_lanes(const void* p) {
  Simd<E, W> r;
  __builtin_memcpy(&r.v, p, sizeof r.v);
  return r;
}

template <class E, int W>
HOLOGRAM_INLINE void store_lanes(void* p, Simd<E, W> x) {
  __builtin_memcpy(p, &x.v, sizeof x.v);
}

// f32 lanes as two registers of f64 lanes, in order, and back with one rounding.
template <int W>
HOLOGRAM_INLINE void widen(Simd<float, W> x, Simd<double, W>& low, Simd<double, W>& high) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    low.v = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v));
    high.v = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
    return;
  } else if constexpr (W == 32) {
    low.v = _mm256_cvtps_pd(_mm256_castps256_ps128(x.v));
    high.v = _mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1));
    return;
  } else if constexpr (W == 16) {
    low.v = _mm_cvtps_pd(x.v);
    high.v = _mm_cvtps_pd(_mm_movehl_ps(x.v, x.v));
    return;
  }
#elif defined(__aarch64__)
  if constexpr (W == 16) {
    low.v = (Native<double, W>)vcvt_f64_f32(vget_low_f32((float32x4_t)x.v));
    high.v = (Native<double, W>)vcvt_high_f64_f32((float32x4_t)x.v);
    return;
  }
#endif
  for (int i = 0; i < x.kLanes / 2; ++i) {
    low.v[i] = static_cast<double>(x.v[i]);
    high.v[i] = static_cast<double>(x.v[i + x.kLanes / 2]);
  }
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> narrow(Simd<double, W> low, Simd<double, W> high) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    return Simd<float, W>(_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low.v)),
                                             _mm512_cvtpd_ps(high.v), 1));
  } else if constexpr (W == 32) {
    return Simd<float, W>(_mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low.v)),
                                               _mm256_cvtpd_ps(high.v), 1));
  } else if constexpr (W == 16) {
    return Simd<float, W>(_mm_movelh_ps(_mm_cvtpd_ps(low.v), _mm_cvtpd_ps(high.v)));
  }
#elif defined(__aarch64__)
  if constexpr (W == 16) {
    const float32x2_t first = vcvt_f32_f64((float64x2_t)low.v);
    return (Native<float, W>)vcvt_high_f32_f64(first, (float64x2_t)high.v);
  }
#endif
  Simd<float, W> r;
  for (int i = 0; i < r.kLanes / 2; ++i) {
    r.v[i] = static_cast<float>(low.v[i]);
    r.v[i + r.kLanes / 2] = static_cast<float>(high.v[i]);
  }
  return r;
}

}  // namespace hologram::cpu
