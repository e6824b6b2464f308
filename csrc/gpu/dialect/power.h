// Powers. Those of f32 are powers in f64, rounded: what other backends' libraries give, too.
//
// A library's f64 function is exact to 2^-51 and costs hundreds of instructions. One that is exact
// to 2^-42 rounds to the same float unless it lies next to the middle between two of them: there,
// and beyond the domain of normal numbers, the library is asked.
#ifndef HOLOGRAM_GPU_POWER_H
#define HOLOGRAM_GPU_POWER_H

#if HG_HAS_F64
HG_DEV double math_pow(double x, double y) {
  return hg_pow(x, y);
}

HG_FUNCTION float hg_library_pow(float x, float y) {
  return hg_pow(x, y);
}

HG_DEV double hg_polynomial_f64(double, double c) {
  return c;
}
template <class... Rest>
HG_DEV double hg_polynomial_f64(double x, double c, Rest... rest) {
  return hg_fma(hg_polynomial_f64(x, rest...), x, c);
}

// Of a normal positive float, by its bits.
HG_DEV double hg_widen_normal(float x) {
  const hg_u32 bits = hg_as_u32(x);
  return hg_as_f64((static_cast<hg_u64>((bits >> 3) + 0x38000000u) << 32) |
                   static_cast<hg_u64>(bits << 29));
}

// log2(x) of a normal positive x, to 2^-50 of itself.
HG_DEV double hg_log2_f64(float x) {
  const hg_log_parts parts = hg_log_of(x);  // 2^n * m
  const float m = hg_as_f32(hg_as_u32(x) - parts.exponent);
  const double wide = hg_widen_normal(m), f = wide - 1.0, g = wide + 1.0;
  // 1 / g: of a float, and what that lacks.
  const double near = hg_widen_normal(hg_reciprocal(m + 1.0f));
  const double lack = hg_fma(-g, near, 1.0);
  const double inverse = hg_fma(near, hg_fma(lack, lack, lack), near);
  const double s = f * inverse, z = s * s;
  const double p =
      hg_polynomial_f64(z, 0.33333333333293597, 0.20000000026143105, 0.14285708563507202,
                        0.11111685961340619, 0.09061816861618692, 0.08409969690835638);
  // n, as an integer beside 1.5 * 2^52.
  const hg_u32 n = static_cast<hg_u32>(static_cast<hg_i32>(parts.exponent) >> 23);
  const double whole =
      hg_as_f64((static_cast<hg_u64>(0x43300000u) << 32) | (n ^ 0x80000000u)) - 4503601774854144.0;
  return hg_fma(hg_fma(s * z, p, s), 2.8853900817779268, whole);
}

HG_DEV float math_pow(float x, float y) {
  const hg_u32 sign = hg_as_u32(x) & 0x80000000u;
  const float a = hg_fabs(x);
  hg_u32 turned = 0u;  // the sign of the result
  bool is_common = hg_as_u32(a) - 0x00800000u < 0x7f000000u;
  if (sign != 0u) {
    // Of a negative one only whole powers are numbers; beyond 2^24 they are even.
    is_common = is_common && hg_fabs(y) < 16777216.0f && y == hg_rint(y);
    turned = is_common && (static_cast<hg_i32>(y) & 1) != 0 ? sign : 0u;
  }
  const double w = static_cast<double>(y) * hg_log2_f64(is_common ? a : 1.0f);
  is_common = is_common && hg_fabs(w) < 126.0;
  // w = k + f, |f| at most 1/2.
  const double shifted = w + 6755399441055744.0;
  const double f = w - (shifted - 6755399441055744.0);
  const double power = hg_polynomial_f64(
      f, 1.0000000000000135, 0.6931471805599538, 0.2402265069564026, 0.05550410866424369,
      0.009618129193950022, 0.001333355825954666, 0.00015403433741197382, 1.5252641589521347e-05,
      1.325964725565379e-06, 1.0211476258095145e-07);
  const hg_u64 k = hg_as_u64(shifted) << 52;
  const hg_u64 bits = hg_as_u64(power) + k;
  // Distance from the middle of two floats, in units of the last place of f64.
  const hg_u32 rest = static_cast<hg_u32>(bits) & 0x1fffffffu;
  is_common = is_common && rest - (0x10000000u - 8192u) > 16384u;
  if (!is_common) return hg_library_pow(x, y);
  return hg_as_f32(hg_as_u32(static_cast<float>(hg_as_f64(bits))) | turned);
}
#else
HG_DEV float math_pow(float x, float y) {
  return hg_pow(x, y);
}
#endif

#endif
