// Powers. Those of f32 are the steps of cpu/math.h in f64: the same bits.
#ifndef HOLOGRAM_GPU_POWER_H
#define HOLOGRAM_GPU_POWER_H

#if HG_HAS_F64
HG_DEV double math_pow(double x, double y) {
  return hg_pow(x, y);
}
#endif

// x * y + z as a step of a power: of floats, whose products are rounded as the CPU's are, or of
// numbers that bf16 has. There a step is one instruction of f64, and no pair of them is known whose
// power has other bits for that: all with a positive first number have been tried.
HG_DEV hg_double hg_power_step(hg_tag<float>, hg_double x, hg_double y, hg_double z) {
  return x * y + z;
}
#if HG_HAS_F64
HG_DEV double hg_power_step(hg_tag<hg_bf16>, double x, double y, double z) {
  return hg_fma(x, y, z);
}
#endif
template <class Of>
HG_DEV hg_double hg_polynomial_f64(Of, hg_double, hg_double c) {
  return c;
}
template <class Of, class... Rest>
HG_DEV hg_double hg_polynomial_f64(Of of, hg_double x, hg_double c, Rest... rest) {
  return hg_power_step(of, hg_polynomial_f64(of, x, rest...), x, c);
}

// (m - 1) / (m + 1), rounded.
HG_DEV hg_double hg_log_quotient(hg_double m) {
  const hg_double one = HG_F64(1.0, 0x3ff0000000000000ul), top = m - one, bottom = m + one;
#if HG_HAS_F64
  // m has the digits of a float, so all of them can be tried.
  const double near = static_cast<double>(hg_reciprocal(static_cast<float>(bottom)));
  const double lack = hg_fma(-bottom, near, 1.0);
  const double inverse = hg_fma(near, hg_fma(lack, lack, lack), near);
  const double quotient = top * inverse;
  return hg_fma(hg_fma(-bottom, quotient, top), inverse, quotient);
#else
  return top / bottom;
#endif
}

// log2(x) of a positive float as f64, that is finite.
template <class Of>
HG_DEV hg_double hg_log2_f64(Of of, hg_double x) {
  // x = 2^n * m with m in [sqrt(1/2), sqrt(2)).
  const hg_u64 one = 0x3ff0000000000000ul, bits = hg_as_u64(x);
  const hg_u64 biased = bits + (one - 0x3fe6a09e667f3bcdul);  // the exponent is n + 1023
  const hg_double m = hg_as_f64(bits + one - (biased & 0xfff0000000000000ul));
  const hg_double n = hg_as_f64((biased >> 52) | 0x4330000000000000ul) -
                      HG_F64(4503599627371519.0, 0x43300000000003fful);
  const hg_double s = hg_log_quotient(m);
  const hg_double p = hg_polynomial_f64(of, s * s, HG_F64(2.8853900817900855, 0x40071547652bedf1ul),
                                        HG_F64(0.9617966733431105, 0x3feec709d12d20ceul),
                                        HG_F64(0.5770835846854244, 0x3fe27777fe6908f7ul),
                                        HG_F64(0.4116727371287426, 0x3fda58d89ba7db35ul),
                                        HG_F64(0.34072975043615256, 0x3fd5ce8427b970ebul));
  return hg_power_step(of, s, p, n);
}
template <class Of>
HG_DEV hg_double hg_exp2_f64(Of of, hg_double x) {
  const hg_double limit = HG_F64(200.0, 0x4069000000000000ul),
                  shifter = HG_F64(6755399441055744.0, 0x4338000000000000ul);
  x = x < -limit ? -limit : x;
  x = x > limit ? limit : x;
  const hg_double t = x + shifter;
  const hg_double power = hg_as_f64((hg_as_u64(t) + 1023u) << 52);
  return power * hg_polynomial_f64(of, x - (t - shifter), HG_F64(1.0, 0x3ff0000000000000ul),
                                   HG_F64(0.6931471805417174, 0x3fe62e42fef7b899ul),
                                   HG_F64(0.24022651075285406, 0x3fcebfbe07a868e0ul),
                                   HG_F64(0.055504109624370045, 0x3fac6b08df42b283ul),
                                   HG_F64(0.009618036977337723, 0x3f83b29f1227b2e9ul),
                                   HG_F64(0.0013333430868891513, 0x3f55d8723cf65c09ul),
                                   HG_F64(0.00015467092340398517, 0x3f2445e51d85e79ful),
                                   HG_F64(1.5314931646289428e-05, 0x3ef00f1216c76f06ul));
}

template <class Of>
HG_DEV float hg_power(Of of, float x, float y) {
  const float a = hg_fabs(x), infinity = hg_highest<float>();
  const hg_double wide = hg_widened(a);
  hg_double log = hg_log2_f64(of, wide);
  log = a == 0.0f ? hg_lowest<hg_double>() : log;
  log = a < infinity ? log : wide;
  float r = hg_narrowed(hg_exp2_f64(of, hg_widened(y) * log));
  const bool whole = hg_rint(y) == y;
  const float half = y * 0.5f;
  r = whole && hg_rint(half) != half ? hg_copysign(r, x) : r;
  const bool is_none = x < 0.0f && a != infinity && !whole && y == y;
  r = is_none ? hg_as_f32(0x7fc00000u) : r;
  const bool is_one = x == 1.0f || y == 0.0f || (a == 1.0f && hg_fabs(y) == infinity);
  return is_one ? 1.0f : r;
}
HG_DEV float math_pow(float x, float y) {
  return hg_power(hg_tag<float>(), x, y);
}
HG_DEV float math_pow_bf16(float x, float y) {
#if HG_HAS_F64
  return hg_power(hg_tag<hg_bf16>(), x, y);
#else
  return math_pow(x, y);
#endif
}

#endif
