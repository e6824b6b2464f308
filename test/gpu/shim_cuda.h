// The words and the library of CUDA C++ that the dialect's prelude uses, for clang on a CPU.
#pragma once

#include "device_side.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))

// CUDA's functions without a header, as here: C++'s takes longer to read than kernels to compile.
extern "C" {
#define HGEMU_FUNCTION(name) \
  float name##f(float);      \
  double name(double);
HGEMU_FUNCTION(fabs)
HGEMU_FUNCTION(sqrt)
HGEMU_FUNCTION(floor)
HGEMU_FUNCTION(ceil)
HGEMU_FUNCTION(rint)
HGEMU_FUNCTION(trunc)
HGEMU_FUNCTION(exp)
HGEMU_FUNCTION(exp2)
HGEMU_FUNCTION(expm1)
HGEMU_FUNCTION(log)
HGEMU_FUNCTION(log2)
HGEMU_FUNCTION(log1p)
HGEMU_FUNCTION(tanh)
HGEMU_FUNCTION(erf)
HGEMU_FUNCTION(sin)
HGEMU_FUNCTION(cos)
#undef HGEMU_FUNCTION
float copysignf(float, float);
double copysign(double, double);
float fmaf(float, float, float);
double fma(double, double, double);
float powf(float, float);
double pow(double, double);
}

struct uint2 {
  unsigned int x, y;
} __attribute__((aligned(8)));
struct uint4 {
  unsigned int x, y, z, w;
} __attribute__((aligned(16)));

#define threadIdx (hgemu::hgemu_thread->thread)
#define blockIdx (hgemu::hgemu_thread->block)
#define blockDim (hgemu::hgemu_thread->block_size)
#define gridDim (hgemu::hgemu_thread->grid_size)

#define HGEMU_SITE_ARGUMENTS \
  const char *file = __builtin_FILE(), int line = __builtin_LINE(), int column = __builtin_COLUMN()

inline void __syncthreads(HGEMU_SITE_ARGUMENTS) {
  hgemu::hgemu_barrier({file, line, column});
}

inline unsigned int hgemu_of_lane(unsigned int v, unsigned int mask, unsigned int at,
                                  hgemu::Site site) {
  const hgemu::Exchanged all = hgemu::hgemu_exchange(v, site);
  if ((all.present & mask) != mask) {
    hgemu::hgemu_fail("the mask of a shuffle names a lane that is not there");
  }
  return all.values[at];
}
inline unsigned int __shfl_xor_sync(unsigned int mask, unsigned int v, int lanes,
                                    HGEMU_SITE_ARGUMENTS) {
  return hgemu_of_lane(v, mask, (hgemu::lane() ^ static_cast<unsigned int>(lanes)) % 32,
                       {file, line, column});
}
// Beyond the last lane it is the lane's own.
inline unsigned int __shfl_down_sync(unsigned int mask, unsigned int v, unsigned int n,
                                     HGEMU_SITE_ARGUMENTS) {
  const unsigned int at = hgemu::lane() + n;
  return hgemu_of_lane(v, mask, at < 32 ? at : hgemu::lane(), {file, line, column});
}

template <class To, class From>
inline To hgemu_cast(From x) {
  To to;
  static_assert(sizeof to == sizeof x, "bits of another size");
  __builtin_memcpy(&to, &x, sizeof to);
  return to;
}
inline unsigned int __umulhi(unsigned int x, unsigned int y) {
  return static_cast<unsigned int>(static_cast<unsigned long long>(x) * y >> 32);
}
inline unsigned int __float_as_uint(float x) {
  return hgemu_cast<unsigned int>(x);
}
inline float __uint_as_float(unsigned int x) {
  return hgemu_cast<float>(x);
}
inline long long __double_as_longlong(double x) {
  return hgemu_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return hgemu_cast<double>(x);
}

// Threads of the emulator do not interrupt each other.
#define HGEMU_ATOMIC(name, result)                            \
  inline unsigned int name(unsigned int* p, unsigned int v) { \
    const unsigned int old = *p;                              \
    *p = result;                                              \
    return old;                                               \
  }
HGEMU_ATOMIC(atomicAdd, old + v)
HGEMU_ATOMIC(atomicMax, old > v ? old : v)
HGEMU_ATOMIC(atomicMin, old < v ? old : v)
HGEMU_ATOMIC(atomicOr, old | v)
HGEMU_ATOMIC(atomicExch, v)
#undef HGEMU_ATOMIC
inline void __threadfence() {}
