// The words and the library of the Metal shading language, for clang on a CPU.
//
// Address spaces are real types, so a pointer into one is no pointer into another, and code for the
// CPU treats them all alike. Included after preprocessing, so that the text sees no macro of it.
#pragma once

#include "device_side.h"

#define HGEMU_SITE     \
  hgemu::Site {        \
    file, line, column \
  }
#define HGEMU_SITE_ARGUMENTS \
  const char *file = __builtin_FILE(), int line = __builtin_LINE(), int column = __builtin_COLUMN()

#if defined(HGEMU_FLAT)
// The address sanitizer looks at no access to an address space.
#define device
#define constant const
#define threadgroup
#else
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2))) const
#define threadgroup __attribute__((address_space(3)))
#endif
#define thread

typedef _Float16 half;
typedef __bf16 bfloat;

// Here clang would call a function of its run time that a host's library may lack.
extern "C" __attribute__((weak, visibility("hidden"))) __bf16 __truncsfbf2(float x) {
  unsigned int u;
  __builtin_memcpy(&u, &x, sizeof u);
  u = x != x ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
  const unsigned short bits = static_cast<unsigned short>(u >> 16);
  __bf16 r;
  __builtin_memcpy(&r, &bits, sizeof r);
  return r;
}

template <class To, class From>
inline To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From), "as_type of another size");
  To to;
  __builtin_memcpy(&to, &x, sizeof to);
  return to;
}

namespace metal {

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;
#define HGEMU_VECTORS(T)                              \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
HGEMU_VECTORS(uint)
HGEMU_VECTORS(int)
HGEMU_VECTORS(float)
HGEMU_VECTORS(half)
HGEMU_VECTORS(ushort)
HGEMU_VECTORS(uchar)
HGEMU_VECTORS(ulong)
#undef HGEMU_VECTORS

// ---- functions ----

#define HGEMU_FUNCTION(name)       \
  inline float name(float x) {     \
    return __builtin_##name##f(x); \
  }
HGEMU_FUNCTION(fabs)
HGEMU_FUNCTION(floor)
HGEMU_FUNCTION(ceil)
HGEMU_FUNCTION(rint)
HGEMU_FUNCTION(trunc)
namespace precise {
HGEMU_FUNCTION(sqrt)
HGEMU_FUNCTION(sin)
HGEMU_FUNCTION(cos)
HGEMU_FUNCTION(exp)
HGEMU_FUNCTION(log)
HGEMU_FUNCTION(tanh)
inline float pow(float x, float y) {
  return __builtin_powf(x, y);
}
}  // namespace precise
#undef HGEMU_FUNCTION
inline float copysign(float x, float y) {
  return __builtin_copysignf(x, y);
}
inline float fma(float x, float y, float z) {
  return __builtin_fmaf(x, y, z);
}
inline uint mulhi(uint x, uint y) {
  return static_cast<uint>(static_cast<ulong>(x) * y >> 32);
}
inline uint clz(uint x) {
  return x == 0 ? 32u : static_cast<uint>(__builtin_clz(x));
}
inline bool isnan(float x) {
  return x != x;
}
// Both arguments of one type: of two types the call is ambiguous in Metal too. Of a NaN and a
// number they are the number.
#define HGEMU_LEAST(T)                              \
  inline T max(T x, T y) {                          \
    return static_cast<T>(x > y || y != y ? x : y); \
  }                                                 \
  inline T min(T x, T y) {                          \
    return static_cast<T>(x < y || y != y ? x : y); \
  }
HGEMU_LEAST(float)
HGEMU_LEAST(half)
HGEMU_LEAST(int)
HGEMU_LEAST(uint)
#undef HGEMU_LEAST

// ---- threads ----

enum class mem_flags { mem_none, mem_device, mem_threadgroup };

inline void threadgroup_barrier(mem_flags, HGEMU_SITE_ARGUMENTS) {
  hgemu::hgemu_barrier(HGEMU_SITE);
}
inline void simdgroup_barrier(mem_flags, HGEMU_SITE_ARGUMENTS) {
  hgemu::hgemu_exchange(0, HGEMU_SITE);
}

template <class T>
struct is_shuffled {
  static constexpr bool value = false;
};
#define HGEMU_SHUFFLED(T)               \
  template <>                           \
  struct is_shuffled<T> {               \
    static constexpr bool value = true; \
  };
HGEMU_SHUFFLED(float)
HGEMU_SHUFFLED(int)
HGEMU_SHUFFLED(uint)
#undef HGEMU_SHUFFLED

template <class T>
inline T of_lane(T v, uint at, hgemu::Site site) {
  static_assert(is_shuffled<T>::value, "operations of a simdgroup take 32 bits");
  const hgemu::Exchanged all = hgemu::hgemu_exchange(as_type<uint>(v), site);
  return as_type<T>(at < 32 && (all.present >> at & 1) != 0 ? all.values[at] : hgemu::kPoison);
}
template <class T>
inline T simd_shuffle_xor(T v, ushort mask, HGEMU_SITE_ARGUMENTS) {
  return of_lane(v, hgemu::lane() ^ mask, HGEMU_SITE);
}
template <class T>
inline T simd_shuffle_down(T v, ushort n, HGEMU_SITE_ARGUMENTS) {
  return of_lane(v, hgemu::lane() + n, HGEMU_SITE);
}
template <class T>
inline T simd_shuffle_up(T v, ushort n, HGEMU_SITE_ARGUMENTS) {
  return of_lane(v, hgemu::lane() - n, HGEMU_SITE);
}
template <class T>
inline T simd_shuffle(T v, ushort at, HGEMU_SITE_ARGUMENTS) {
  return of_lane(v, at, HGEMU_SITE);
}
template <class T, class Join>
inline T joined(T v, hgemu::Site site, Join join) {
  static_assert(is_shuffled<T>::value, "operations of a simdgroup take 32 bits");
  const hgemu::Exchanged all = hgemu::hgemu_exchange(as_type<uint>(v), site);
  bool some = false;
  T r = v;
  for (uint i = 0; i < 32; ++i) {
    if ((all.present >> i & 1) == 0) continue;
    const T x = as_type<T>(all.values[i]);
    r = some ? join(r, x) : x;
    some = true;
  }
  return r;
}
template <class T>
inline T simd_sum(T v, HGEMU_SITE_ARGUMENTS) {
  return joined(v, HGEMU_SITE, [](T x, T y) { return x + y; });
}
template <class T>
inline T simd_max(T v, HGEMU_SITE_ARGUMENTS) {
  return joined(v, HGEMU_SITE, [](T x, T y) { return metal::max(x, y); });
}
template <class T>
inline T simd_min(T v, HGEMU_SITE_ARGUMENTS) {
  return joined(v, HGEMU_SITE, [](T x, T y) { return metal::min(x, y); });
}

// ---- matrices of a simdgroup: each lane has two elements of a row ----

template <class T, int rows, int columns>
struct simdgroup_matrix {
  static_assert(sizeof(T) == 4 && rows == 8 && columns == 8, "matrices are of 8 x 8 floats");
  T of_lane[2];
};
// Of the first one. Nothing depends on which lane has which, but that all do it alike.
inline uint matrix_row(uint lane) {
  return (lane / 4 & 4) + lane / 2 % 4;
}
inline uint matrix_column(uint lane) {
  return (lane / 4 & 2) * 2 + lane % 2 * 2;
}
template <class T, int rows, int columns>
inline simdgroup_matrix<T, rows, columns> make_filled_simdgroup_matrix(T x) {
  return {{x, x}};
}
#define HGEMU_MATRIX_IN(space)                                                                 \
  template <class T>                                                                           \
  inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const space T* from, ulong leading, \
                             ulong2 origin = 0, bool transposed = false) {                     \
    from += origin.y * leading + origin.x;                                                     \
    const uint row = matrix_row(hgemu::lane()), column = matrix_column(hgemu::lane());         \
    for (uint i = 0; i < 2; ++i) {                                                             \
      m.of_lane[i] =                                                                           \
          transposed ? from[(column + i) * leading + row] : from[row * leading + column + i];  \
    }                                                                                          \
  }                                                                                            \
  template <class T>                                                                           \
  inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, space T* to, ulong leading) {       \
    to += matrix_row(hgemu::lane()) * leading + matrix_column(hgemu::lane());                  \
    for (int i = 0; i < 2; ++i) to[i] = m.of_lane[i];                                          \
  }
#if defined(HGEMU_FLAT)
HGEMU_MATRIX_IN()
#else
HGEMU_MATRIX_IN(device)
HGEMU_MATRIX_IN(threadgroup)
#endif
#undef HGEMU_MATRIX_IN
// All elements, from all lanes.
template <class T>
inline void whole_matrix(const simdgroup_matrix<T, 8, 8>& m, T (&all)[8][8], hgemu::Site site) {
  for (int i = 0; i < 2; ++i) {
    const hgemu::Exchanged its = hgemu::hgemu_exchange(as_type<uint>(m.of_lane[i]), site);
    if (its.present != ~0u) hgemu::hgemu_fail("a matrix of a simdgroup that lacks lanes");
    for (uint lane = 0; lane < 32; ++lane) {
      all[matrix_row(lane)][matrix_column(lane) + static_cast<uint>(i)] =
          as_type<T>(its.values[lane]);
    }
  }
}
template <class T>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>& d,
                                          const simdgroup_matrix<T, 8, 8>& a,
                                          const simdgroup_matrix<T, 8, 8>& b,
                                          const simdgroup_matrix<T, 8, 8>& c,
                                          HGEMU_SITE_ARGUMENTS) {
  T left[8][8], right[8][8];
  whole_matrix(a, left, HGEMU_SITE);
  whole_matrix(b, right, HGEMU_SITE);
  const uint r = matrix_row(hgemu::lane()), n = matrix_column(hgemu::lane());
  for (uint i = 0; i < 2; ++i) {
    T sum = c.of_lane[i];
    for (uint k = 0; k < 8; ++k) sum += left[r][k] * right[k][n + i];
    d.of_lane[i] = sum;
  }
}

// ---- atomics: threads of the emulator do not interrupt each other ----

enum memory_order { memory_order_relaxed, memory_order_seq_cst };
enum thread_scope { thread_scope_threadgroup, thread_scope_device };
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope) {}
template <class T>
struct atomic {
  static_assert(sizeof(T) == 4 && is_shuffled<T>::value, "atomics are of 32 bits");
  T value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;
#define HGEMU_ATOMIC_IN(space, name, result)                                 \
  template <class T>                                                         \
  inline T atomic_##name##_explicit(space atomic<T>* p, T v, memory_order) { \
    const T old = p->value;                                                  \
    p->value = result;                                                       \
    return old;                                                              \
  }
#if defined(HGEMU_FLAT)
#define HGEMU_ATOMIC(name, result) HGEMU_ATOMIC_IN(, name, result)
#else
#define HGEMU_ATOMIC(name, result)      \
  HGEMU_ATOMIC_IN(device, name, result) \
  HGEMU_ATOMIC_IN(threadgroup, name, result)
#endif
HGEMU_ATOMIC(fetch_add, old + v)
HGEMU_ATOMIC(fetch_max, old > v ? old : v)
HGEMU_ATOMIC(fetch_min, old < v ? old : v)
HGEMU_ATOMIC(fetch_or, old | v)
HGEMU_ATOMIC(exchange, v)
#undef HGEMU_ATOMIC

}  // namespace metal
