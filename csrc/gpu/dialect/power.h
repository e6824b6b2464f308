// Powers. Those of f32 are the steps of cpu/math.h in f64: the same bits. Metal, which has no f64,
// asks its library.
#ifndef HOLOGRAM_GPU_POWER_H
#define HOLOGRAM_GPU_POWER_H

#if HG_HAS_F64
HG_DEV double math_pow(double x, double y) {
  return hg_pow(x, y);
}

// x * y + z as a step of a power: of floats, whose products are rounded as the CPU's are, or of
// numbers that bf16 has. There a step is one instruction, and no pair of them is known whose power
// has other bits for that: all with a positive first number have been tried.
HG_DEV double hg_power_step(hg_tag<float>, double x, double y, double z) {
  return x * y + z;
}
HG_DEV double hg_power_step(hg_tag<hg_bf16>, double x, double y, double z) {
  return hg_fma(x, y, z);
}
template <class Of>
HG_DEV double hg_polynomial_f64(Of, double, double c) {
  return c;
}
template <class Of, class... Rest>
HG_DEV double hg_polynomial_f64(Of of, double x, double c, Rest... rest) {
  return hg_power_step(of, hg_polynomial_f64(of, x, rest...), x, c);
}

// log2(x) of a positive float as f64, that is finite.
template <class Of>
HG_DEV double hg_log2_f64(Of of, double x) {
  // x = 2^n * m with m in [sqrt(1/2), sqrt(2)).
  const hg_u64 one = 0x3ff0000000000000ull, bits = hg_as_u64(x);
  const hg_u64 biased = bits + (one - 0x3fe6a09e667f3bcdull);  // the exponent is n + 1023
  const double m = hg_as_f64(bits + one - (biased & 0xfff0000000000000ull));
  const double n = hg_as_f64((biased >> 52) | 0x4330000000000000ull) - 4503599627371519.0;
  // (m - 1) / (m + 1), rounded: m has the digits of a float, so all of them can be tried.
  const double top = m - 1.0, bottom = m + 1.0;
  const double near = static_cast<double>(hg_reciprocal(static_cast<float>(bottom)));
  const double lack = hg_fma(-bottom, near, 1.0);
  const double inverse = hg_fma(near, hg_fma(lack, lack, lack), near);
  const double quotient = top * inverse;
  const double s = hg_fma(hg_fma(-bottom, quotient, top), inverse, quotient);
  const double p = hg_polynomial_f64(of, s * s, 2.8853900817900855, 0.9617966733431105,
                                     0.5770835846854244, 0.4116727371287426, 0.34072975043615256);
  return hg_power_step(of, s, p, n);
}
template <class Of>
HG_DEV double hg_exp2_f64(Of of, double x) {
  x = x < -200.0 ? -200.0 : x;
  x = x > 200.0 ? 200.0 : x;
  const double t = x + 6755399441055744.0;
  const double power = hg_as_f64((hg_as_u64(t) + 1023u) << 52);
  return power * hg_polynomial_f64(of, x - (t - 6755399441055744.0), 1.0, 0.6931471805417174,
                                   0.24022651075285406, 0.055504109624370045, 0.009618036977337723,
                                   0.0013333430868891513, 0.00015467092340398517,
                                   1.5314931646289428e-05);
}

template <class Of>
HG_DEV float hg_power(Of of, float x, float y) {
  const float a = hg_fabs(x), infinity = hg_highest<float>();
  double log = hg_log2_f64(of, static_cast<double>(a));
  log = a == 0.0f ? static_cast<double>(-infinity) : log;
  log = a < infinity ? log : static_cast<double>(a);
  float r = static_cast<float>(hg_exp2_f64(of, static_cast<double>(y) * log));
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
  return hg_power(hg_tag<hg_bf16>(), x, y);
}
#else
HG_DEV float math_pow(float x, float y) {
  return hg_pow(x, y);
}
HG_DEV float math_pow_bf16(float x, float y) {
  return hg_pow(x, y);
}
#endif

#endif
