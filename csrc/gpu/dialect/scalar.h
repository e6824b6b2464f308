// Scalar helpers of the op table's expressions: what atlas/scalar.h is on the host.
#ifndef HOLOGRAM_GPU_SCALAR_H
#define HOLOGRAM_GPU_SCALAR_H

// c ? a : b
template <class T>
HG_DEV T select(bool c, T a, T b) {
  return c ? a : b;
}

// Integers: modulo 2^n. |MIN| = -MIN = MIN.
#define HG_INTEGER(I, U)                                          \
  HG_DEV I wrap_add(I x, I y) {                                   \
    return static_cast<I>(static_cast<U>(x) + static_cast<U>(y)); \
  }                                                               \
  HG_DEV I wrap_sub(I x, I y) {                                   \
    return static_cast<I>(static_cast<U>(x) - static_cast<U>(y)); \
  }                                                               \
  HG_DEV I wrap_mul(I x, I y) {                                   \
    return static_cast<I>(static_cast<U>(x) * static_cast<U>(y)); \
  }                                                               \
  HG_DEV I wrap_neg(I x) {                                        \
    return static_cast<I>(static_cast<U>(0) - static_cast<U>(x)); \
  }                                                               \
  HG_DEV I wrap_abs(I x) {                                        \
    return x < 0 ? wrap_neg(x) : x;                               \
  }                                                               \
  HG_DEV bool is_nan(I) {                                         \
    return false;                                                 \
  }
HG_INTEGER(hg_i64, hg_u64)
HG_INTEGER(hg_i32, hg_u32)
#undef HG_INTEGER

#define HG_FLOATING(T)           \
  HG_DEV T wrap_add(T x, T y) {  \
    return x + y;                \
  }                              \
  HG_DEV T wrap_sub(T x, T y) {  \
    return x - y;                \
  }                              \
  HG_DEV T wrap_mul(T x, T y) {  \
    return x * y;                \
  }                              \
  HG_DEV T wrap_neg(T x) {       \
    return -x;                   \
  }                              \
  HG_DEV T wrap_abs(T x) {       \
    return hg_fabs(x);           \
  }                              \
  HG_DEV bool is_nan(T x) {      \
    return x != x;               \
  }                              \
  HG_DEV T with_sign(T x, T y) { \
    return hg_copysign(x, y);    \
  }
HG_FLOATING(float)
HG_FLOATING(hg_double)
#undef HG_FLOATING

// x between two bounds, `high` where they cross; NaN of any operand propagates.
template <class T>
HG_DEV T clamp_value(T x, T low, T high) {
  T y = select(x < low, low, x);
  y = select(y > high, high, y);
  y = select(is_nan(high), high, y);
  return select(is_nan(low), low, y);
}

template <class T>
struct hg_tag {};

// The identities of maximum (hg_lowest) and of minimum (hg_highest).
HG_DEV float hg_lowest_of(hg_tag<float>) {
  return hg_as_f32(0xff800000u);
}
HG_DEV float hg_highest_of(hg_tag<float>) {
  return hg_as_f32(0x7f800000u);
}
HG_DEV hg_i64 hg_lowest_of(hg_tag<hg_i64>) {
  return static_cast<hg_i64>(static_cast<hg_u64>(1) << 63);
}
HG_DEV hg_i64 hg_highest_of(hg_tag<hg_i64>) {
  return static_cast<hg_i64>(~static_cast<hg_u64>(0) >> 1);
}
HG_DEV hg_double hg_lowest_of(hg_tag<hg_double>) {
  return hg_as_f64(0xfff0000000000000ul);
}
HG_DEV hg_double hg_highest_of(hg_tag<hg_double>) {
  return hg_as_f64(0x7ff0000000000000ul);
}
template <class T>
HG_DEV T hg_lowest() {
  return hg_lowest_of(hg_tag<T>());
}
template <class T>
HG_DEV T hg_highest() {
  return hg_highest_of(hg_tag<T>());
}

// Shuffles of other types than u32: of 64 bits by halves.
#define HG_SHUFFLE(name)                                                 \
  HG_DEV hg_i32 name(hg_i32 v, hg_u32 n) {                               \
    return static_cast<hg_i32>(name(static_cast<hg_u32>(v), n));         \
  }                                                                      \
  HG_DEV float name(float v, hg_u32 n) {                                 \
    return hg_as_f32(name(hg_as_u32(v), n));                             \
  }                                                                      \
  HG_DEV hg_u64 name(hg_u64 v, hg_u32 n) {                               \
    const hg_u32 low = name(static_cast<hg_u32>(v), n);                  \
    const hg_u32 high = name(static_cast<hg_u32>(v >> 32), n);           \
    return static_cast<hg_u64>(low) | (static_cast<hg_u64>(high) << 32); \
  }                                                                      \
  HG_DEV hg_i64 name(hg_i64 v, hg_u32 n) {                               \
    return static_cast<hg_i64>(name(static_cast<hg_u64>(v), n));         \
  }
HG_SHUFFLE(hg_shfl_xor)
HG_SHUFFLE(hg_shfl_down)
#undef HG_SHUFFLE
HG_DEV hg_double hg_shfl_xor(hg_double v, hg_u32 mask) {
  return hg_as_f64(hg_shfl_xor(hg_as_u64(v), mask));
}
HG_DEV hg_double hg_shfl_down(hg_double v, hg_u32 n) {
  return hg_as_f64(hg_shfl_down(hg_as_u64(v), n));
}

#endif
