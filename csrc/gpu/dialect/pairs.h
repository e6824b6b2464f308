// Two numbers of bf16 in a word: of neighbours, the one with the lower address in its lower half.
//
// The sum, the difference and the product of two of them, rounded to bf16 at once, are those of
// float rounded to bf16: a float has more than twice as many digits and two more, and what is
// denormal is exact in it, or is rounded far from the middle between two. So a device that has
// arithmetic of pairs gives the bits of one that has not.
#ifndef HOLOGRAM_GPU_PAIRS_H
#define HOLOGRAM_GPU_PAIRS_H

struct hg_bf16x2 {
  hg_u32 bits;
};

HG_DEV float hg_low(hg_bf16x2 x) {
  return hg_as_f32(x.bits << 16);
}
HG_DEV float hg_high(hg_bf16x2 x) {
  return hg_as_f32(x.bits & 0xffff0000u);
}

HG_DEV hg_bf16x2 hg_pair(hg_bf16 low, hg_bf16 high) {
  hg_bf16x2 x;
  x.bits = static_cast<hg_u32>(low) | (static_cast<hg_u32>(high) << 16);
  return x;
}
// Of numbers that bf16 holds, or NaNs of its.
HG_DEV hg_bf16x2 hg_pair_of_held(float low, float high) {
  hg_bf16x2 x;
  x.bits = (hg_as_u32(low) >> 16) | (hg_as_u32(high) & 0xffff0000u);
  return x;
}
// Of numbers that have just been computed: see hg_bf16_of_result.
HG_DEV hg_bf16x2 hg_pair_of_results(float low, float high) {
#if defined(HG_NARROWS_BF16)
  hg_bf16x2 x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x.bits) : "f"(high), "f"(low));
  return x;
#else
  return hg_pair(hg_bf16_of_result(low), hg_bf16_of_result(high));
#endif
}

#if defined(HG_NARROWS_BF16) && __CUDA_ARCH__ >= 900
#define HG_PAIRED(name, op, instruction)                                       \
  HG_DEV hg_bf16x2 hg_pair_##name(hg_bf16x2 x, hg_bf16x2 y) {                  \
    hg_bf16x2 z;                                                               \
    asm(instruction " %0, %1, %2;" : "=r"(z.bits) : "r"(x.bits), "r"(y.bits)); \
    return z;                                                                  \
  }
#else
#define HG_PAIRED(name, op, instruction)                                         \
  HG_DEV hg_bf16x2 hg_pair_##name(hg_bf16x2 x, hg_bf16x2 y) {                    \
    return hg_pair_of_results(hg_low(x) op hg_low(y), hg_high(x) op hg_high(y)); \
  }
#endif
HG_PAIRED(add, +, "add.rn.bf16x2")
HG_PAIRED(sub, -, "sub.rn.bf16x2")
HG_PAIRED(mul, *, "mul.rn.bf16x2")
#undef HG_PAIRED

// Whether both are within a bound, which a word has twice; false of NaN.
HG_DEV bool hg_pair_within(hg_bf16x2 x, hg_bf16x2 bound) {
#if defined(HG_NARROWS_BF16) && __CUDA_ARCH__ >= 900
  hg_u32 both;
  asm("{.reg .pred p, q; .reg .b32 a; abs.bf16x2 a, %1; setp.lt.bf16x2 p|q, a, %2; "
      "and.pred p, p, q; selp.u32 %0, 1, 0, p;}"
      : "=r"(both)
      : "r"(x.bits), "r"(bound.bits));
  return both != 0u;
#else
  return hg_fabs(hg_low(x)) < hg_low(bound) && hg_fabs(hg_high(x)) < hg_high(bound);
#endif
}

// What hardly any pair needs is no part of what all do.
HG_FUNCTION hg_bf16x2 hg_pair_exp_of_large(hg_bf16x2 x) {
  return hg_pair_of_results(hg_exp_of_large(hg_low(x)), hg_exp_of_large(hg_high(x)));
}
HG_DEV hg_bf16x2 hg_pair_exp(hg_bf16x2 x) {
  if (!hg_pair_within(x, hg_pair_of_held(57.0f, 57.0f))) return hg_pair_exp_of_large(x);
  return hg_pair_of_results(hg_exp_bf16(hg_low(x)), hg_exp_bf16(hg_high(x)));
}

HG_FUNCTION hg_bf16x2 hg_pair_divided_exactly(hg_bf16x2 x, float y) {
  return hg_pair_of_results(hg_low(x) / y, hg_high(x) / y);
}
HG_DEV hg_bf16x2 hg_pair_divided(hg_bf16x2 x, hg_bf16_divisor divisor) {
  const float low = hg_low(x) * divisor.inverse, high = hg_high(x) * divisor.inverse;
  if (!hg_is_quotient(low) || !hg_is_quotient(high)) {
    return hg_pair_divided_exactly(x, divisor.number);
  }
  return hg_pair_of_results(low, high);
}

// Elements i and i + 1, of an even i.
template <hg_u32 n>
HG_DEV hg_bf16x2 hg_few_pair(HG_THREAD const hg_few<hg_bf16, n>& v, hg_u32 i) {
  hg_bf16x2 x;
  x.bits = v.word[i / 2u];
  return x;
}
template <hg_u32 n>
HG_DEV void hg_few_set_pair(HG_THREAD hg_few<hg_bf16, n>& v, hg_u32 i, hg_bf16x2 x) {
  v.word[i / 2u] = x.bits;
}

#endif
