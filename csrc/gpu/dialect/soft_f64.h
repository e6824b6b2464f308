// f64 in integer arithmetic, where the language has no such type: IEEE 754's binary64, rounded to
// nearest, ties to even, with denormal numbers. A NaN that an operation makes is the default one.
//
// A significand is an integer whose first digit is bit 62, ten bits of which are behind the last
// digit of the result: the lowest says also whether any bit below it is set, which is enough to
// round (John Hauser's SoftFloat keeps numbers so).
#ifndef HOLOGRAM_GPU_SOFT_F64_H
#define HOLOGRAM_GPU_SOFT_F64_H

#define HG_F64_SIGN 0x8000000000000000ul
#define HG_F64_INFINITY 0x7ff0000000000000ul
#define HG_F64_NAN 0x7ff8000000000000ul

// What lies in memory; as of halves nothing but hg_convert makes numbers of it.
enum class hg_f64 : hg_u64 {};

HG_DEV hg_u32 hg_leading_zeros(hg_u64 x) {
  const hg_u32 high = static_cast<hg_u32>(x >> 32);
  return high != 0u ? hg_leading_zeros(high) : 32u + hg_leading_zeros(static_cast<hg_u32>(x));
}
// x / 2^n of x < 2^63: the last bit says also whether what is lost was not 0.
HG_DEV hg_u64 hg_shift_down(hg_u64 x, hg_i32 n) {
  const hg_u32 shift = n < 63 ? static_cast<hg_u32>(n) : 63u;
  const hg_u64 rest = x & ((static_cast<hg_u64>(1) << shift) - 1u);
  return (x >> shift) | (rest != 0u ? 1u : 0u);
}
// The bits of significand / 2^62 * 2^(exponent - 1023), rounded; exponents of any size.
HG_DEV hg_u64 hg_f64_rounded(hg_i32 exponent, hg_u64 significand) {
  const hg_i32 least = exponent < 1 ? 1 : exponent;
  const hg_u64 its = hg_shift_down(significand, least - exponent);
  const hg_u64 to_even = (its & 0x3ffu) == 0x200u ? 1u : 0u;
  const hg_u64 digits = ((its + 0x200u) >> 10) & ~to_even;
  // The first digit, where there is one, and what rounding carries are added to the exponent.
  const hg_u64 bits = (static_cast<hg_u64>(least - 1) << 52) + digits;
  return exponent > 2046 ? HG_F64_INFINITY : bits;
}
// The bits of x / 2^scale, rounded.
HG_DEV hg_u64 hg_f64_of_integer(hg_u64 x, hg_i32 scale) {
  const hg_u32 zeros = hg_leading_zeros(x);
  const hg_u64 significand = zeros == 0u ? (x >> 1) | (x & 1u) : x << ((zeros - 1u) & 63u);
  const hg_u64 bits = hg_f64_rounded(1086 - static_cast<hg_i32>(zeros) - scale, significand);
  return x == 0u ? x : bits;
}

// The number.
struct hg_double {
  hg_u64 bits;
  hg_double() = default;
  explicit hg_double(hg_i32 x)
      : bits((x < 0 ? HG_F64_SIGN : 0u) |
             hg_f64_of_integer(static_cast<hg_u64>(x < 0 ? -static_cast<hg_i64>(x) : x), 0)) {}
};
HG_DEV hg_u64 hg_as_u64(hg_double x) {
  return x.bits;
}
HG_DEV hg_double hg_as_f64(hg_u64 bits) {
  hg_double x;
  x.bits = bits;
  return x;
}

HG_DEV hg_double hg_fabs(hg_double x) {
  return hg_as_f64(x.bits & ~HG_F64_SIGN);
}
HG_DEV hg_double hg_copysign(hg_double x, hg_double y) {
  return hg_as_f64((x.bits & ~HG_F64_SIGN) | (y.bits & HG_F64_SIGN));
}

// ---- comparisons ----

// In the order of numbers: the same of both zeros.
HG_DEV hg_i64 hg_f64_rank(hg_double x) {
  const hg_i64 size = static_cast<hg_i64>(x.bits & ~HG_F64_SIGN);
  return (x.bits & HG_F64_SIGN) != 0u ? -size : size;
}
HG_DEV bool hg_f64_is_nan(hg_double x) {
  return (x.bits & ~HG_F64_SIGN) > HG_F64_INFINITY;
}
#define HG_COMPARISON(op)                                        \
  HG_DEV bool operator op(hg_double x, hg_double y) {            \
    const bool ordered = !hg_f64_is_nan(x) && !hg_f64_is_nan(y); \
    return ordered && hg_f64_rank(x) op hg_f64_rank(y);          \
  }
HG_COMPARISON(==)
HG_COMPARISON(<)
HG_COMPARISON(<=)
HG_COMPARISON(>)
HG_COMPARISON(>=)
#undef HG_COMPARISON
HG_DEV bool operator!=(hg_double x, hg_double y) {
  return !(x == y);
}

// ---- arithmetic ----

HG_DEV hg_i32 hg_f64_exponent(hg_u64 bits) {
  return static_cast<hg_i32>(bits >> 52) & 0x7ff;
}
// The digits as an integer: the exponent, but of denormal numbers 1, is that of bit 52.
HG_DEV hg_u64 hg_f64_digits(hg_u64 bits) {
  const hg_u64 first = hg_f64_exponent(bits) != 0 ? 0x10000000000000ul : 0u;
  return (bits & 0xffffffffffffful) | first;
}
// |x| = significand / 2^62 * 2^(exponent - 1023), of a number that is finite.
struct hg_f64_parts {
  hg_i32 exponent;
  hg_u64 significand;  // 0 of zeros
};
HG_DEV hg_f64_parts hg_f64_parts_of(hg_u64 bits) {
  const hg_u64 digits = hg_f64_digits(bits);
  const hg_u32 shift = hg_leading_zeros(digits) - 1u;
  const hg_i32 exponent = hg_f64_exponent(bits);
  hg_f64_parts parts;
  parts.exponent = (exponent == 0 ? 1 : exponent) + 10 - static_cast<hg_i32>(shift);
  parts.significand = digits << shift;
  return parts;
}

HG_DEV hg_double operator-(hg_double x) {
  return hg_as_f64(x.bits ^ HG_F64_SIGN);
}
// These are calls, as a power has dozens of them.
HG_FUNCTION hg_double operator+(hg_double x, hg_double y) {
  const hg_u64 x_size = x.bits & ~HG_F64_SIGN, y_size = y.bits & ~HG_F64_SIGN;
  const bool swaps = x_size < y_size;
  const hg_u64 large = swaps ? y_size : x_size, small = swaps ? x_size : y_size;
  const hg_u64 sign = (swaps ? y.bits : x.bits) & HG_F64_SIGN;
  const bool differ = ((x.bits ^ y.bits) & HG_F64_SIGN) != 0u;
  const hg_i32 exponent = large >> 52 == 0u ? 1 : hg_f64_exponent(large);
  const hg_i32 lower = small >> 52 == 0u ? 1 : hg_f64_exponent(small);
  // Where digits are lost the difference has at most one leading zero more.
  const hg_u64 a = hg_f64_digits(large) << 9;
  const hg_u64 b = hg_shift_down(hg_f64_digits(small) << 9, exponent - lower);
  const hg_u64 sum = differ ? a - b : a + b;
  const hg_u32 shift = hg_leading_zeros(sum) - 1u;
  hg_u64 bits = hg_f64_rounded(exponent + 1 - static_cast<hg_i32>(shift), sum << shift) | sign;
  bits = sum == 0u ? (differ ? 0u : sign) : bits;
  bits = large >= HG_F64_INFINITY ? large | sign : bits;
  const bool is_nan = large > HG_F64_INFINITY || (small == HG_F64_INFINITY && differ);
  return hg_as_f64(is_nan ? HG_F64_NAN : bits);
}
HG_DEV hg_double operator-(hg_double x, hg_double y) {
  return x + -y;
}
HG_FUNCTION hg_double operator*(hg_double x, hg_double y) {
  const hg_u64 x_size = x.bits & ~HG_F64_SIGN, y_size = y.bits & ~HG_F64_SIGN;
  const hg_u64 sign = (x.bits ^ y.bits) & HG_F64_SIGN;
  const hg_f64_parts a = hg_f64_parts_of(x_size), b = hg_f64_parts_of(y_size);
  const hg_u64 twice = a.significand << 1;
  hg_u64 product = hg_multiply_high(twice, b.significand);  // from 2^61 to below 2^63
  product |= twice * b.significand != 0u ? 1u : 0u;
  const hg_u32 shift = (product >> 62) != 0u ? 0u : 1u;
  const hg_i32 exponent = a.exponent + b.exponent - 1022 - static_cast<hg_i32>(shift);
  hg_u64 bits = hg_f64_rounded(exponent, product << shift);
  const bool has_zero = x_size == 0u || y_size == 0u;
  const hg_u64 most = x_size > y_size ? x_size : y_size;
  bits = has_zero ? 0u : bits;
  bits = most == HG_F64_INFINITY ? HG_F64_INFINITY : bits;
  const bool is_nan = most > HG_F64_INFINITY || (most == HG_F64_INFINITY && has_zero);
  return hg_as_f64(is_nan ? HG_F64_NAN : bits | sign);
}
// Long division (Knuth, The Art of Computer Programming 4.3.1) with digits of 19 bits that may be
// negative: a float's estimate of one is wrong by less than 1/2, so that what remains is less than
// the divisor.
HG_FUNCTION hg_double operator/(hg_double x, hg_double y) {
  const hg_u64 x_size = x.bits & ~HG_F64_SIGN, y_size = y.bits & ~HG_F64_SIGN;
  const hg_u64 sign = (x.bits ^ y.bits) & HG_F64_SIGN;
  const hg_f64_parts a = hg_f64_parts_of(x_size), b = hg_f64_parts_of(y_size);
  const hg_i64 divisor = y_size == 0u ? 0x10000000000000 : static_cast<hg_i64>(b.significand >> 10);
  hg_i64 rest = static_cast<hg_i64>(a.significand >> 10), quotient = 0;
  const float inverse = 524288.0f / static_cast<float>(divisor);
  for (hg_u32 i = 0; i < 3u; ++i) {
    const hg_i64 digit = static_cast<hg_i64>(hg_rint(static_cast<float>(rest) * inverse));
    quotient = quotient * 524288 + digit;
    // The product is more than 64 bits have, the difference is not.
    rest = static_cast<hg_i64>((static_cast<hg_u64>(rest) << 19) -
                               static_cast<hg_u64>(digit) * static_cast<hg_u64>(divisor));
  }
  // quotient * 2^57 of numbers from 1 to 2, rounded down, and whether anything is left.
  hg_u64 whole = static_cast<hg_u64>(rest < 0 ? quotient - 1 : quotient);
  whole |= rest != 0 ? 1u : 0u;
  const hg_u32 shift = (whole >> 57) != 0u ? 5u : 6u;
  const hg_i32 exponent = a.exponent - b.exponent + 1028 - static_cast<hg_i32>(shift);
  hg_u64 bits = hg_f64_rounded(exponent, whole << shift);
  bits = y_size == 0u || x_size == HG_F64_INFINITY ? HG_F64_INFINITY : bits;
  bits = x_size == 0u || y_size == HG_F64_INFINITY ? 0u : bits;
  const bool is_nan = x_size > HG_F64_INFINITY || y_size > HG_F64_INFINITY ||
                      (x_size == y_size && (x_size == 0u || x_size == HG_F64_INFINITY));
  return hg_as_f64(is_nan ? HG_F64_NAN : bits | sign);
}

// ---- conversions, as those of convert.h ----

HG_DEV hg_double hg_widened(hg_u64 x) {
  return hg_as_f64(hg_f64_of_integer(x, 0));
}
HG_DEV hg_double hg_widened(hg_i64 x) {
  const hg_u64 bits = static_cast<hg_u64>(x), sign = bits & HG_F64_SIGN;
  return hg_as_f64(hg_f64_of_integer(sign != 0u ? 0u - bits : bits, 0) | sign);
}
template <class I>
HG_DEV hg_double hg_widened(I x) {
  return hg_widened(static_cast<hg_i64>(x));
}
HG_DEV hg_double hg_float_to_double(float x) {
  const hg_u32 u = hg_as_u32(x), digits = u & 0x7fffffu;
  const hg_u64 sign = static_cast<hg_u64>(u & 0x80000000u) << 32;
  const hg_u32 exponent = (u >> 23) & 0xffu;
  // A denormal's first digit becomes the one that is not written.
  const hg_u32 shift = exponent == 0u ? hg_leading_zeros(digits) - 8u : 0u;
  const hg_u32 normal = (digits << (shift & 31u)) & 0x7fffffu;
  const hg_u32 its = exponent == 0u ? 897u - shift : exponent + 896u;
  hg_u64 bits = (static_cast<hg_u64>(its) << 52) | (static_cast<hg_u64>(normal) << 29);
  bits = (u & 0x7fffffffu) == 0u ? 0u : bits;
  const hg_u64 quiet = digits != 0u ? HG_F64_NAN : HG_F64_INFINITY;
  bits = exponent == 0xffu ? quiet | (static_cast<hg_u64>(digits) << 29) : bits;
  return hg_as_f64(bits | sign);
}
HG_DEV float hg_double_to_float(hg_double x) {
  const hg_u32 sign = static_cast<hg_u32>(x.bits >> 32) & 0x80000000u;
  const hg_i32 exponent = hg_f64_exponent(x.bits) - 896;
  const hg_i32 least = exponent < 1 ? 1 : exponent;
  // 24 digits and 7 bits behind them.
  const hg_u32 its =
      static_cast<hg_u32>(hg_shift_down(hg_f64_digits(x.bits) << 10, least - exponent + 32));
  const hg_u32 to_even = (its & 0x7fu) == 0x40u ? 1u : 0u;
  const hg_u32 digits = ((its + 0x40u) >> 7) & ~to_even;
  hg_u32 bits = (static_cast<hg_u32>(least - 1) << 23) + digits;
  bits = exponent > 254 ? 0x7f800000u : bits;
  const hg_u32 nan = 0x7fc00000u | (static_cast<hg_u32>(x.bits >> 29) & 0x7fffffu);
  return hg_as_f32((hg_f64_is_nan(x) ? nan : bits) | sign);
}
HG_DEV hg_i64 hg_to_i64(hg_double x) {
  const hg_i32 exponent = hg_f64_exponent(x.bits);
  const hg_u64 digits = hg_f64_digits(x.bits);
  const hg_i32 down = exponent < 1012 ? 63 : 1075 - exponent;
  const hg_u64 size = down > 0 ? digits >> down : digits << (-down & 63);
  const hg_u64 its = (x.bits & HG_F64_SIGN) != 0u ? 0u - size : size;
  return static_cast<hg_i64>(exponent > 1085 ? HG_F64_SIGN : its);
}
HG_DEV hg_i32 hg_to_i32(hg_double x) {
  const hg_i64 whole = hg_to_i64(x);
  const hg_i32 its = static_cast<hg_i32>(whole);
  return its == whole ? its : static_cast<hg_i32>(0x80000000u);
}

// As the other language has them.
HG_DEV hg_double hg_widened(float x) {
  return hg_float_to_double(x);
}
HG_DEV float hg_narrowed(hg_double x) {
  return hg_double_to_float(x);
}
#define HG_F64(number, bits) hg_as_f64(bits)

#endif
