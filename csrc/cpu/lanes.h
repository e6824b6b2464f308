// Vectors of the compute type in memory, as elements of any dtype.
//
// Included by one source file per instruction set, which includes the headers of others first and
// then selects the target: no code shared with other files may be compiled for the wider set.
#pragma once

#include "cpu/convert.h"
#include "cpu/simd.h"

namespace hologram::cpu {

// Lanes of the compute type T in memory as elements of D.
template <class T, DType dtype, int W>
struct Lanes {
  using Vec = Simd<T, W>;
  using D = Element<dtype>;
  static constexpr int kLanes = Vec::kLanes;
  static constexpr bool kSlow = true;  // lane by lane

  // The vector `k` of the tile at p.
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    p += k * kLanes * static_cast<long>(sizeof(D));
    Vec r;
    for (int i = 0; i < kLanes; ++i) {
      D x;
      __builtin_memcpy(&x, p + i * static_cast<int>(sizeof(D)), sizeof x);
      r.v[i] = convert<T>(x);
    }
    return r;
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
    p += k * kLanes * static_cast<long>(sizeof(D));
    for (int i = 0; i < kLanes; ++i) {
      const D y = convert<D>(static_cast<T>(x.v[i]));
      __builtin_memcpy(p + i * static_cast<int>(sizeof(D)), &y, sizeof y);
    }
  }
  // The value that storing and loading leaves.
  HOLOGRAM_INLINE static Vec round(Vec x) {
    for (int i = 0; i < kLanes; ++i) x.v[i] = convert<T>(convert<D>(static_cast<T>(x.v[i])));
    return x;
  }
};

// The compute type's own dtype.
template <class T, int W>
struct SameLanes {
  using Vec = Simd<T, W>;
  static constexpr bool kSlow = false;
  HOLOGRAM_INLINE static Vec load(const char* p, long k) { return load_lanes<T, W>(p + k * W); }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) { store_lanes(p + k * W, x); }
  HOLOGRAM_INLINE static Vec round(Vec x) { return x; }
};
template <int W>
struct Lanes<float, DType::f32, W> : SameLanes<float, W> {};
template <int W>
struct Lanes<double, DType::f64, W> : SameLanes<double, W> {};
template <int W>
struct Lanes<int64_t, DType::i64, W> : SameLanes<int64_t, W> {};

// 16-bit words, one in each lane of 32 bits. (GCC 12 makes six instructions of a conversion.)
template <int W>
HOLOGRAM_INLINE Simd<uint32_t, W> load_words(const char* p, long k) {
  using V = Native<uint32_t, W>;
  typedef uint16_t Words __attribute__((vector_size(W / 2)));
  Words words;
  __builtin_memcpy(&words, p + k * (W / 2), sizeof words);
#if defined(__x86_64__)
  if constexpr (W == 64) {
    return (V)_mm512_cvtepu16_epi32((__m256i)words);
  } else if constexpr (W == 32) {
    return (V)_mm256_cvtepu16_epi32((__m128i)words);
  }
#endif
  return __builtin_convertvector(words, V);
}
template <int W>
HOLOGRAM_INLINE void store_words(char* p, long k, Simd<uint32_t, W> x) {
  typedef uint16_t Words __attribute__((vector_size(W / 2)));
  Words words;
#if defined(__x86_64__)
  if constexpr (W == 64) {
    words = (Words)_mm512_cvtepi32_epi16((__m512i)x.v);
  } else {
    words = __builtin_convertvector(x.v, Words);
  }
#else
  words = __builtin_convertvector(x.v, Words);
#endif
  __builtin_memcpy(p + k * (W / 2), &words, sizeof words);
}

// The high words of the lanes of x, then those of y.
template <int W>
HOLOGRAM_INLINE void store_word_pairs(char* p, Simd<uint32_t, W> x, Simd<uint32_t, W> y) {
#if defined(__x86_64__)
  if constexpr (W == 64) {
    alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                      23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                      45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i words =
        _mm512_permutex2var_epi16((__m512i)x.v, _mm512_load_si512(kOdd), (__m512i)y.v);
    __builtin_memcpy(p, &words, sizeof words);
    return;
  } else if constexpr (W == 32) {
    const __m256i words = _mm256_packus_epi32(_mm256_srli_epi32((__m256i)x.v, 16),
                                              _mm256_srli_epi32((__m256i)y.v, 16));
    const __m256i in_order = _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0));
    __builtin_memcpy(p, &in_order, sizeof in_order);
    return;
  }
#elif defined(__aarch64__)
  if constexpr (W == 16) {
    const uint16x8_t words = vuzp2q_u16((uint16x8_t)x.v, (uint16x8_t)y.v);
    __builtin_memcpy(p, &words, sizeof words);
    return;
  }
#endif
  store_words(p, 0, x >> 16);
  store_words(p, 1, y >> 16);
}

template <int W>
struct Lanes<float, DType::bf16, W> {
  using Vec = Simd<float, W>;
  static constexpr bool kSlow = false;
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    return from_bf16_bits(load_words<W>(p, k));
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
    store_words(p, k, bf16_bits(round_to_bf16(x)));
  }
  HOLOGRAM_INLINE static Vec round(Vec x) { return round_to_bf16(x); }
  HOLOGRAM_INLINE static Vec round_clean(Vec x) { return round_clean_to_bf16(x); }
  // Two vectors, `k` and the one after it; store_exact: of lanes that bf16 can hold.
  HOLOGRAM_INLINE static void store_clean(char* p, long k, Vec x, Vec y) {
    store_word_pairs<W>(p + k * (W / 2), round_clean_bits(x), round_clean_bits(y));
  }
  HOLOGRAM_INLINE static void store_exact(char* p, long k, Vec x, Vec y) {
    store_word_pairs<W>(p + k * (W / 2), x.bits(), y.bits());
  }
};

template <int W>
struct Lanes<float, DType::f16, W> {
  using Vec = Simd<float, W>;
  static constexpr bool kSlow = false;
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
#if defined(__x86_64__)
    if constexpr (W == 64) {
      return Vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + k)));
    } else if constexpr (W == 32) {
      return Vec(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + k)));
    }
#elif defined(__aarch64__)
    if constexpr (W == 16) {
      float16x4_t halves;
      __builtin_memcpy(&halves, p + k * (W / 2), sizeof halves);
      return (Native<float, W>)vcvt_f32_f16(halves);
    }
#endif
    return from_f16_bits(load_words<W>(p, k));
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
#if defined(__x86_64__)
    if constexpr (W == 64) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + k, _mm512_cvtps_ph(x.v, kNearest));
      return;
    } else if constexpr (W == 32) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p) + k, _mm256_cvtps_ph(x.v, kNearest));
      return;
    }
#elif defined(__aarch64__)
    if constexpr (W == 16) {
      const float16x4_t halves = vcvt_f16_f32((float32x4_t)x.v);
      __builtin_memcpy(p + k * (W / 2), &halves, sizeof halves);
      return;
    }
#endif
    store_words(p, k, f16_bits(round_to_f16(x)));
  }
  HOLOGRAM_INLINE static Vec round(Vec x) {
#if defined(__x86_64__)
    if constexpr (W == 64) {
      return Vec(_mm512_cvtph_ps(_mm512_cvtps_ph(x.v, kNearest)));
    } else if constexpr (W == 32) {
      return Vec(_mm256_cvtph_ps(_mm256_cvtps_ph(x.v, kNearest)));
    }
#elif defined(__aarch64__)
    if constexpr (W == 16) {
      return (Native<float, W>)vcvt_f32_f16(vcvt_f16_f32((float32x4_t)x.v));
    }
#endif
    return round_to_f16(x);
  }

#if defined(__x86_64__)
 private:
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#endif
};

// Bytes that are zero or not.
template <class T, int W>
struct BoolLanes {
  using Vec = Simd<T, W>;
  static constexpr bool kSlow = false;
  static constexpr int kLanes = Vec::kLanes;
  using Wide = Native<std::make_signed_t<UnsignedOf<sizeof(T)>>, W>;
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  static constexpr bool kQuick = W == 32 && sizeof(T) == 4;
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    Bytes bytes;
    __builtin_memcpy(&bytes, p + k * kLanes, sizeof bytes);
#if defined(__x86_64__)
    if constexpr (kQuick) {  // GCC 12 converts byte by byte
      const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
      return select({(Wide)_mm256_cmpeq_epi32(wide, _mm256_setzero_si256())}, Vec(0), Vec(1));
    }
#endif
    const Wide wide = __builtin_convertvector(bytes, Wide);
    return wide != 0 ? Vec(1).v : Vec(0).v;
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
#if defined(__x86_64__)
    if constexpr (kQuick) {
      const __m256i wide = (__m256i)(x != Vec(0)).v;
      const __m128i words =
          _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
      const __m128i ones = _mm_and_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(p + k * kLanes), ones);
      return;
    }
#endif
    const Wide wide = x.v != Vec(0).v ? Wide{} + 1 : Wide{};
    const Bytes bytes = __builtin_convertvector(wide, Bytes);
    __builtin_memcpy(p + k * kLanes, &bytes, sizeof bytes);
  }
  HOLOGRAM_INLINE static Vec round(Vec x) {
    return select(x != Vec(0), Vec(1), Vec(0));
  }
};
template <int W>
struct Lanes<float, DType::b8, W> : BoolLanes<float, W> {};
template <int W>
struct Lanes<double, DType::b8, W> : BoolLanes<double, W> {};
template <int W>
struct Lanes<int64_t, DType::b8, W> : BoolLanes<int64_t, W> {};
template <int W>
struct Lanes<uint8_t, DType::b8, W> : SameLanes<uint8_t, W> {
  using Vec = Simd<uint8_t, W>;
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    return select(load_lanes<uint8_t, W>(p + k * W) == Vec(0), Vec(0), Vec(1));
  }
};

// Types of half a lane's size.
template <class T, class D, int W>
struct HalfLanes {
  using Vec = Simd<T, W>;
  static constexpr bool kSlow = false;
  typedef D Half __attribute__((vector_size(W / 2)));
  HOLOGRAM_INLINE static Vec load(const char* p, long k) {
    Half half;
    __builtin_memcpy(&half, p + k * (W / 2), sizeof half);
    return Vec(__builtin_convertvector(half, typename Vec::V));
  }
  HOLOGRAM_INLINE static void store(char* p, long k, Vec x) {
    const Half half = __builtin_convertvector(x.v, Half);
    __builtin_memcpy(p + k * (W / 2), &half, sizeof half);
  }
  HOLOGRAM_INLINE static Vec round(Vec x) {
    const Half half = __builtin_convertvector(x.v, Half);
    return Vec(__builtin_convertvector(half, typename Vec::V));
  }
};
template <int W>
struct Lanes<double, DType::f32, W> : HalfLanes<double, float, W> {};
template <int W>
struct Lanes<int64_t, DType::i32, W> : HalfLanes<int64_t, int32_t, W> {};

}  // namespace hologram::cpu
