// What the dialect is in CUDA C++, of NVRTC, which is given no header of CUDA's: sm_75 or later.
#ifndef HOLOGRAM_PRELUDE_CUDA_H
#define HOLOGRAM_PRELUDE_CUDA_H

#define HG_HAS_F64 1

typedef float hg_f32;
typedef double hg_f64;
typedef double hg_double;  // an f64 that is computed with (soft_f64.h)
typedef long long hg_i64;
typedef unsigned long long hg_u64;
typedef int hg_i32;
typedef unsigned int hg_u32;
typedef short hg_i16;
typedef unsigned short hg_u16;
typedef signed char hg_i8;
typedef unsigned char hg_u8;
typedef uint2 hg_u32x2;
typedef uint4 hg_u32x4;
typedef unsigned int hg_atomic_u32;

#define HG_DEV static __device__ __forceinline__
#define HG_FUNCTION static __device__ __noinline__
#define HG_GLOBAL
#define HG_CONSTANT
#define HG_THREAD
#define HG_SHARED(T, name, n) __shared__ T name[n];
#define HG_SHARED_PTR(T) T*
#define HG_UNROLL _Pragma("unroll")

#define HG_CBUF(T, name, index) const T* name
#define HG_BUF(T, name, index) T* name
#define HG_PARAM(T, name, index) const T name
#define HG_KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
// Of blocks of so many threads at most, of which a processor has room for so many; for half of them
// from sm_100 on, for which the compiler takes more registers and else keeps values in memory.
#if defined(HG_EMULATED)
#define HG_KERNEL_OF(name, threads, blocks, ...) HG_KERNEL(name, __VA_ARGS__)
#else
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define HG_AT_ONCE(blocks) (((blocks) + 1) / 2)
#else
#define HG_AT_ONCE(blocks) (blocks)
#endif
#define HG_KERNEL_OF(name, threads, blocks, ...) \
  extern "C" __global__ void __launch_bounds__(threads, HG_AT_ONCE(blocks)) name(__VA_ARGS__)
#endif

#define HG_LID (threadIdx.x)
#define HG_BID (blockIdx.x)
#define HG_BID_Y (blockIdx.y)
#define HG_BDIM (blockDim.x)
#define HG_GDIM (gridDim.x)
#define HG_SYNC() __syncthreads()

HG_DEV hg_u32 hg_as_u32(float x) {
  return __float_as_uint(x);
}
HG_DEV float hg_as_f32(hg_u32 bits) {
  return __uint_as_float(bits);
}
HG_DEV hg_u64 hg_as_u64(double x) {
  return static_cast<hg_u64>(__double_as_longlong(x));
}
HG_DEV double hg_as_f64(hg_u64 bits) {
  return __longlong_as_double(static_cast<hg_i64>(bits));
}

// As conversions between types of the language are.
template <class N>
HG_DEV double hg_widened(N x) {
  return static_cast<double>(x);
}
HG_DEV float hg_narrowed(double x) {
  return static_cast<float>(x);
}
// A constant, for a language without f64 as its bits.
#define HG_F64(number, bits) number

// The upper half of a product.
HG_DEV hg_u32 hg_mul_high(hg_u32 x, hg_u32 y) {
  return __umulhi(x, y);
}

HG_DEV hg_u32 hg_shfl_xor(hg_u32 v, hg_u32 mask) {
  return __shfl_xor_sync(0xffffffffu, v, static_cast<int>(mask));
}
HG_DEV hg_u32 hg_shfl_down(hg_u32 v, hg_u32 n) {
  return __shfl_down_sync(0xffffffffu, v, n);
}

// Past the first-level cache, where it would take the place of what is read again.
HG_DEV hg_u32x4 hg_load_once(const hg_u32x4* p) {
#if defined(HG_EMULATED)
  return *p;
#else
  hg_u32x4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#endif
}
HG_DEV hg_u32x2 hg_load_once(const hg_u32x2* p) {
#if defined(HG_EMULATED)
  return *p;
#else
  hg_u32x2 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p));
  return v;
#endif
}

// Of numbers; convert.h sees to NaN. One instruction each; cuda_fp16.h, which has a name for it,
// may not be installed.
HG_DEV float hg_widen_f16(hg_u16 bits) {
#if defined(HG_EMULATED)
  return hgemu::widen_f16(bits);
#else
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#endif
}
HG_DEV hg_u16 hg_narrow_f16(float x) {
#if defined(HG_EMULATED)
  return hgemu::narrow_f16(x);
#else
  hg_u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#endif
}

// 2^x of a result that is normal.
#define HG_HAS_EXP2 1
HG_DEV float hg_exp2_within_22_bits(float x) {
#if defined(HG_EMULATED)
  return hgemu::exp2_within_22_bits(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

#if !defined(HG_EMULATED) && __CUDA_ARCH__ >= 800
#define HG_HAS_NAN_BOUNDS 1
#define HG_NARROWS_BF16 1
HG_DEV hg_u16 hg_narrow_bf16(float x) {
  hg_u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#endif

HG_DEV float hg_fabs(float x) {
  return fabsf(x);
}
HG_DEV float hg_copysign(float x, float y) {
  return copysignf(x, y);
}
HG_DEV float hg_fma(float x, float y, float z) {
  return fmaf(x, y, z);
}
HG_DEV float hg_sqrt(float x) {
  return sqrtf(x);
}
HG_DEV float hg_floor(float x) {
  return floorf(x);
}
HG_DEV float hg_ceil(float x) {
  return ceilf(x);
}
HG_DEV float hg_rint(float x) {
  return rintf(x);
}
HG_DEV float hg_trunc(float x) {
  return truncf(x);
}
// Of arguments too large for functions.h.
HG_DEV float hg_large_sin(float x) {
  return static_cast<float>(sin(static_cast<double>(x)));
}
HG_DEV float hg_large_cos(float x) {
  return static_cast<float>(cos(static_cast<double>(x)));
}
// 1 / x to 2^-22 of it, of a number that is neither very large nor very small.
HG_DEV float hg_reciprocal(float x) {
#if defined(HG_EMULATED)
  return hgemu::reciprocal_within_22_bits(x);
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
// 1 / x, rounded, of such a number: what a division does after it has looked for others.
HG_DEV float hg_inverse(float x) {
#if defined(HG_EMULATED)
  return 1.0f / x;
#else
  const float y = hg_reciprocal(x);
  return fmaf(y, fmaf(-x, y, 1.0f), y);
#endif
}
HG_DEV double hg_fabs(double x) {
  return fabs(x);
}
HG_DEV double hg_copysign(double x, double y) {
  return copysign(x, y);
}
HG_DEV double hg_fma(double x, double y, double z) {
  return fma(x, y, z);
}
HG_DEV double hg_sqrt(double x) {
  return sqrt(x);
}
HG_DEV double hg_floor(double x) {
  return floor(x);
}
HG_DEV double hg_ceil(double x) {
  return ceil(x);
}
HG_DEV double hg_rint(double x) {
  return rint(x);
}
HG_DEV double hg_trunc(double x) {
  return trunc(x);
}
HG_DEV double hg_pow(double x, double y) {
  return pow(x, y);
}

HG_DEV hg_u32 hg_atomic_add(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return atomicAdd(p, v);
}
HG_DEV hg_u32 hg_atomic_max(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return atomicMax(p, v);
}
HG_DEV hg_u32 hg_atomic_min(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return atomicMin(p, v);
}
HG_DEV hg_u32 hg_atomic_or(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return atomicOr(p, v);
}
HG_DEV hg_u32 hg_atomic_exchange(HG_GLOBAL hg_atomic_u32* p, hg_u32 v) {
  return atomicExch(p, v);
}
// Of memory that other blocks of the launch have written.
template <class T>
HG_DEV T hg_load_fresh(const T* p) {
  return *reinterpret_cast<const volatile T*>(p);
}
HG_DEV void hg_device_fence() {
  __threadfence();
}

#endif
