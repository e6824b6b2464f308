// The op table's math functions, for lanes of f32 and f64 and for scalars.
//
// Functions of f32 are computed in f32 with explicit fused multiply-adds, which the baseline
// of x86-64 emulates (slowly): within 1.5 ulp. pow is computed in f64 lanes: a relative error below
// 2^-30 before the one rounding, so within 0.51 ulp. f64 goes lane by lane to the C library.
// Special values are those of C's functions, denormal results are rounded as any other. Results do
// not depend on the instruction set. (test/test_math.cpp prints the errors.)
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/simd.h"

namespace hologram::cpu {

// ---- in f64 lanes, for arguments that are f32 ----

template <class D>
HOLOGRAM_INLINE D polynomial(D, double c) {
  return D(c);
}
template <class D, class... Rest>
HOLOGRAM_INLINE D polynomial(D x, double c, Rest... rest) {
  return polynomial(x, rest...) * x + D(c);
}

// 2^52 + 2^51: adding it leaves the nearest integer in the low bits.
inline constexpr double kToInteger = 0x1.8p52;

// 2^x, relative error 2^-34; beyond 200 that of 200.
template <class D>
HOLOGRAM_INLINE D exp2_of_double(D x) {
  using U = typename D::Bits;
  x = select(x < D(-200), D(-200), x);
  x = select(x > D(200), D(200), x);
  const D t = x + D(kToInteger);
  const D power = D::from_bits((t.bits() + U(1023)) << 52);
  return power * polynomial(x - (t - D(kToInteger)), 1.0, 0.6931471805417174, 0.24022651075285406,
                            0.055504109624370045, 0.009618036977337723, 0.0013333430868891513,
                            0.00015467092340398517, 1.5314931646289428e-05);
}

// log2(x), relative error 2^-37, of positive numbers that are finite and not denormal.
// x = 2^n * m with m in [sqrt(1/2), sqrt(2)); log2(m) is odd in s = (m - 1) / (m + 1).
template <class D>
HOLOGRAM_INLINE D log2_of_double(D x) {
  using U = typename D::Bits;
  constexpr uint64_t kOne = 0x3ff0000000000000u, kRoot = 0x3fe6a09e667f3bcdu;
  const U biased = x.bits() + U(kOne - kRoot);  // the exponent is n + 1023
  const D m = D::from_bits(x.bits() + U(kOne) - (biased & U(0xfff0000000000000u)));
  const D n = D::from_bits((biased >> 52) | U(0x4330000000000000u)) - D(0x1p52 + 1023);
  const D s = (m - D(1)) / (m + D(1));
  return s * polynomial(s * s, 2.8853900817900855, 0.9617966733431105, 0.5770835846854244,
                        0.4116727371287426, 0.34072975043615256) +
         n;
}

enum class Rounding { nearest, down, up, zero };  // as x86 numbers them

// Whether the instruction set rounds to whole numbers; the baseline does not.
template <int W>
inline constexpr bool kRounds = !kIsBaseline<W>;

template <Rounding rounding, class E, int W>
HOLOGRAM_INLINE Simd<E, W> round_by(Simd<E, W> x) {
#if defined(__x86_64__)
  constexpr int kMode = static_cast<int>(rounding) | _MM_FROUND_NO_EXC;
  if constexpr (W == 64 && sizeof(E) == 4) {
    return Simd<E, W>(_mm512_roundscale_ps(x.v, kMode));
  } else if constexpr (W == 64) {
    return Simd<E, W>(_mm512_roundscale_pd(x.v, kMode));
  } else if constexpr (sizeof(E) == 4) {
    return Simd<E, W>(_mm256_round_ps(x.v, kMode));
  } else {
    return Simd<E, W>(_mm256_round_pd(x.v, kMode));
  }
#elif defined(__aarch64__)
  using V = Native<E, W>;
  if constexpr (sizeof(E) == 4) {
    const auto v = (float32x4_t)x.v;
    switch (rounding) {
      case Rounding::nearest: return (V)vrndnq_f32(v);
      case Rounding::down: return (V)vrndmq_f32(v);
      case Rounding::up: return (V)vrndpq_f32(v);
      case Rounding::zero: return (V)vrndq_f32(v);
    }
  } else {
    const auto v = (float64x2_t)x.v;
    switch (rounding) {
      case Rounding::nearest: return (V)vrndnq_f64(v);
      case Rounding::down: return (V)vrndmq_f64(v);
      case Rounding::up: return (V)vrndpq_f64(v);
      case Rounding::zero: return (V)vrndq_f64(v);
    }
  }
#endif
  return x;
}

// Nearest integer, ties to even, as x is in the default rounding mode.
template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_round(Simd<E, W> x) {
  using T = Simd<E, W>;
  if constexpr (kRounds<W>) return round_by<Rounding::nearest>(x);
  const T limit(sizeof(E) == 4 ? 0x1p23 : 0x1p52), a = wrap_abs(x);
  return with_sign(select(a < limit, (a + limit) - limit, a), x);
}

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_floor(Simd<E, W> x) {
  using T = Simd<E, W>;
  if constexpr (kRounds<W>) return round_by<Rounding::down>(x);
  const T r = math_round(x);
  return with_sign(select(r > x, r - T(1), r), x);
}

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_ceil(Simd<E, W> x) {
  using T = Simd<E, W>;
  if constexpr (kRounds<W>) return round_by<Rounding::up>(x);
  const T r = math_round(x);
  return with_sign(select(r < x, r + T(1), r), x);
}

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_trunc(Simd<E, W> x) {
  if constexpr (kRounds<W>) return round_by<Rounding::zero>(x);
  return with_sign(math_floor(wrap_abs(x)), x);
}

// pow for numbers that f32 has.
struct PowLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x, D y) {
    const D a = wrap_abs(x);
    D log = select(a == D(0), D(-__builtin_inf()), log2_of_double(a));
    log = select(a < D(__builtin_inf()), log, a);
    D r = exp2_of_double(y * log);
    const auto whole = math_round(y) == y;
    const D half = y * D(0.5);
    const auto odd = whole & (math_round(half) != half);
    r = select(odd, with_sign(r, x), r);
    const auto finite_negative = (x < D(0)) & (a != D(__builtin_inf()));
    r = select(finite_negative & !whole & (y == y), D(__builtin_nan("")), r);
    // pow(-1, +-inf) is 1, pow(1, y) and pow(x, 0) are 1 even for NaN.
    r = select((a == D(1)) & (wrap_abs(y) == D(__builtin_inf())), D(1), r);
    return select((x == D(1)) | (y == D(0)), D(1), r);
  }
};

// ---- in f32 lanes ----

// Of the baseline, which has no such instruction: a call, because it is much code.
Native<float, 16> fma_by_doubles(Native<float, 16> x, Native<float, 16> y, Native<float, 16> z);

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_fma(Simd<float, W> x, Simd<float, W> y, Simd<float, W> z) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    return Simd<float, W>(_mm512_fmadd_ps(x.v, y.v, z.v));
  } else if constexpr (W == 32) {
    return Simd<float, W>(_mm256_fmadd_ps(x.v, y.v, z.v));
  }
#elif defined(__aarch64__)
  if constexpr (W == 16) {
    return (Native<float, W>)vfmaq_f32((float32x4_t)z.v, (float32x4_t)x.v, (float32x4_t)y.v);
  }
#endif
  if constexpr (kIsBaseline<W>) return Simd<float, W>(fma_by_doubles(x.v, y.v, z.v));
}
template <int W>
HOLOGRAM_INLINE Simd<double, W> math_fma(Simd<double, W> x, Simd<double, W> y, Simd<double, W> z) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    return Simd<double, W>(_mm512_fmadd_pd(x.v, y.v, z.v));
  } else if constexpr (W == 32) {
    return Simd<double, W>(_mm256_fmadd_pd(x.v, y.v, z.v));
  }
#elif defined(__aarch64__)
  if constexpr (W == 16) {
    return (Native<double, W>)vfmaq_f64((float64x2_t)z.v, (float64x2_t)x.v, (float64x2_t)y.v);
  }
#endif
  for (int i = 0; i < x.kLanes; ++i) x.v[i] = ::fma(x.v[i], y.v[i], z.v[i]);
  return x;
}

template <class F>
HOLOGRAM_INLINE F fused_polynomial(F, double c) {
  return F(c);
}
template <class F, class... Rest>
HOLOGRAM_INLINE F fused_polynomial(F x, double c, Rest... rest) {
  return math_fma(fused_polynomial(x, rest...), x, F(c));
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> to_float(Simd<int32_t, W> x) {
  return Simd<float, W>(__builtin_convertvector(x.v, typename Simd<float, W>::V));
}

template <int W>
HOLOGRAM_INLINE bool any(LaneMask<4, W> mask) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    return _mm512_movepi32_mask((__m512i)mask.v) != 0;
  } else if constexpr (W == 32) {
    return _mm256_movemask_ps((__m256)mask.v) != 0;
  } else if constexpr (W == 16) {
    return _mm_movemask_ps((__m128)mask.v) != 0;
  }
#elif defined(__aarch64__)
  if constexpr (W == 16) return vmaxvq_u32((uint32x4_t)mask.v) != 0;
#endif
  bool some = false;
  for (int i = 0; i < W / 4; ++i) some |= mask.v[i] != 0;
  return some;
}

// Most functions have a short way for a register whose lanes are all ordinary, and the whole way
// for others. Both give the same bits where both apply.

// The bits of a float as a signed integer.
template <int W>
HOLOGRAM_INLINE Simd<int32_t, W> signed_bits(Simd<float, W> x) {
  return (Native<int32_t, W>)x.v;
}

// Whether any lane is not a normal positive number.
template <int W>
HOLOGRAM_INLINE bool any_beyond_normal(Simd<float, W> x) {
  using I = Simd<int32_t, W>;
  const I up = (Native<int32_t, W>)(x.bits() + Simd<uint32_t, W>(0x00800000)).v;
  return any(up < I(0x01000000));
}

// 2^n for a whole number n, from the bits of 1.5 * 2^23 + n.
inline constexpr float kToIntegerFloat = 0x1.8p23f;

// y * 2^n where y is about 1 and the result is normal.
template <int W>
HOLOGRAM_INLINE Simd<float, W> scale_normal(Simd<float, W> y, Simd<float, W> n_bits) {
  return Simd<float, W>::from_bits(y.bits() + (n_bits.bits() << 23));
}

// y * 2^n with one rounding, for y about 1 and any n within 250.
template <int W>
HOLOGRAM_INLINE Simd<float, W> scale_any(Simd<float, W> y, Simd<float, W> n_bits) {
  using F = Simd<float, W>;
  using I = Simd<int32_t, W>;
#if defined(__x86_64__)
  if constexpr (W == 64) return F(_mm512_scalef_ps(y.v, (n_bits - F(kToIntegerFloat)).v));
#endif
  const auto power = [](I n) {
    return F::from_bits((typename F::Bits::V)(wrap_add(n, I(127)) << 23).v);
  };
  const I n = wrap_sub(signed_bits(n_bits), signed_bits(F(kToIntegerFloat)));
  const I half = n >> 1;
  return y * power(half) * power(n - half);
}

// exp(x) = 2^n * (1 + t); x in [-104, 89] or NaN.
template <int W>
struct FloatExp {
  using F = Simd<float, W>;
  F n_bits, t;  // n_bits: 1.5 * 2^23 + n

  HOLOGRAM_INLINE explicit FloatExp(F x) {
    n_bits = math_fma(x, F(0x1.715476p+0), F(kToIntegerFloat));
    const F n = n_bits - F(kToIntegerFloat);
    F r = math_fma(n, F(-0x1.62e43p-1), x);
    r = math_fma(n, F(0x1.05c61p-29), r);
    const F p =
        fused_polynomial(r, 0.5, 0x1.555526p-3, 0x1.55553ep-5, 0x1.11d95p-7, 0x1.6cdef2p-10);
    t = math_fma(r * r, p, r);
  }
};
// The short way's x: 2^n and exp(x) are normal.
inline constexpr float kExpLimit = 87;

template <int W>
HOLOGRAM_INLINE Simd<float, W> exp_anywhere(Simd<float, W> x) {
  using F = Simd<float, W>;
  x = select(x < F(-104), F(-104), x);
  x = select(x > F(89), F(89), x);
  const FloatExp<W> e(x);
  return scale_any(F(1) + e.t, e.n_bits);
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_exp(Simd<float, W> x) {
  using F = Simd<float, W>;
  if (W == 64 || any(!(wrap_abs(x) < F(kExpLimit)))) return exp_anywhere(x);
  const FloatExp<W> e(x);
  return scale_normal(F(1) + e.t, e.n_bits);
}

// 2^x is (1 + f * p(f)) * 2^n, with f at most 1/2.
template <int W>
struct FloatExp2 {
  using F = Simd<float, W>;
  F n_bits, y;  // n_bits: 1.5 * 2^23 + n

  HOLOGRAM_INLINE explicit FloatExp2(F x) {
    n_bits = x + F(kToIntegerFloat);
    const F f = x - (n_bits - F(kToIntegerFloat));
    y = fused_polynomial(f, 1.0, 0x1.62e43p-1, 0x1.ebfbep-3, 0x1.c6af7ap-5, 0x1.3b2a2ap-7,
                         0x1.5f095ep-10, 0x1.444596p-13);
  }
};

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_exp2(Simd<float, W> x) {
  using F = Simd<float, W>;
  if (any(!(wrap_abs(x) < F(125)))) {
    x = select(x < F(-151), F(-151), x);
    x = select(x > F(129), F(129), x);
    const FloatExp2<W> e(x);
    return scale_any(e.y, e.n_bits);
  }
  const FloatExp2<W> e(x);
  return scale_normal(e.y, e.n_bits);
}

// 2^n * (exp(r) - 1) + (2^n - 1), with exp(r) from 3/4 to 3/2: there no term is larger than the sum
// by much. |x| below kExpLimit.
template <int W>
HOLOGRAM_INLINE Simd<float, W> expm1_near(Simd<float, W> x) {
  using F = Simd<float, W>;
  const F n_bits = math_fma(x, F(0x1.715476p+0), F(-0x1.5bf8p-4)) + F(kToIntegerFloat);
  const F n = n_bits - F(kToIntegerFloat);
  F r = math_fma(n, F(-0x1.62e43p-1), x);
  r = math_fma(n, F(0x1.05c61p-29), r);
  const F p = fused_polynomial(r, 0x1.000004p-1, 0x1.5554e8p-3, 0x1.5546bep-5, 0x1.11e5fep-7,
                               0x1.7eab58p-10);
  const F t = math_fma(r * r, p, r);
  const F power = scale_normal(F(1), n_bits);
  return with_sign(math_fma(power, t, power - F(1)), x);
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_expm1(Simd<float, W> x) {
  using F = Simd<float, W>;
  const auto near = wrap_abs(x) < F(kExpLimit);
  if (any(!near)) {
    const F far = select(x < F(0), F(-1), exp_anywhere(x));
    return select(near, expm1_near(select(near, x, F(0))), far);
  }
  return expm1_near(x);
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_tanh(Simd<float, W> x) {
  using F = Simd<float, W>;
  const F a = wrap_abs(x);
  const F z = a * a;
  const F near = math_fma(a * z,
                          fused_polynomial(z, -0x1.555556p-2, 0x1.1110d8p-3, -0x1.ba02aap-5,
                                           0x1.644a1ep-6, -0x1.0f1266p-7, 0x1.224fcep-9),
                          a);
  const F b = select(a > F(10), F(10), a);
  const FloatExp<W> e(b + b);
  const F far = F(1) - F(2) / (scale_normal(F(1) + e.t, e.n_bits) + F(1));
  return with_sign(select(a >= F(0.65), far, near), x);
}

// 1 / (1 + e) or e / (1 + e) with e = exp(-|x|), from e and 1 + e with the errors of their
// rounding.
template <int W>
HOLOGRAM_INLINE Simd<float, W> math_sigmoid(Simd<float, W> x) {
  using F = Simd<float, W>;
  const F one(1);
  const auto quotient = [&](F e, F e_low) __attribute__((always_inline)) {
    const F d = one + e;
    const F d_low = (e - (d - one)) + e_low;
    const auto negative = x < F(0);
    const F top = select(negative, e, one), top_low = select(negative, e_low, F(0));
    const F inverse = one / d;
    const F q = top * inverse;
    const F rest = math_fma(-q, d_low, math_fma(-q, d, top) + top_low);
    return math_fma(rest, inverse, q);
  };
  const F a = wrap_abs(x);
  if (W == 64 || any(!(a < F(kExpLimit)))) {
    const FloatExp<W> parts(-select(a > F(104), F(104), a));
    const F y = one + parts.t;
    return quotient(scale_any(y, parts.n_bits), scale_any(parts.t - (y - one), parts.n_bits));
  }
  const FloatExp<W> parts(-a);
  const F y = one + parts.t, power = scale_normal(one, parts.n_bits);
  return quotient(y * power, (parts.t - (y - one)) * power);
}

// x = 2^n * m with m in [sqrt(1/2), sqrt(2)), x normal and positive.
template <int W>
struct FloatLog {
  using F = Simd<float, W>;
  using I = Simd<int32_t, W>;
  // Integers wrap: what x is in other lanes, whose result is selected away, can be anything.
  I exponent;  // n << 23
  F f;         // m - 1

  HOLOGRAM_INLINE explicit FloatLog(F x) {
    const I bits = signed_bits(x);
    exponent = wrap_sub(bits, I(0x3f3504f3)) & I(static_cast<int32_t>(0xff800000));
    f = F((typename F::V)wrap_sub(bits, exponent).v) - F(1);
  }
  HOLOGRAM_INLINE F n() const { return to_float(exponent >> 23); }
  // log(1 + f) + n * log(2)
  HOLOGRAM_INLINE static F logarithm(F f, F n) {
    const F z = f * f;
    F y = f * z *
          fused_polynomial(f, 0x1.555554p-2, -0x1.000226p-2, 0x1.99a01cp-3, -0x1.54728ap-3,
                           0x1.22d92ep-3, -0x1.0d8242p-3, 0x1.055ec6p-3, -0x1.38c9dep-4);
    y = math_fma(n, F(-0x1.05c61p-29), y);
    y = math_fma(z, F(-0.5), y) + f;
    return math_fma(n, F(0x1.62e43p-1), y);
  }
  // log2(1 + f) + n: the first coefficient in two parts.
  HOLOGRAM_INLINE static F logarithm2(F f, F n) {
    const F p = fused_polynomial(f, 0x1.49dcfp-26, -0x1.71547p-1, 0x1.ec7096p-2, -0x1.715afep-2,
                                 0x1.277ec6p-2, -0x1.eaa1aep-3, 0x1.a2dd64p-3, -0x1.88103cp-3,
                                 0x1.7eaeaep-3, -0x1.c1f2p-4);
    return math_fma(f, F(0x1.715476p+0), f * p) + n;
  }
};

// The rest of a logarithm's domain: `log` where x is positive and finite.
template <int W>
HOLOGRAM_INLINE Simd<float, W> log_domain(Simd<float, W> x, Simd<float, W> log) {
  using F = Simd<float, W>;
  log = select(x > F(0), log, F(__builtin_nanf("")));
  log = select(x == F(0), F(-__builtin_inff()), log);
  return select(x == F(__builtin_inff()), x, log);
}

// The logarithm that `of` makes of f and n.
template <int W, class Of>
HOLOGRAM_INLINE Simd<float, W> log_anywhere(Simd<float, W> x, Of of) {
  using F = Simd<float, W>;
  if (any_beyond_normal(x)) {
    const auto small = x < F(0x1p-126);
    const FloatLog<W> parts(select(small, x * F(0x1p23), x));
    return log_domain(x, of(parts.f, parts.n() - select(small, F(23), F(0))));
  }
  const FloatLog<W> parts(x);
  return of(parts.f, parts.n());
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_log(Simd<float, W> x) {
  return log_anywhere(x, FloatLog<W>::logarithm);
}
template <int W>
HOLOGRAM_INLINE Simd<float, W> math_log2(Simd<float, W> x) {
  return log_anywhere(x, FloatLog<W>::logarithm2);
}

// 1 + x = 2^n * (1 + f), where f is rounded once: x * 2^-n + (2^-n - 1).
template <int W>
HOLOGRAM_INLINE Simd<float, W> math_log1p(Simd<float, W> x) {
  using F = Simd<float, W>;
  const F u = F(1) + x;
  const FloatLog<W> parts(u);
  // 2^(2 - n), as 2^-n may be denormal.
  const F four = F((typename F::V)wrap_sub(signed_bits(F(4)), parts.exponent).v);
  const F scaled = F((typename F::V)wrap_sub(signed_bits(x), parts.exponent).v);
  const F f = scaled + math_fma(four, F(0.25), F(-1));
  const F log = select(x == F(0), x, FloatLog<W>::logarithm(f, parts.n()));
  return any_beyond_normal(u) ? log_domain(u, log) : log;
}

// Close to zero x * p(x^2), then 1 - 2^-q(|x|).
template <int W>
HOLOGRAM_INLINE Simd<float, W> math_erf(Simd<float, W> x) {
  using F = Simd<float, W>;
  const F a = wrap_abs(x);
  const F near = math_fma(x,
                          fused_polynomial(a * a, 0x1.06eba6p-3, -0x1.8126eep-2, 0x1.ce1c18p-4,
                                           -0x1.b6a74cp-6, 0x1.47f3ep-8, -0x1.3d52c4p-11),
                          x);
  const F b = select(a < F(3.93), a, F(3.93));
  const F q = fused_polynomial(b, -0x1.f7982cp-13, -0x1.a0877ep+0, -0x1.d6823ep-1, -0x1.339e26p-3,
                               0x1.07bb5p-5, -0x1.21d4dcp-8, 0x1.2bd91cp-12);
  const FloatExp2<W> e(q);
  const F far = with_sign(F(1) - scale_normal(e.y, e.n_bits), x);
  return select(a >= F(0.9), far, near);
}

// x * Phi(x), Phi being the normal distribution's, as x / 2 + |x| * (1 / 2 - Phi(-|x|)). 2^q(|x|)
// is Phi(-|x|), and q(0) = -1. What is off is so in units of the last place of x, as in the formula
// with erf, x / 2 * (1 + erf(x / sqrt(2))). The signs keep -0.
template <int W>
HOLOGRAM_INLINE Simd<float, W> math_gelu(Simd<float, W> x) {
  using F = Simd<float, W>;
  const F a = wrap_abs(x);
  const F b = select(a < F(5.75), a, F(5.75));
  const F q =
      fused_polynomial(b, -1.0, -0x1.26aed4p+0, -0x1.d63ac2p-2, -0x1.ae0a88p-5, 0x1.ced352p-8,
                       -0x1.1d4146p-13, -0x1.873294p-13, 0x1.4ae9c4p-15, -0x1.7d38c2p-19);
  const FloatExp2<W> e(q);
  return math_fma(scale_normal(e.y, e.n_bits) - F(0.5), -a, x * F(0.5));
}

// x / 2 * (1 + tanh(u)), u being sqrt(2 / pi) * (x + 0.044715 * x^3), as max(x, 0) - |x| * e / (1 +
// e) where e is exp(-2 * |u|), 2^q(|x|): what is small of x < 0 is as exact as the rest. From where
// e would not be normal it is 0. -0 is kept, and of -infinity, like torch's, the result is NaN.
template <int W>
HOLOGRAM_INLINE Simd<float, W> math_gelu_tanh(Simd<float, W> x) {
  using F = Simd<float, W>;
  const F a = wrap_abs(x), one(1);
  const auto within = a < F(10.001);
  const F b = select(within, a, F(10.001));
  // Of small x with one's rounding: 2^0 is 1, and the result x / 2.
  const F q = math_fma(b, math_fma(b * b, F(-0x1.a5a7dp-4), F(-0x1.26aec2p+1)), one) - one;
  const FloatExp2<W> parts(q);
  const F e = select(within, scale_normal(parts.y, parts.n_bits), F(0));
  return math_fma(e * (one / (one + e)), -b, x * select(x < F(0), F(0), one));
}

// sin(x + quarter * pi / 2) for |x| up to kSineLimit.
inline constexpr float kSineLimit = 0x1p17f;

template <int W>
HOLOGRAM_INLINE Simd<float, W> sine(Simd<float, W> x, unsigned quarter) {
  using F = Simd<float, W>;
  using U = typename F::Bits;
  const F t = math_fma(x, F(0x1.45f306p-1), F(kToIntegerFloat));
  const F n = t - F(kToIntegerFloat);
  // pi / 2 in three parts. The first difference is exact, of the others `low` is what r lacks.
  const F first = math_fma(n, F(-0x1.921fb4p+0), x);
  const F second = n * F(0x1.4442dp-24);
  const F r = first - second;
  const F low = math_fma(n, F(-0x1.84698ap-48),
                         math_fma(n, F(-0x1.4442dp-24), second) + ((first - r) - second));
  const U turn = t.bits() + U(quarter);
  const F z = r * r;
  const F s =
      math_fma(r * z, fused_polynomial(z, -0x1.555544p-3, 0x1.1106b4p-7, -0x1.99122ap-13), low) + r;
  const F top = math_fma(z, F(-0.5), F(1));
  const F rest = math_fma(-r, low, math_fma(z, F(-0.5), F(1) - top));
  const F c =
      math_fma(z * z, fused_polynomial(z, 0x1.555548p-5, -0x1.6c0af4p-10, 0x1.99911cp-16), rest) +
      top;
  const auto odd = Simd<int32_t, W>((Native<int32_t, W>)(turn << 31).v) < Simd<int32_t, W>(0);
  return F::from_bits(select(odd, c, s).bits() ^ ((turn & U(2)) << 30));
}

// Arguments that are larger go to the C library.
template <int W, class Function>
HOLOGRAM_INLINE Simd<float, W> sine_anywhere(Simd<float, W> x, Simd<float, W> r, Function exact) {
  if (any(!(wrap_abs(x) <= Simd<float, W>(kSineLimit)))) {
    for (int i = 0; i < x.kLanes; ++i) {
      const double lane = static_cast<double>(x.v[i]);
      if (!(__builtin_fabs(lane) <= static_cast<double>(kSineLimit))) {
        r.v[i] = static_cast<float>(exact(lane));
      }
    }
  }
  return r;
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_sin(Simd<float, W> x) {
  const auto r = select(x == Simd<float, W>(0), x, sine(x, 0));
  return sine_anywhere(x, r, [](double lane) { return ::sin(lane); });
}
template <int W>
HOLOGRAM_INLINE Simd<float, W> math_cos(Simd<float, W> x) {
  return sine_anywhere(x, sine(x, 1), [](double lane) { return ::cos(lane); });
}

// ---- f64 lanes, one by one ----

template <int W>
HOLOGRAM_INLINE Simd<double, W> math_exp(Simd<double, W> x) {
  for (int i = 0; i < x.kLanes; ++i) x.v[i] = ::exp(x.v[i]);
  return x;
}
template <int W>
HOLOGRAM_INLINE Simd<double, W> math_log(Simd<double, W> x) {
  for (int i = 0; i < x.kLanes; ++i) x.v[i] = ::log(x.v[i]);
  return x;
}
template <int W>
HOLOGRAM_INLINE Simd<double, W> math_tanh(Simd<double, W> x) {
  for (int i = 0; i < x.kLanes; ++i) x.v[i] = ::tanh(x.v[i]);
  return x;
}
template <int W>
HOLOGRAM_INLINE Simd<double, W> math_sigmoid(Simd<double, W> x) {
  return Simd<double, W>(1) / (Simd<double, W>(1) + math_exp(-x));
}

#define HOLOGRAM_MATH(name)                                        \
  template <int W>                                                 \
  HOLOGRAM_INLINE Simd<double, W> math_##name(Simd<double, W> x) { \
    for (int i = 0; i < x.kLanes; ++i) x.v[i] = ::name(x.v[i]);    \
    return x;                                                      \
  }
HOLOGRAM_MATH(exp2)
HOLOGRAM_MATH(expm1)
HOLOGRAM_MATH(log2)
HOLOGRAM_MATH(log1p)
HOLOGRAM_MATH(erf)
HOLOGRAM_MATH(sin)
HOLOGRAM_MATH(cos)
#undef HOLOGRAM_MATH
template <int W>
HOLOGRAM_INLINE Simd<double, W> math_gelu(Simd<double, W> x) {
  using D = Simd<double, W>;
  return x * D(0.5) * (math_erf(x * D(0.70710678118654752)) + D(1));
}
template <int W>
HOLOGRAM_INLINE Simd<double, W> math_gelu_tanh(Simd<double, W> x) {
  using D = Simd<double, W>;
  const D inner = (x + x * x * x * D(0.044715)) * D(0.79788456080286536);
  return x * D(0.5) * (math_tanh(inner) + D(1));
}

// ---- the other functions of the op table ----

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_sqrt(Simd<E, W> x) {
#if defined(__x86_64__)
  if constexpr (W == 64 && sizeof(E) == 4) {
    return Simd<E, W>(_mm512_sqrt_ps(x.v));
  } else if constexpr (W == 64) {
    return Simd<E, W>(_mm512_sqrt_pd(x.v));
  } else if constexpr (W == 32 && sizeof(E) == 4) {
    return Simd<E, W>(_mm256_sqrt_ps(x.v));
  } else if constexpr (W == 32) {
    return Simd<E, W>(_mm256_sqrt_pd(x.v));
  } else if constexpr (W == 16 && sizeof(E) == 4) {
    return Simd<E, W>(_mm_sqrt_ps(x.v));
  } else if constexpr (W == 16) {
    return Simd<E, W>(_mm_sqrt_pd(x.v));
  }
#elif defined(__aarch64__)
  if constexpr (W == 16 && sizeof(E) == 4) {
    return (Native<E, W>)vsqrtq_f32((float32x4_t)x.v);
  } else if constexpr (W == 16) {
    return (Native<E, W>)vsqrtq_f64((float64x2_t)x.v);
  }
#endif
  for (int i = 0; i < x.kLanes; ++i) {
    x.v[i] = sizeof(E) == 4 ? __builtin_sqrtf(x.v[i]) : __builtin_sqrt(x.v[i]);
  }
  return x;
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_pow(Simd<float, W> x, Simd<float, W> y) {
  Simd<double, W> x0, x1, y0, y1;
  widen(x, x0, x1);
  widen(y, y0, y1);
  if (any_beyond_normal(x) || any(!(wrap_abs(y) < Simd<float, W>(__builtin_inff())))) {
    return narrow(PowLanes::apply(x0, y0), PowLanes::apply(x1, y1));
  }
  return narrow(exp2_of_double(y0 * log2_of_double(x0)), exp2_of_double(y1 * log2_of_double(x1)));
}
template <int W>
HOLOGRAM_INLINE Simd<double, W> math_pow(Simd<double, W> x, Simd<double, W> y) {
  for (int i = 0; i < x.kLanes; ++i) x.v[i] = ::pow(x.v[i], y.v[i]);
  return x;
}

// Scalars, by the lanes of the baseline.
#define HOLOGRAM_MATH(name)                                                 \
  template <class E, class = std::enable_if_t<std::is_floating_point_v<E>>> \
  E math_##name(E x) {                                                      \
    return math_##name(Simd<E, 16>(x)).v[0];                                \
  }
HOLOGRAM_MATH(sqrt)
HOLOGRAM_MATH(exp)
HOLOGRAM_MATH(exp2)
HOLOGRAM_MATH(expm1)
HOLOGRAM_MATH(log)
HOLOGRAM_MATH(log2)
HOLOGRAM_MATH(log1p)
HOLOGRAM_MATH(tanh)
HOLOGRAM_MATH(sigmoid)
HOLOGRAM_MATH(erf)
HOLOGRAM_MATH(gelu)
HOLOGRAM_MATH(gelu_tanh)
HOLOGRAM_MATH(sin)
HOLOGRAM_MATH(cos)
HOLOGRAM_MATH(floor)
HOLOGRAM_MATH(ceil)
HOLOGRAM_MATH(round)
HOLOGRAM_MATH(trunc)
#undef HOLOGRAM_MATH
template <class E, class = std::enable_if_t<std::is_floating_point_v<E>>>
E math_pow(E x, E y) {
  return math_pow(Simd<E, 16>(x), Simd<E, 16>(y)).v[0];
}
template <class E, class = std::enable_if_t<std::is_floating_point_v<E>>>
E math_fma(E x, E y, E z) {
  return math_fma(Simd<E, 16>(x), Simd<E, 16>(y), Simd<E, 16>(z)).v[0];
}

}  // namespace hologram::cpu
