// The op table's math functions, for lanes of f32 and f64 and for scalars.
//
// exp, log, tanh and sigmoid of f32 are computed in f32 with explicit fused multiply-adds, which
// the baseline emulates (slowly): within 1.25 ulp. The other functions of f32 are computed in f64
// lanes: a relative error below 2^-31 before the one rounding, so within 0.51 ulp. f64 goes lane by
// lane to the C library. Special values are those of C's functions, denormal results are rounded as
// any other. Results do not depend on the instruction set. (test/test_math.cpp prints the errors.)
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

// exp(z) = scale * (1 + fraction) with |fraction| < 0.42; at |z| beyond 200 that of 200.
template <class D>
struct ExpParts {
  D scale, fraction;
};

template <class D>
HOLOGRAM_INLINE ExpParts<D> exp_parts_of(D integer_bits, D r) {
  using U = typename D::Bits;
  const D q = polynomial(r, 1.0, 0.5000000047146057, 0.16666666719028936, 0.04166635277111221,
                         0.00833329846980059, 0.0013941118895837, 0.00019899285575896282);
  return {D::from_bits((integer_bits.bits() + U(1023)) << 52), r * q};
}

template <class D>
HOLOGRAM_INLINE D clamp200(D z) {
  z = select(z < D(-200), D(-200), z);
  return select(z > D(200), D(200), z);
}

template <class D>
HOLOGRAM_INLINE ExpParts<D> exp_parts(D z) {
  z = clamp200(z);
  const D t = z * D(0x1.71547652b82fep+0) + D(kToInteger);
  return exp_parts_of(t, z - (t - D(kToInteger)) * D(0x1.62e42fefa39efp-1));
}

struct ExpLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    const auto e = exp_parts(x);
    return e.scale + e.scale * e.fraction;
  }
};

struct Exp2Lanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    x = clamp200(x);
    const D t = x + D(kToInteger);
    const auto e = exp_parts_of(t, (x - (t - D(kToInteger))) * D(0x1.62e42fefa39efp-1));
    return e.scale + e.scale * e.fraction;
  }
};

struct Expm1Lanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    const auto e = exp_parts(x);
    return select(x == D(0), x, (e.scale - D(1)) + e.scale * e.fraction);
  }
};

// x = 2^exponent * m with m in [sqrt(1/2), sqrt(2)); logarithm = log(m), relative error 2^-45.
template <class D>
struct LogParts {
  D exponent, logarithm;
};

template <class D>
HOLOGRAM_INLINE LogParts<D> log_parts(D x) {
  using U = typename D::Bits;
  const U bits = x.bits();
  const D biased = D::from_bits((bits >> 52) | U(0x4330000000000000u));  // 2^52 + exponent
  const D m = D::from_bits((bits & U(0x000fffffffffffffu)) | U(0x3ff0000000000000u));
  const auto high = m > D(0x1.6a09e667f3bcdp+0);
  const D f = select(high, m * D(0.5), m) - D(1);
  const D e = biased - D(0x1p52 + 1023);
  const D s = f / (f + D(2));
  const D log = s * polynomial(s * s, 1.9999999999999467, 0.6666666667967674, 0.399999948608963,
                               0.2857216951019829, 0.22174102945205396, 0.1961031447321988);
  return {select(high, e + D(1), e), log};
}

// The rest of log's domain: `log` where x is positive and finite.
template <class D>
HOLOGRAM_INLINE D log_domain(D x, D log) {
  log = select(x > D(0), log, D(__builtin_nan("")));
  log = select(x == D(0), D(-__builtin_inf()), log);
  return select(x == D(__builtin_inf()), x, log);
}

struct LogLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    const auto p = log_parts(x);
    return log_domain(x, p.exponent * D(0x1.62e42fefa39efp-1) + p.logarithm);
  }
};

struct Log2Lanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    const auto p = log_parts(x);
    return log_domain(x, p.exponent + p.logarithm * D(0x1.71547652b82fep+0));
  }
};

struct Log1pLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    const D small = x - D(0.5) * x * x;
    return select(wrap_abs(x) < D(0x1p-20), small, LogLanes::apply(x + D(1)));
  }
};

struct ErfLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    const D a = wrap_abs(x);
    const D near =
        x * polynomial(x * x, 1.1283791670615435, -0.3761263846802871, 0.11283782495236845,
                       -0.026865430727670243, 0.005221031807858023, -0.0008484080405535107,
                       0.00011265959025606609, -9.667044571486996e-06);
    const D b = select(a < D(4), a, D(4));
    const D t = D(1) / (b + D(2));
    const D w = polynomial(t, -0.00016423638708161766, 0.5701232402311412, 1.0350054655420764,
                           2.808242585430308, -1.7633327048911012, 18.28048562598341,
                           -30.497617560614998, 15.46911144488589);
    const D far = with_sign(D(1) - w * ExpLanes::apply(-b * b), x);
    return select(is_nan(x), x, select(a < D(1), near, far));
  }
};

// sin(x + quarter * pi / 2) for |x| up to kSineLimit.
inline constexpr double kSineLimit = 0x1p20;

template <class D>
HOLOGRAM_INLINE D sine(D x, unsigned quarter) {
  using U = typename D::Bits;
  const D t = x * D(0x1.45f306dc9c883p-1) + D(kToInteger);
  const D n = t - D(kToInteger);
  // pi / 2 in parts of 33 bits: n has up to 20, so the products are exact.
  const D r = (x - n * D(0x1.921fb544p+0)) - n * D(0x1.0b4611a6p-34) - n * D(0x1.3198a2e037073p-69);
  const U turn = t.bits() + U(quarter);
  const D z = r * r;
  const D s = r * polynomial(z, 0.9999999999956688, -0.16666666631563162, 0.008333328779736226,
                             -0.00019839201388559692, 2.717338055746829e-06);
  const D c = polynomial(z, 0.9999999999999444, -0.4999999999935047, 0.041666666543813194,
                         -0.001388888038869402, 2.4798927696218343e-05, -2.7173353546655085e-07);
  const U even = (turn & U(1)) - U(1);
  const U y = (s.bits() & even) | (c.bits() & U(~even.v));
  return D::from_bits(y ^ ((turn & U(2)) << 62));
}

struct SinLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    return select(x == D(0), x, sine(x, 0));
  }
};

struct CosLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x) {
    return sine(x, 1);
  }
};

// Nearest integer, ties to even, as x is in the default rounding mode.
template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_round(Simd<E, W> x) {
  using T = Simd<E, W>;
  const T limit(sizeof(E) == 4 ? 0x1p23 : 0x1p52), a = wrap_abs(x);
  return with_sign(select(a < limit, (a + limit) - limit, a), x);
}

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_floor(Simd<E, W> x) {
  using T = Simd<E, W>;
  const T r = math_round(x);
  return with_sign(select(r > x, r - T(1), r), x);
}

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_ceil(Simd<E, W> x) {
  using T = Simd<E, W>;
  const T r = math_round(x);
  return with_sign(select(r < x, r + T(1), r), x);
}

template <class E, int W>
HOLOGRAM_INLINE Simd<E, W> math_trunc(Simd<E, W> x) {
  return with_sign(math_floor(wrap_abs(x)), x);
}

struct PowLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x, D y) {
    const D a = wrap_abs(x);
    D r = Exp2Lanes::apply(y * Log2Lanes::apply(a));
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

// x * y + z rounded to odd, for f32 arguments: rounding that to f32 is rounding once.
struct FmaLanes {
  template <class D>
  HOLOGRAM_INLINE static D apply(D x, D y, D z) {
    using U = typename D::Bits;
    const D p = x * y;  // exact
    const D s = p + z;
    const D b = s - p;
    const D error = (p - (s - b)) + (z - b);
    const U inexact = (typename U::V)((error > D(0)) | (error < D(0))).v;
    // Away from zero where the error has the sum's sign. No comparison of integers: SSE2 has none.
    const U even = (s.bits() & U(1)) - U(1);
    const U step = U(1) - (((error.bits() ^ s.bits()) >> 63) << 1);
    return D::from_bits(s.bits() + (step & even & inexact));
  }
};

// ---- in f32 lanes ----

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_fma(Simd<float, W> x, Simd<float, W> y, Simd<float, W> z) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    return Simd<float, W>(_mm512_fmadd_ps(x.v, y.v, z.v));
  } else if constexpr (W == 32) {
    return Simd<float, W>(_mm256_fmadd_ps(x.v, y.v, z.v));
  }
#endif
  Simd<double, W> x0, x1, y0, y1, z0, z1;
  widen(x, x0, x1);
  widen(y, y0, y1);
  widen(z, z0, z1);
  return narrow(FmaLanes::apply(x0, y0, z0), FmaLanes::apply(x1, y1, z1));
}
template <int W>
HOLOGRAM_INLINE Simd<double, W> math_fma(Simd<double, W> x, Simd<double, W> y, Simd<double, W> z) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    return Simd<double, W>(_mm512_fmadd_pd(x.v, y.v, z.v));
  } else if constexpr (W == 32) {
    return Simd<double, W>(_mm256_fmadd_pd(x.v, y.v, z.v));
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

// exp(x) = 2^n * (1 + t); x in [-104, 89] or NaN.
template <int W>
struct FloatExp {
  using F = Simd<float, W>;
  using I = Simd<int32_t, W>;
  F n_bits, n, t;  // n_bits: 1.5 * 2^23 + n

  HOLOGRAM_INLINE explicit FloatExp(F x) {
    n_bits = math_fma(x, F(0x1.715476p+0), F(0x1.8p23));
    n = n_bits - F(0x1.8p23);
    F r = math_fma(n, F(-0x1.62e43p-1), x);
    r = math_fma(n, F(0x1.05c61p-29), r);
    const F p =
        fused_polynomial(r, 0.5, 0x1.555526p-3, 0x1.55553ep-5, 0x1.11d95p-7, 0x1.6cdef2p-10);
    t = math_fma(r * r, p, r);
  }
  // y * 2^n with one rounding, for y about 1.
  HOLOGRAM_INLINE F scale(F y) const {
#if defined(__x86_64__)
    if constexpr (W == 64) return F(_mm512_scalef_ps(y.v, n.v));
#endif
    const I i = (typename I::V)(n_bits.bits() - F(0x1.8p23).bits()).v;
    const I a = i >> 1;
    return y * power(a) * power(i - a);
  }

 private:
  HOLOGRAM_INLINE static F power(I n) {
    return F::from_bits((typename F::Bits::V)((n + I(127)) << 23).v);
  }
};

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_exp(Simd<float, W> x) {
  using F = Simd<float, W>;
  x = select(x < F(-104), F(-104), x);
  x = select(x > F(89), F(89), x);
  const FloatExp<W> e(x);
  return e.scale(F(1) + e.t);
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
  const F far = F(1) - F(2) / (e.scale(F(1) + e.t) + F(1));
  return with_sign(select(a < F(0.65), near, far), x);
}

// 1 / (1 + e) or e / (1 + e) with e = exp(-|x|), from e and 1 + e with the errors of their
// rounding.
template <int W>
HOLOGRAM_INLINE Simd<float, W> math_sigmoid(Simd<float, W> x) {
  using F = Simd<float, W>;
  F a = wrap_abs(x);
  a = select(a > F(104), F(104), a);
  const FloatExp<W> parts(-a);
  const F one(1);
  const F y = one + parts.t;
  const F e = parts.scale(y), e_low = parts.scale(parts.t - (y - one));
  const F d = one + e;
  const F d_low = (e - (d - one)) + e_low;
  const auto negative = x < F(0);
  const F top = select(negative, e, one), top_low = select(negative, e_low, F(0));
  const F inverse = one / d;
  const F q = top * inverse;
  const F rest = math_fma(-q, d_low, math_fma(-q, d, top) + top_low);
  return math_fma(rest, inverse, q);
}

template <int W>
HOLOGRAM_INLINE Simd<float, W> math_log(Simd<float, W> x) {
  using F = Simd<float, W>;
  using U = typename F::Bits;
  const auto small = x < F(0x1p-126);
  const U bits = select(small, x * F(0x1p23), x).bits();
  const F biased = F::from_bits((bits >> 23) | U(0x4b000000));  // 2^23 + exponent
  const F m = F::from_bits((bits & U(0x007fffff)) | U(0x3f800000));
  const auto high = m > F(0x1.6a09e6p+0);
  const F f = select(high, m * F(0.5), m) - F(1);
  F e = biased - select(small, F(0x1p23 + 127 + 23), F(0x1p23 + 127));
  e = select(high, e + F(1), e);
  const F z = f * f;
  F y =
      f * z *
      fused_polynomial(f, 0x1.555554p-2, -0x1.fffffcp-3, 0x1.999d5ap-3, -0x1.555b4ap-3,
                       0x1.23d21ap-3, -0x1.fcf4c6p-4, 0x1.dea282p-4, -0x1.d635bcp-4, 0x1.1d8ea6p-4);
  y = math_fma(e, F(-0x1.05c61p-29), y);
  y = math_fma(z, F(-0.5), y) + f;
  return log_domain(x, math_fma(e, F(0x1.62e43p-1), y));
}

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

// ---- the other functions of the op table ----

template <class Function, int W>
HOLOGRAM_INLINE Simd<float, W> by_doubles(Simd<float, W> x) {
  Simd<double, W> low, high;
  widen(x, low, high);
  return narrow(Function::apply(low), Function::apply(high));
}

#define HOLOGRAM_MATH(name, Function)                              \
  template <int W>                                                 \
  HOLOGRAM_INLINE Simd<float, W> math_##name(Simd<float, W> x) {   \
    return by_doubles<Function>(x);                                \
  }                                                                \
  template <int W>                                                 \
  HOLOGRAM_INLINE Simd<double, W> math_##name(Simd<double, W> x) { \
    for (int i = 0; i < x.kLanes; ++i) x.v[i] = ::name(x.v[i]);    \
    return x;                                                      \
  }
HOLOGRAM_MATH(exp2, Exp2Lanes)
HOLOGRAM_MATH(expm1, Expm1Lanes)
HOLOGRAM_MATH(log2, Log2Lanes)
HOLOGRAM_MATH(log1p, Log1pLanes)
HOLOGRAM_MATH(erf, ErfLanes)
#undef HOLOGRAM_MATH

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
#endif
  bool some = false;
  for (int i = 0; i < W / 4; ++i) some |= mask.v[i] != 0;
  return some;
}

// Arguments too large for the reduction in f64 go to the C library.
#define HOLOGRAM_MATH(name, Function)                                                     \
  template <int W>                                                                        \
  HOLOGRAM_INLINE Simd<float, W> math_##name(Simd<float, W> x) {                          \
    Simd<float, W> r = by_doubles<Function>(x);                                           \
    if (any(wrap_abs(x) > Simd<float, W>(kSineLimit))) {                                  \
      for (int i = 0; i < x.kLanes; ++i) {                                                \
        const double lane = static_cast<double>(x.v[i]);                                  \
        if (__builtin_fabs(lane) > kSineLimit) r.v[i] = static_cast<float>(::name(lane)); \
      }                                                                                   \
    }                                                                                     \
    return r;                                                                             \
  }                                                                                       \
  template <int W>                                                                        \
  HOLOGRAM_INLINE Simd<double, W> math_##name(Simd<double, W> x) {                        \
    for (int i = 0; i < x.kLanes; ++i) x.v[i] = ::name(x.v[i]);                           \
    return x;                                                                             \
  }
HOLOGRAM_MATH(sin, SinLanes)
HOLOGRAM_MATH(cos, CosLanes)
#undef HOLOGRAM_MATH

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
  return narrow(PowLanes::apply(x0, y0), PowLanes::apply(x1, y1));
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
