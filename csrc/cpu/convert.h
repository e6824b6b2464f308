// Conversions between element types, as torch's Tensor.to does them: for scalars and for lanes.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "atlas/dtype.h"
#include "cpu/simd.h"

namespace hologram::cpu {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

template <DType dtype>
struct ElementOf;
#define HOLOGRAM_ELEMENT(dtype, T) \
  template <>                      \
  struct ElementOf<DType::dtype> { \
    using type = T;                \
  };
HOLOGRAM_ELEMENT(b8, bool)
HOLOGRAM_ELEMENT(u8, uint8_t)
HOLOGRAM_ELEMENT(i8, int8_t)
HOLOGRAM_ELEMENT(i16, int16_t)
HOLOGRAM_ELEMENT(i32, int32_t)
HOLOGRAM_ELEMENT(i64, int64_t)
HOLOGRAM_ELEMENT(f16, F16)
HOLOGRAM_ELEMENT(bf16, Bf16)
HOLOGRAM_ELEMENT(f32, float)
HOLOGRAM_ELEMENT(f64, double)
#undef HOLOGRAM_ELEMENT
template <DType dtype>
using Element = typename ElementOf<dtype>::type;

// body.operator()<D>() with the element type of `dtype`; Truth is that of b8.
template <class Truth, class Body>
void with_element(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::b8: body.template operator()<Truth>(); break;
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
}

// ---- lanes of f32 that a narrow type can hold ----

// Nearest bf16, ties to even. NaN stays NaN.
template <int W>
HOLOGRAM_INLINE Simd<float, W> round_to_bf16(Simd<float, W> x) {
  using T = Simd<float, W>;
  using U = typename T::Bits;
  const U u = x.bits();
  const U rounded = u + U(0x7fff) + ((u >> 16) & U(1));
  return T::from_bits(select((is_nan(x)), u | U(0x400000), rounded) & U(0xffff0000u));
}

// The same where the low 16 bits of a NaN are zero. Such a value is called clean: it comes from a
// bf16, or an operation made the NaN, or it is no NaN.
template <int W>
HOLOGRAM_INLINE Simd<uint32_t, W> round_clean_bits(Simd<float, W> x) {
  using U = Simd<uint32_t, W>;
  const U u = x.bits();
#if defined(__x86_64__)
  if constexpr (W == 64) {
    // The odd bit in the high half, 0x7fff in the low one, and their sum: (u & 0x10000) | 0x7fff.
    const __m512i halves = _mm512_ternarylogic_epi32((__m512i)u.v, _mm512_set1_epi32(0x10000),
                                                     _mm512_set1_epi32(0x7fff), 0xea);
    return u + U((typename U::V)_mm512_madd_epi16(halves, _mm512_set1_epi16(1)));
  }
#endif
  return u + U(0x7fff) + ((u >> 16) & U(1));
}
template <int W>
HOLOGRAM_INLINE Simd<float, W> round_clean_to_bf16(Simd<float, W> x) {
  return Simd<float, W>::from_bits(round_clean_bits(x) & Simd<uint32_t, W>(0xffff0000u));
}

// Nearest f16, ties to even; infinite from 65520. NaN stays NaN.
template <int W>
HOLOGRAM_INLINE Simd<float, W> round_to_f16(Simd<float, W> x) {
  using T = Simd<float, W>;
  using U = typename T::Bits;
  const T a = wrap_abs(x);
  const U u = a.bits();
  T normal = T::from_bits((u + U(0xfff) + ((u >> 13) & U(1))) & U(~uint32_t{0x1fff}));
  normal = select(normal >= T(65536), T(__builtin_inf()), normal);
  const T denormal = (a + T(0.5)) - T(0.5);  // 2^-24 is the last bit of numbers beyond 1/2
  T r = select(a < T(0x1p-14), denormal, normal);
  r = select(is_nan(x), x, r);
  return with_sign(r, x);
}

// The bits of a bf16 or f16 in each lane, from a number that it can hold.
template <int W>
HOLOGRAM_INLINE Simd<uint32_t, W> bf16_bits(Simd<float, W> x) {
  return x.bits() >> 16;
}

template <int W>
HOLOGRAM_INLINE Simd<uint32_t, W> f16_bits(Simd<float, W> x) {
  using T = Simd<float, W>;
  using U = typename T::Bits;
  const T a = wrap_abs(x);
  const U normal = (a.bits() >> 13) - U(112 << 10);
  const U denormal = (a + T(0.5)).bits() - T(0.5).bits();
  U r = select((a < T(0x1p-14)), denormal, normal);
  r = select((a >= T(65536)), U(0x7c00), r);
  r = select((is_nan(x)), U(0x7e00), r);
  return r | ((x.bits() >> 16) & U(0x8000));
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> from_bf16_bits(Simd<uint32_t, W> bits) {
  return Simd<float, W>::from_bits(bits << 16);
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> from_f16_bits(Simd<uint32_t, W> bits) {
  using T = Simd<float, W>;
  using U = Simd<uint32_t, W>;
  const U magnitude = bits & U(0x7fff);
  const U bias(112 << 23);
  const U normal = (magnitude << 13) + bias;
  // A denormal's bits behind those of 2^-14, less 2^-14.
  const T denormal = T::from_bits(normal + U(1 << 23)) - T(0x1p-14);
  T r = T::from_bits(normal);
  r = select((magnitude < U(0x400)), denormal, r);
  r = select((magnitude >= U(0x7c00)), T::from_bits(normal + bias), r);
  return T::from_bits(r.bits() | ((bits & U(0x8000)) << 16));
}

// ---- scalars ----

// Truncates; what does not fit becomes the least integer, as x86 does it.
template <class I, class F>
HOLOGRAM_INLINE I truncate_to(F x) {
  constexpr F limit = static_cast<F>(uint64_t{1} << (8 * sizeof(I) - 1));
  return x >= -limit && x < limit ? static_cast<I>(x) : std::numeric_limits<I>::min();
}

template <class D, class S>
HOLOGRAM_INLINE D convert(S x) {
  if constexpr (std::is_same_v<S, Bf16>) {
    return convert<D>(from_bf16_bits(Simd<uint32_t, 16>(x.bits)).v[0]);
  } else if constexpr (std::is_same_v<S, F16>) {
    return convert<D>(from_f16_bits(Simd<uint32_t, 16>(x.bits)).v[0]);
  } else if constexpr (std::is_same_v<D, Bf16>) {
    const Simd<float, 16> y(convert<float>(x));
    return {static_cast<uint16_t>(bf16_bits(round_to_bf16(y)).v[0])};
  } else if constexpr (std::is_same_v<D, F16>) {
    const Simd<float, 16> y(convert<float>(x));
    return {static_cast<uint16_t>(f16_bits(round_to_f16(y)).v[0])};
  } else if constexpr (std::is_same_v<D, bool>) {
    return x != S(0);
  } else if constexpr (std::is_floating_point_v<S> && std::is_integral_v<D>) {
    if constexpr (std::is_same_v<D, uint8_t>) {
      return static_cast<D>(truncate_to<int64_t>(x));
    } else if constexpr (sizeof(D) < 4) {
      return static_cast<D>(truncate_to<int32_t>(x));
    } else {
      return truncate_to<D>(x);
    }
  } else {
    return static_cast<D>(x);
  }
}

}  // namespace hologram::cpu
