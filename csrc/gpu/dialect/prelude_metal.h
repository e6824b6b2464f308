// What the dialect is in the Metal shading language, 3.1 or later.
//
// Everything of Metal's library is named with its namespace: names of the op table's expressions,
// as select, are others in it.
#ifndef HOLOGRAM_PRELUDE_METAL_H
#define HOLOGRAM_PRELUDE_METAL_H

#include <metal_stdlib>

#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#else
#pragma STDC FP_CONTRACT OFF
#endif

#define HG_HAS_F64 0

typedef float hg_f32;
typedef long hg_i64;
typedef unsigned long hg_u64;
typedef int hg_i32;
typedef unsigned int hg_u32;
typedef short hg_i16;
typedef unsigned short hg_u16;
typedef signed char hg_i8;
typedef unsigned char hg_u8;
typedef metal::uint2 hg_u32x2;
typedef metal::uint4 hg_u32x4;
typedef metal::atomic_uint hg_atomic_u32;

#define HG_DEV static inline
#define HG_FUNCTION static __attribute__((noinline))
#define HG_GLOBAL device
#define HG_CONSTANT constant
#define HG_THREAD thread
#define HG_SHARED(T, name, n) threadgroup T name[n];
#define HG_SHARED_PTR(T) threadgroup T*
#define HG_UNROLL _Pragma("clang loop unroll(full)")

#define HG_CBUF(T, name, index) device const T* name [[buffer(index)]]
#define HG_BUF(T, name, index) device T* name [[buffer(index)]]
#define HG_PARAM(T, name, index) constant T& name [[buffer(index)]]
#define HG_KERNEL(name, ...)                                                             \
  kernel void name(__VA_ARGS__, metal::uint3 hg_lid_ [[thread_position_in_threadgroup]], \
                   metal::uint3 hg_bid_ [[threadgroup_position_in_grid]],                \
                   metal::uint3 hg_bdim_ [[threads_per_threadgroup]],                    \
                   metal::uint3 hg_gdim_ [[threadgroups_per_grid]])
#define HG_KERNEL_OF(name, threads, blocks, ...) HG_KERNEL(name, __VA_ARGS__)

#define HG_LID (hg_lid_.x)
#define HG_BID (hg_bid_.x)
#define HG_BID_Y (hg_bid_.y)
#define HG_BDIM (hg_bdim_.x)
#define HG_GDIM (hg_gdim_.x)
#define HG_SYNC() metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup)

HG_DEV hg_u32 hg_as_u32(float x) {
  return as_type<hg_u32>(x);
}
HG_DEV float hg_as_f32(hg_u32 bits) {
  return as_type<float>(bits);
}

// The upper half of a product.
HG_DEV hg_u32 hg_mul_high(hg_u32 x, hg_u32 y) {
  return metal::mulhi(x, y);
}
// 32 of 0.
HG_DEV hg_u32 hg_leading_zeros(hg_u32 x) {
  return metal::clz(x);
}

HG_DEV hg_u32x4 hg_load_once(HG_GLOBAL const hg_u32x4* p) {
  return *p;
}
HG_DEV hg_u32x2 hg_load_once(HG_GLOBAL const hg_u32x2* p) {
  return *p;
}

HG_DEV hg_u32 hg_shfl_xor(hg_u32 v, hg_u32 mask) {
  return metal::simd_shuffle_xor(v, static_cast<hg_u16>(mask));
}
HG_DEV hg_u32 hg_shfl_down(hg_u32 v, hg_u32 n) {
  return metal::simd_shuffle_down(v, static_cast<hg_u16>(n));
}

// Of numbers; convert.h sees to NaN.
HG_DEV float hg_widen_f16(hg_u16 bits) {
  return static_cast<float>(as_type<half>(bits));
}
HG_DEV hg_u16 hg_narrow_f16(float x) {
  return as_type<hg_u16>(static_cast<half>(x));
}

HG_DEV float hg_fabs(float x) {
  return metal::fabs(x);
}
HG_DEV float hg_copysign(float x, float y) {
  return metal::copysign(x, y);
}
HG_DEV float hg_fma(float x, float y, float z) {
  return metal::fma(x, y, z);
}
HG_DEV float hg_sqrt(float x) {
  return metal::precise::sqrt(x);
}
HG_DEV float hg_floor(float x) {
  return metal::floor(x);
}
HG_DEV float hg_ceil(float x) {
  return metal::ceil(x);
}
HG_DEV float hg_rint(float x) {
  return metal::rint(x);
}
HG_DEV float hg_trunc(float x) {
  return metal::trunc(x);
}
// 1 / x, rounded, of a number that is neither very large nor very small.
HG_DEV float hg_inverse(float x) {
  return 1.0f / x;
}
// To 2^-22 of it, where that would be less to compute.
HG_DEV float hg_reciprocal(float x) {
  return hg_inverse(x);
}

HG_DEV hg_u32 hg_atomic_add(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return metal::atomic_fetch_add_explicit(p, v, metal::memory_order_relaxed);
}
HG_DEV hg_u32 hg_atomic_max(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return metal::atomic_fetch_max_explicit(p, v, metal::memory_order_relaxed);
}
HG_DEV hg_u32 hg_atomic_min(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return metal::atomic_fetch_min_explicit(p, v, metal::memory_order_relaxed);
}
HG_DEV hg_u32 hg_atomic_or(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return metal::atomic_fetch_or_explicit(p, v, metal::memory_order_relaxed);
}
HG_DEV hg_u32 hg_atomic_exchange(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return metal::atomic_exchange_explicit(p, v, metal::memory_order_relaxed);
}
// What a thread has written is seen before what it writes after this, by threads of all blocks.
// Before 3.2 the language has no word for it: devices see atomics of a thread in their order.
// Of memory that other blocks of the launch have written.
template <class T>
HG_DEV T hg_load_fresh(HG_GLOBAL const T* p) {
  return *reinterpret_cast<HG_GLOBAL const volatile T*>(p);
}
HG_DEV void hg_device_fence() {
#if __METAL_VERSION__ >= 320
  metal::atomic_thread_fence(metal::mem_flags::mem_device, metal::memory_order_seq_cst,
                             metal::thread_scope_device);
#endif
}

#endif
