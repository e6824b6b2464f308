// Conversions between element types with the bits of cpu/convert.h, those of NaN included.
#ifndef HOLOGRAM_GPU_CONVERT_H
#define HOLOGRAM_GPU_CONVERT_H

// ---- a half dtype's bits, and back ----

// A NaN keeps its payload.
HG_DEV float hg_f16_to_float(hg_u16 bits) {
  const hg_u32 b = bits;
  const float nan = hg_as_f32(((b & 0x8000u) << 16) | 0x7f800000u | ((b & 0x3ffu) << 13));
  return (b & 0x7fffu) > 0x7c00u ? nan : hg_widen_f16(bits);
}
// Nearest, ties to even; a NaN becomes the default one, of its sign.
HG_DEV hg_u16 hg_float_to_f16(float x) {
  const hg_u32 sign = (hg_as_u32(x) >> 16) & 0x8000u;
  return x != x ? static_cast<hg_u16>(sign | 0x7e00u) : hg_narrow_f16(x);
}
HG_DEV float hg_bf16_to_float(hg_u16 bits) {
  return hg_as_f32(static_cast<hg_u32>(bits) << 16);
}
// Nearest, ties to even; a NaN keeps the upper bits of its payload and becomes a quiet one.
HG_DEV hg_u16 hg_float_to_bf16(float x) {
  const hg_u32 u = hg_as_u32(x);
  const hg_u32 rounded = u + 0x7fffu + ((u >> 16) & 1u);
  return static_cast<hg_u16>((x != x ? u | 0x400000u : rounded) >> 16);
}

// ---- to integers: truncates, what does not fit becomes the least one ----

HG_DEV hg_i32 hg_to_i32(float x) {
  return x >= -2.1474836e+09f && x < 2.1474836e+09f ? static_cast<hg_i32>(x)
                                                    : static_cast<hg_i32>(0x80000000u);
}
HG_DEV hg_i64 hg_to_i64(float x) {
  return x >= -9.223372e+18f && x < 9.223372e+18f ? static_cast<hg_i64>(x) : hg_lowest<hg_i64>();
}
#if HG_HAS_F64  // or soft_f64.h has them
HG_DEV hg_i32 hg_to_i32(double x) {
  return x >= -2147483648.0 && x < 2147483648.0 ? static_cast<hg_i32>(x)
                                                : static_cast<hg_i32>(0x80000000u);
}
HG_DEV hg_i64 hg_to_i64(double x) {
  return x >= -9.223372036854776e+18 && x < 9.223372036854776e+18 ? static_cast<hg_i64>(x)
                                                                  : hg_lowest<hg_i64>();
}

// Hardware may give another NaN than one of the same sign and payload.
HG_DEV double hg_float_to_double(float x) {
  const hg_u64 u = hg_as_u32(x);
  const hg_u64 nan = ((u & 0x80000000u) << 32) | 0x7ff8000000000000ull | ((u & 0x7fffffu) << 29);
  return x != x ? hg_as_f64(nan) : static_cast<double>(x);
}
HG_DEV float hg_double_to_float(double x) {
  const hg_u64 u = hg_as_u64(x);
  const hg_u32 nan = (static_cast<hg_u32>(u >> 32) & 0x80000000u) | 0x7fc00000u |
                     (static_cast<hg_u32>(u >> 29) & 0x7fffffu);
  return x != x ? hg_as_f32(nan) : static_cast<float>(x);
}
#endif

// ---- what an element is, in a type that has arithmetic ----

HG_DEV float hg_number(float x) {
  return x;
}
HG_DEV float hg_number(hg_f16 x) {
  return hg_f16_to_float(static_cast<hg_u16>(x));
}
HG_DEV float hg_number(hg_bf16 x) {
  return hg_bf16_to_float(static_cast<hg_u16>(x));
}
HG_DEV hg_i32 hg_number(hg_b8 x) {
  return static_cast<hg_u8>(x) != 0 ? 1 : 0;
}
HG_DEV hg_i32 hg_number(bool x) {
  return x ? 1 : 0;
}
#define HG_INTEGER(I)       \
  HG_DEV I hg_number(I x) { \
    return x;               \
  }
HG_INTEGER(hg_i64)
HG_INTEGER(hg_u64)
HG_INTEGER(hg_i32)
HG_INTEGER(hg_u32)
HG_INTEGER(hg_i16)
HG_INTEGER(hg_u16)
HG_INTEGER(hg_i8)
HG_INTEGER(hg_u8)
#undef HG_INTEGER
HG_DEV hg_double hg_number(hg_double x) {
  return x;
}
#if !HG_HAS_F64
HG_DEV hg_double hg_number(hg_f64 x) {
  return hg_as_f64(static_cast<hg_u64>(x));
}
#endif

// ---- an element of a number ----

template <class I>
HG_DEV float hg_element(hg_tag<float>, I x) {
  return static_cast<float>(x);
}
HG_DEV float hg_element(hg_tag<float>, float x) {
  return x;
}
HG_DEV float hg_element(hg_tag<float>, hg_double x) {
  return hg_double_to_float(x);
}
template <class I>
HG_DEV hg_double hg_element(hg_tag<hg_double>, I x) {
  return hg_widened(x);
}
HG_DEV hg_double hg_element(hg_tag<hg_double>, float x) {
  return hg_float_to_double(x);
}
HG_DEV hg_double hg_element(hg_tag<hg_double>, hg_double x) {
  return x;
}
#if !HG_HAS_F64
template <class N>
HG_DEV hg_f64 hg_element(hg_tag<hg_f64>, N x) {
  return static_cast<hg_f64>(hg_as_u64(hg_element(hg_tag<hg_double>(), x)));
}
#endif
template <class N>
HG_DEV hg_f16 hg_element(hg_tag<hg_f16>, N x) {
  return static_cast<hg_f16>(hg_float_to_f16(hg_element(hg_tag<float>(), x)));
}
template <class N>
HG_DEV hg_bf16 hg_element(hg_tag<hg_bf16>, N x) {
  return static_cast<hg_bf16>(hg_float_to_bf16(hg_element(hg_tag<float>(), x)));
}
template <class N>
HG_DEV hg_b8 hg_element(hg_tag<hg_b8>, N x) {
  return static_cast<hg_b8>(static_cast<hg_u8>(x != N(0) ? 1 : 0));
}
// Of a float the narrow ones are the low bits of a wider one. u32 and u64, which no dtype is, are
// those of integers only.
#define HG_INTEGER(I, wide)                     \
  template <class J>                            \
  HG_DEV I hg_element(hg_tag<I>, J x) {         \
    return static_cast<I>(x);                   \
  }                                             \
  HG_DEV I hg_element(hg_tag<I>, float x) {     \
    return static_cast<I>(hg_to_##wide(x));     \
  }                                             \
  HG_DEV I hg_element(hg_tag<I>, hg_double x) { \
    return static_cast<I>(hg_to_##wide(x));     \
  }
HG_INTEGER(hg_i64, i64)
HG_INTEGER(hg_i32, i32)
HG_INTEGER(hg_i16, i32)
HG_INTEGER(hg_i8, i32)
HG_INTEGER(hg_u8, i64)
#undef HG_INTEGER

// As torch's Tensor.to converts.
template <class To, class From>
HG_DEV To hg_convert(From x) {
  return hg_element(hg_tag<To>(), hg_number(x));
}

// Of a number that bf16 holds, or a NaN of its.
HG_DEV hg_bf16 hg_bf16_of_held(float x) {
  return static_cast<hg_bf16>(static_cast<hg_u16>(hg_as_u32(x) >> 16));
}
// Of a number that has just been computed: a device's NaN, which has no payload.
HG_DEV hg_bf16 hg_bf16_of_result(float x) {
#if defined(HG_NARROWS_BF16)
  return static_cast<hg_bf16>(hg_narrow_bf16(x));
#else
  return static_cast<hg_bf16>(hg_float_to_bf16(x));
#endif
}

// x / y for many x. No quotient of two floats is nearer to the middle between two others, or
// between two denormal ones, than 2^-49 of itself without being it, so that the error of f64, at
// most 2^-52, does not change how it is rounded.
#if HG_HAS_F64
typedef double hg_divisor;
HG_DEV hg_divisor hg_divisor_of(float y) {
  return 1.0 / static_cast<double>(y);
}
HG_DEV float hg_divided(float x, hg_divisor divisor) {
  return static_cast<float>(static_cast<double>(x) * divisor);
}
#else
typedef float hg_divisor;
HG_DEV hg_divisor hg_divisor_of(float y) {
  return y;
}
HG_DEV float hg_divided(float x, hg_divisor divisor) {
  return x / divisor;
}
#endif

// The same of numbers that bf16 has, for quotients that are rounded to it. A quotient of 8 digits
// by 8 digits is no nearer than 2^-17 of itself to the middle between two numbers of bf16, and is
// none where it is not denormal, so that 2^-22 more or less does not change how it is rounded, nor
// that it becomes infinite.
struct hg_bf16_divisor {
  float number, inverse;  // NaN where it is not known to be good enough
};
HG_DEV hg_bf16_divisor hg_bf16_divisor_of(float y) {
  hg_bf16_divisor divisor;
  divisor.number = y;
  const bool is_good =
      hg_fabs(y) >= 7.888609e-31f && hg_fabs(y) <= 1.2676506e+30f;  // 2^-100, 2^100
  divisor.inverse = is_good ? hg_inverse(y) : hg_as_f32(0x7fc00000u);
  return divisor;
}
// Whether a product with the inverse is one to round: not denormal, nor of an inverse that is NaN.
HG_DEV bool hg_is_quotient(float x) {
  return hg_fabs(x) >= 7.52316e-37f;  // 2^-120
}
HG_DEV float hg_divided(float x, hg_bf16_divisor divisor) {
  const float quotient = x * divisor.inverse;
  return hg_is_quotient(quotient) ? quotient : x / divisor.number;
}

// A number rounded to a half dtype, in float again.
HG_DEV float hg_round_f16(float x) {
  return hg_f16_to_float(hg_float_to_f16(x));
}
HG_DEV float hg_round_bf16(float x) {
  return hg_bf16_to_float(hg_float_to_bf16(x));
}

#endif
