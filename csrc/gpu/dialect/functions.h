// The op table's functions.
//
// Those of f32 are the steps of cpu/math.h, whose text says why each is what it is, for one number
// with explicit fused multiply-adds: the same bits, within 1.5 ulp, on every device that computes
// as IEEE 754 says. The libraries of the two languages are further off, and Metal's lacks some.
// What differs by device: the sine and cosine of numbers beyond 2^17, which are those of CUDA's
// library for f64, on Metal those of large_sine.h. f64 is CUDA's library, within 2 ulp.
#ifndef HOLOGRAM_GPU_FUNCTIONS_H
#define HOLOGRAM_GPU_FUNCTIONS_H

// c + x * (next coefficient + x * ...)
HG_DEV float hg_polynomial(float, float c) {
  return c;
}
template <class... Rest>
HG_DEV float hg_polynomial(float x, float c, Rest... rest) {
  return hg_fma(hg_polynomial(x, rest...), x, c);
}

// y * 2^n with one rounding, n within 250 given as 1.5 * 2^23 + n.
HG_DEV float hg_scale(float y, float n_bits) {
  // What the bits have beside n is shifted out.
  const hg_u32 bits = hg_as_u32(n_bits), half = bits >> 1;
  const float power = hg_as_f32((half << 23) + 0x3f800000u);
  return y * power * hg_as_f32(((bits - half) << 23) + 0x3f800000u);
}

// The same where n is at most 0 and y is within 2^±30: the power of two is 2^64 too large.
HG_DEV float hg_power_down(float n_bits) {
  return hg_as_f32((hg_as_u32(n_bits) << 23) + (191u << 23));
}
HG_DEV float hg_scale_down(float y, float power) {
  return y * power * 5.421010862427522e-20f;
}

// The same where y and the result are normal.
HG_DEV float hg_scale_normal(float y, float n_bits) {
  return hg_as_f32(hg_as_u32(y) + (hg_as_u32(n_bits) << 23));
}

// exp(x) = 2^n * (1 + t); x in [-104, 89] or NaN.
struct hg_exp_parts {
  float n_bits, t;  // n_bits: 1.5 * 2^23 + n
};
HG_DEV hg_exp_parts hg_exp_of(float x) {
  hg_exp_parts e;
  e.n_bits = hg_fma(x, 1.442695f, 12582912.0f);
  const float n = e.n_bits - 12582912.0f;
  float r = hg_fma(n, -0.6931472f, x);
  r = hg_fma(n, 1.9046542e-09f, r);
  const float p = hg_polynomial(r, 0.5f, 0.16666631f, 0.041666623f, 0.0083572045f, 0.001391872f);
  e.t = hg_fma(r * r, p, r);
  return e;
}

// Where the result may not be normal.
HG_DEV float hg_exp_of_large(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const hg_exp_parts e = hg_exp_of(x);
  return hg_scale(1.0f + e.t, e.n_bits);
}
HG_DEV float math_exp(float x) {
  if (!(hg_fabs(x) < 87.0f)) return hg_exp_of_large(x);
  const hg_exp_parts e = hg_exp_of(x);
  return hg_scale_normal(1.0f + e.t, e.n_bits);
}

HG_DEV hg_exp_parts hg_exp2_of(float x) {
  hg_exp_parts e;
  e.n_bits = x + 12582912.0f;
  const float f = x - (e.n_bits - 12582912.0f);
  e.t = hg_polynomial(f, 1.0f, 0.6931472f, 0.2402265f, 0.055503596f, 0.009618063f, 0.0013390983f,
                      0.00015462485f);
  return e;
}
HG_DEV float math_exp2(float x) {
  x = x < -151.0f ? -151.0f : x;
  x = x > 129.0f ? 129.0f : x;
  const hg_exp_parts e = hg_exp2_of(x);
  return hg_scale(e.t, e.n_bits);
}

HG_DEV float math_expm1(float x) {
  if (!(hg_fabs(x) < 87.0f)) return x < 0.0f ? -1.0f : math_exp(x);
  const float n_bits = hg_fma(x, 1.442695f, -0.08495331f) + 12582912.0f;
  const float n = n_bits - 12582912.0f;
  float r = hg_fma(n, -0.6931472f, x);
  r = hg_fma(n, 1.9046542e-09f, r);
  const float p =
      hg_polynomial(r, 0.5000001f, 0.16666585f, 0.04165971f, 0.008358716f, 0.0014597676f);
  const float t = hg_fma(r * r, p, r);
  const float power = hg_scale(1.0f, n_bits);
  return hg_copysign(hg_fma(power, t, power - 1.0f), x);
}

HG_DEV float math_tanh(float x) {
  const float a = hg_fabs(x);
  const float z = a * a;
  const float near = hg_fma(a * z,
                            hg_polynomial(z, -0.33333334f, 0.13333291f, -0.05395635f, 0.021746187f,
                                          -0.008272457f, 0.0022149028f),
                            a);
  const float b = a > 10.0f ? 10.0f : a;
  const hg_exp_parts e = hg_exp_of(b + b);
  const float far = 1.0f - 2.0f * hg_inverse(hg_scale_normal(1.0f + e.t, e.n_bits) + 1.0f);
  return hg_copysign(a >= 0.65f ? far : near, x);
}

HG_DEV float math_sigmoid(float x) {
  const float a = hg_fabs(x);
  const hg_exp_parts parts = hg_exp_of(-(a > 104.0f ? 104.0f : a));
  const float y = 1.0f + parts.t;
  // exp(-|x|), and what it lacks.
  const float power = hg_power_down(parts.n_bits);
  const float e = hg_scale_down(y, power);
  const float e_low = hg_scale_down(parts.t - (y - 1.0f), power);
  const float d = 1.0f + e;
  const float d_low = (e - (d - 1.0f)) + e_low;
  const float top = x < 0.0f ? e : 1.0f, top_low = x < 0.0f ? e_low : 0.0f;
  const float inverse = hg_inverse(d);
  const float q = top * inverse;
  const float rest = hg_fma(-q, d_low, hg_fma(-q, d, top) + top_low);
  return hg_fma(rest, inverse, q);
}

// x = 2^n * (1 + f) of a normal positive x, with 1 + f in [sqrt(1/2), sqrt(2)).
struct hg_log_parts {
  hg_u32 exponent;  // n << 23
  float f;
};
HG_DEV hg_log_parts hg_log_of(float x) {
  hg_log_parts parts;
  const hg_u32 bits = hg_as_u32(x);
  parts.exponent = (bits - 0x3f3504f3u) & 0xff800000u;
  parts.f = hg_as_f32(bits - parts.exponent) - 1.0f;
  return parts;
}
HG_DEV float hg_log_n(hg_log_parts parts) {
  return static_cast<float>(static_cast<hg_i32>(parts.exponent) >> 23);
}
// log(1 + f) + n * log(2)
HG_DEV float hg_logarithm(float f, float n) {
  const float z = f * f;
  float y = f * z *
            hg_polynomial(f, 0.3333333f, -0.2500082f, 0.20001242f, -0.16623409f, 0.1420158f,
                          -0.1315961f, 0.12762217f, -0.07636439f);
  y = hg_fma(n, -1.9046542e-09f, y);
  y = hg_fma(z, -0.5f, y) + f;
  return hg_fma(n, 0.6931472f, y);
}
// log2(1 + f) + n
HG_DEV float hg_logarithm2(float f, float n) {
  const float p =
      hg_polynomial(f, 1.9200556e-08f, -0.72134733f, 0.48089823f, -0.36069867f, 0.28856954f,
                    -0.23956619f, 0.20452383f, -0.19143721f, 0.18685661f, -0.10984993f);
  return hg_fma(f, 1.442695f, f * p) + n;
}
// The rest of a logarithm's domain: `log` where x is positive and finite.
HG_DEV float hg_log_domain(float x, float log) {
  log = x > 0.0f ? log : hg_as_f32(0x7fc00000u);
  log = x == 0.0f ? hg_as_f32(0xff800000u) : log;
  return x == hg_as_f32(0x7f800000u) ? x : log;
}
// A denormal times 2^23.
HG_DEV bool hg_log_small(float x) {
  return x < 1.1754944e-38f;
}
HG_DEV float math_log(float x) {
  const bool small = hg_log_small(x);
  const hg_log_parts parts = hg_log_of(small ? x * 8388608.0f : x);
  return hg_log_domain(x, hg_logarithm(parts.f, hg_log_n(parts) - (small ? 23.0f : 0.0f)));
}
HG_DEV float math_log2(float x) {
  const bool small = hg_log_small(x);
  const hg_log_parts parts = hg_log_of(small ? x * 8388608.0f : x);
  return hg_log_domain(x, hg_logarithm2(parts.f, hg_log_n(parts) - (small ? 23.0f : 0.0f)));
}
HG_DEV float math_log1p(float x) {
  const float u = 1.0f + x;
  const hg_log_parts parts = hg_log_of(u);
  // 2^(2 - n), as 2^-n may be denormal.
  const float four = hg_as_f32(0x40800000u - parts.exponent);
  const float scaled = hg_as_f32(hg_as_u32(x) - parts.exponent);
  const float f = scaled + hg_fma(four, 0.25f, -1.0f);
  return hg_log_domain(u, x == 0.0f ? x : hg_logarithm(f, hg_log_n(parts)));
}

HG_DEV float math_erf(float x) {
  const float a = hg_fabs(x);
  const float near = hg_fma(x,
                            hg_polynomial(a * a, 0.12837915f, -0.37612507f, 0.11281976f,
                                          -0.026773285f, 0.00500416f, -0.00060524617f),
                            x);
  const float b = a < 3.93f ? a : 3.93f;
  const float q = hg_polynomial(b, -0.00024013253f, -1.6270674f, -0.9189624f, -0.15020399f,
                                0.03219381f, -0.0044224774f, 0.00028595742f);
  const hg_exp_parts e = hg_exp2_of(q);
  const float far = hg_copysign(1.0f - hg_scale_normal(e.t, e.n_bits), x);
  return a >= 0.9f ? far : near;
}

HG_DEV float math_gelu(float x) {
  const float a = hg_fabs(x), b = a < 5.75f ? a : 5.75f;
  const float q = hg_polynomial(b, -1.0f, -1.1511052f, -0.45920852f, -0.052495256f, 0.007062156f,
                                -0.00013602017f, -0.00018653754f, 3.944792e-05f, -2.840323e-06f);
  const hg_exp_parts e = hg_exp2_of(q);
  return hg_fma(hg_scale_normal(e.t, e.n_bits) - 0.5f, -a, x * 0.5f);
}
// From the logarithm of 2 of exp(-2 * |u|).
HG_DEV float hg_gelu_tanh_log2(float b) {
  return hg_fma(b, hg_fma(b * b, -0.10294324f, -2.3022082f), 1.0f) - 1.0f;
}
HG_DEV float hg_gelu_tanh_of(float x, float b, float e) {
  return hg_fma(e * hg_inverse(1.0f + e), -b, x * (x < 0.0f ? 0.0f : 1.0f));
}
HG_DEV float math_gelu_tanh(float x) {
  const float a = hg_fabs(x), b = a < 10.001f ? a : 10.001f;
  const hg_exp_parts e = hg_exp2_of(hg_gelu_tanh_log2(b));
  return hg_gelu_tanh_of(x, b, a < 10.001f ? hg_scale_normal(e.t, e.n_bits) : 0.0f);
}

// sin(x + quarter * pi / 2) for |x| up to 2^17.
HG_DEV float hg_sine(float x, hg_u32 quarter) {
  const float t = hg_fma(x, 0.63661975f, 12582912.0f);
  const float n = t - 12582912.0f;
  const float first = hg_fma(n, -1.5707963f, x);
  const float second = n * 7.5497894e-08f;
  const float r = first - second;
  const float low =
      hg_fma(n, -5.390303e-15f, hg_fma(n, -7.5497894e-08f, second) + ((first - r) - second));
  const hg_u32 turn = hg_as_u32(t) + quarter;
  const float z = r * r;
  const float s =
      hg_fma(r * z, hg_polynomial(z, -0.16666654f, 0.008332098f, -0.00019506023f), low) + r;
  const float top = hg_fma(z, -0.5f, 1.0f);
  const float rest = hg_fma(-r, low, hg_fma(z, -0.5f, 1.0f - top));
  const float c =
      hg_fma(z * z, hg_polynomial(z, 0.04166664f, -0.001388713f, 2.4412086e-05f), rest) + top;
  return hg_as_f32(hg_as_u32((turn & 1u) != 0 ? c : s) ^ ((turn & 2u) << 30));
}
HG_DEV float math_sin(float x) {
  if (!(hg_fabs(x) <= 131072.0f)) return hg_large_sin(x);
  return x == 0.0f ? x : hg_sine(x, 0u);
}
HG_DEV float math_cos(float x) {
  if (!(hg_fabs(x) <= 131072.0f)) return hg_large_cos(x);
  return hg_sine(x, 1u);
}

// For folds in any order: NaN where one of both is, and either zero of two.
#if defined(HG_HAS_NAN_BOUNDS)
#define HG_ANY_ORDER(name, relation, instruction)               \
  HG_DEV float hg_any_order_##name(float x, float y) {          \
    float z;                                                    \
    asm(instruction " %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); \
    return z;                                                   \
  }
#else
#define HG_ANY_ORDER(name, relation, instruction)      \
  HG_DEV float hg_any_order_##name(float x, float y) { \
    return x != x || x relation y ? x : y;             \
  }
#endif
HG_ANY_ORDER(maximum, >, "max.NaN.f32")
HG_ANY_ORDER(minimum, <, "min.NaN.f32")
#undef HG_ANY_ORDER
// Whether the result of such a fold may be another in another order.
HG_DEV bool hg_has_order(float x) {
  return !(hg_fabs(x) > 0.0f);
}

// Functions of a number that bf16 has, for results that are rounded to it: after that they are
// those of the functions above, which every such number has been tried for
// (csrc/test/test_gpu_run.cpp). What keeps a result within 1.5 ulp of a float is left out.

// Of |x| < 57. The polynomial is what a linear program finds between the middles of neighbours. The
// numbers of the other form leave each of them 2^-18.5 away, and an approximation that has it is
// within 2^-22 (PTX ISA, ex2.approx.ftz.f32).
HG_DEV float hg_exp_bf16(float x) {
#if defined(HG_HAS_EXP2)
  return hg_exp2_within_22_bits(hg_fma(x, 1.4426954f, 3.65e-6f));
#else
  const float n_bits = hg_fma(x, 1.442695f, 12582912.0f);
  const float r = hg_fma(n_bits - 12582912.0f, -0.6931472f, x);
  const float t = hg_polynomial(r, 1.00000249f, 0.99996686f, 0.49996317f, 0.16768257f, 0.0416873f);
  return hg_scale_normal(t, n_bits);
#endif
}
HG_DEV float math_exp_bf16(float x) {
  return hg_fabs(x) < 57.0f ? hg_exp_bf16(x) : hg_exp_of_large(x);
}
// The polynomial is one between middles, too, and leaves 2^-20 of 2^q. Half of a denormal number
// may be such a middle: there the power is that of 0, which is 1.
HG_DEV float math_gelu_bf16(float x) {
  const float a = hg_fabs(x), b = a < 5.75f ? a : 5.75f;
  const float p = hg_polynomial(b, -1.1509267f, -0.46006945f, -0.051436268f, 0.0068587963f,
                                -0.0004454644f, 2.5816382e-06f);
#if defined(HG_HAS_EXP2)
  const float t = hg_exp2_within_22_bits(hg_fma(b, p, 1.0f) - 1.0f);
  const float rest = hg_fma(t, 0.5f, -0.5f);
#else
  const hg_exp_parts e = hg_exp2_of(hg_fma(b, p, -1.0f));
  const float rest = hg_scale_normal(e.t, e.n_bits) - 0.5f;
#endif
  return hg_fma(rest, -a, x * 0.5f);
}
// Every result is 2^-18.7 of its power or more away from a middle. The largest b is the next number
// of bf16 after those whose power is normal: of it the approximation is 0.
HG_DEV float math_gelu_tanh_bf16(float x) {
#if defined(HG_HAS_EXP2)
  const float a = hg_fabs(x), b = a < 10.0625f ? a : 10.0625f;
  return hg_gelu_tanh_of(x, b, hg_exp2_within_22_bits(hg_gelu_tanh_log2(b)));
#else
  return math_gelu_tanh(x);
#endif
}
HG_DEV float math_sigmoid_bf16(float x) {
  const float a = hg_fabs(x);
  const hg_exp_parts parts = hg_exp_of(-(a > 104.0f ? 104.0f : a));
  const float e = hg_scale_down(1.0f + parts.t, hg_power_down(parts.n_bits));
  return (x < 0.0f ? e : 1.0f) * hg_inverse(1.0f + e);
}
// x * P(x^2) / Q(x^2), of degree 2 and within 2^-17 of it, and 1 from 3.5 on, as bf16 has it. The
// form x * (k + (a * w + b) / (w^2 + c)), where w is x^2 and a number, has the fewest steps. No
// result changes where the inverse is off by 2^-22, to either side.
HG_DEV float math_tanh_bf16(float x) {
  const float a = hg_fabs(x), b = a > 3.5f ? 3.5f : a, w = hg_fma(b, b, 15.460883f);
  const float inverse = hg_reciprocal(hg_fma(w, w, -168.76904f));
  return hg_copysign(b * hg_fma(hg_fma(w, 5.7055063f, -22.022139f), inverse, 0.0580597f), x);
}
HG_DEV float hg_sine_bf16(float x, hg_u32 quarter) {
  const float t = hg_fma(x, 0.63661975f, 12582912.0f);
  const float n = t - 12582912.0f;
  const float r = hg_fma(n, -7.5497894e-08f, hg_fma(n, -1.5707963f, x));
  const hg_u32 turn = hg_as_u32(t) + quarter;
  const float z = r * r;
  const float s = r * hg_polynomial(z, 1.0f, -0.16666654f, 0.008332098f, -0.00019506023f);
  const float c = hg_polynomial(z, 1.0f, -0.5f, 0.04166664f, -0.001388713f, 2.4412086e-05f);
  return hg_as_f32(hg_as_u32((turn & 1u) != 0 ? c : s) ^ ((turn & 2u) << 30));
}
HG_DEV float math_sin_bf16(float x) {
  return hg_fabs(x) <= 131072.0f ? hg_sine_bf16(x, 0u) : hg_large_sin(x);
}
HG_DEV float math_cos_bf16(float x) {
  return hg_fabs(x) <= 131072.0f ? hg_sine_bf16(x, 1u) : hg_large_cos(x);
}

#define HG_EXACT(T)                  \
  HG_DEV T math_sqrt(T x) {          \
    return hg_sqrt(x);               \
  }                                  \
  HG_DEV T math_floor(T x) {         \
    return hg_floor(x);              \
  }                                  \
  HG_DEV T math_ceil(T x) {          \
    return hg_ceil(x);               \
  }                                  \
  HG_DEV T math_round(T x) {         \
    return hg_rint(x);               \
  }                                  \
  HG_DEV T math_trunc(T x) {         \
    return hg_trunc(x);              \
  }                                  \
  HG_DEV T math_fma(T x, T y, T z) { \
    return hg_fma(x, y, z);          \
  }
HG_EXACT(float)
#if HG_HAS_F64
HG_EXACT(double)
#endif
#undef HG_EXACT

#if HG_HAS_F64
#define HG_LIBRARY(name)                \
  HG_DEV double math_##name(double x) { \
    return name(x);                     \
  }
HG_LIBRARY(exp)
HG_LIBRARY(exp2)
HG_LIBRARY(expm1)
HG_LIBRARY(log)
HG_LIBRARY(log2)
HG_LIBRARY(log1p)
HG_LIBRARY(tanh)
HG_LIBRARY(erf)
HG_LIBRARY(sin)
HG_LIBRARY(cos)
#undef HG_LIBRARY
HG_DEV double math_sigmoid(double x) {
  return 1.0 / (1.0 + exp(-x));
}
HG_DEV double math_gelu(double x) {
  return x * 0.5 * (erf(x * 0.70710678118654752) + 1.0);
}
HG_DEV double math_gelu_tanh(double x) {
  return x * 0.5 * (tanh((x + x * x * x * 0.044715) * 0.79788456080286536) + 1.0);
}
#endif

#endif
