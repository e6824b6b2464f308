// Random numbers (atlas/random.h) for tiles of lanes, the same bits on every instruction set.
//
// A counter goes through Philox in one lane of 64 bits, of which the low half is a word: products
// of 32 bits are what all instruction sets multiply lanes by.
#pragma once

#include <cstdint>

#include "atlas/philox.h"
#include "atlas/random.h"
#include "cpu/math.h"
#include "cpu/simd.h"

namespace hologram::cpu {

template <int W>
using Words64 = Simd<uint64_t, W>;

// Of the low halves of lanes; what is in the upper ones does not matter.
template <int W>
HOLOGRAM_INLINE Words64<W> multiply_low(Words64<W> a, Words64<W> b) {
#if defined(__x86_64__)
  using V = typename Words64<W>::V;
  if constexpr (W == 64) {
    return (V)_mm512_mul_epu32((__m512i)a.v, (__m512i)b.v);
  } else if constexpr (W == 32) {
    return (V)_mm256_mul_epu32((__m256i)a.v, (__m256i)b.v);
  } else {
    return (V)_mm_mul_epu32((__m128i)a.v, (__m128i)b.v);
  }
#elif defined(__aarch64__)
  static_assert(W == 16);
  const uint32x2_t x = vmovn_u64((uint64x2_t)a.v), y = vmovn_u64((uint64x2_t)b.v);
  return (Native<uint64_t, W>)vmull_u32(x, y);
#else
  const Words64<W> low(0xffffffffu);
  return (a & low) * (b & low);
#endif
}

// Of each 16 bytes of a and b, the lower (upper) halves side by side.
template <bool upper, class E, int W>
HOLOGRAM_INLINE Simd<E, W> interleave(Simd<E, W> a, Simd<E, W> b) {
#if defined(__x86_64__)
  using V = typename Simd<E, W>::V;
  if constexpr (W == 64 && sizeof(E) == 4) {
    const auto x = (__m512)a.v, y = (__m512)b.v;
    return (V)(upper ? _mm512_unpackhi_ps(x, y) : _mm512_unpacklo_ps(x, y));
  } else if constexpr (W == 64) {
    const auto x = (__m512d)a.v, y = (__m512d)b.v;
    return (V)(upper ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
  } else if constexpr (W == 32 && sizeof(E) == 4) {
    const auto x = (__m256)a.v, y = (__m256)b.v;
    return (V)(upper ? _mm256_unpackhi_ps(x, y) : _mm256_unpacklo_ps(x, y));
  } else if constexpr (W == 32) {
    const auto x = (__m256d)a.v, y = (__m256d)b.v;
    return (V)(upper ? _mm256_unpackhi_pd(x, y) : _mm256_unpacklo_pd(x, y));
  } else if constexpr (sizeof(E) == 4) {
    const auto x = (__m128)a.v, y = (__m128)b.v;
    return (V)(upper ? _mm_unpackhi_ps(x, y) : _mm_unpacklo_ps(x, y));
  } else {
    const auto x = (__m128d)a.v, y = (__m128d)b.v;
    return (V)(upper ? _mm_unpackhi_pd(x, y) : _mm_unpacklo_pd(x, y));
  }
#elif defined(__aarch64__)
  static_assert(W == 16);
  using V = typename Simd<E, W>::V;
  if constexpr (sizeof(E) == 4) {
    const auto x = (uint32x4_t)a.v, y = (uint32x4_t)b.v;
    return (V)(upper ? vzip2q_u32(x, y) : vzip1q_u32(x, y));
  } else {
    const auto x = (uint64x2_t)a.v, y = (uint64x2_t)b.v;
    return (V)(upper ? vzip2q_u64(x, y) : vzip1q_u64(x, y));
  }
#else
  constexpr int kHalf = 8 / static_cast<int>(sizeof(E));
  Simd<E, W> r;
  for (int i = 0; i < r.kLanes; ++i) {
    const int at = i / (2 * kHalf) * 2 * kHalf + (upper ? kHalf : 0) + i % (2 * kHalf) / 2;
    r.v[i] = i % 2 == 0 ? a.v[at] : b.v[at];
  }
  return r;
#endif
}

// The words of as many counters as a register has lanes of 64 bits. Lane 2 i + k is that of counter
// `first` + i + k * (lanes / 2), so that interleaving pairs of lanes puts counters in order.
template <int W>
struct PhiloxLanes {
  using U = Words64<W>;
  static constexpr int kCounters = U::kLanes;
  U words[4];  // in the low halves

  HOLOGRAM_INLINE PhiloxLanes(uint64_t key, uint64_t first) {
    U counter;
    for (int i = 0; i < kCounters; ++i) {
      counter.v[i] = static_cast<uint64_t>(i / 2 + i % 2 * (kCounters / 2));
    }
    counter = counter + U(first);
    const U multipliers[] = {U(Philox::kMultipliers[0]), U(Philox::kMultipliers[1])};
    U x0 = counter, x1 = counter >> 32, x2(0), x3(0);
    auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < Philox::kRounds; ++round) {
      const U p = multiply_low(multipliers[0], x0), q = multiply_low(multipliers[1], x2);
      x0 = (q >> 32) ^ x1 ^ U(low);
      x1 = q;
      x2 = (p >> 32) ^ x3 ^ U(high);
      x3 = p;
      low += Philox::kSteps[0];
      high += Philox::kSteps[1];
    }
    words[0] = x0, words[1] = x1, words[2] = x2, words[3] = x3;
  }

  // Two words of each counter in a lane, the first in the low half.
  HOLOGRAM_INLINE U pair(int low, int high) const {
    return (words[low] & U(0xffffffffu)) | (words[high] << 32);
  }
  // All words in order.
  HOLOGRAM_INLINE void in_order(U (&out)[2]) const {
    const U first = pair(0, 1), second = pair(2, 3);
    out[0] = interleave<false>(first, second);
    out[1] = interleave<true>(first, second);
  }
};

// ---- draws ----
//
// Each says how many registers of its elements the counters of PhiloxLanes give, and makes them.

// The last bits of words as they are, of 53 at most: an unsigned number in [0, 2^53).
template <int W>
HOLOGRAM_INLINE Simd<double, W> to_double(Words64<W> x) {
  using D = Simd<double, W>;
  // 2^52 and 2^84 with the halves of x as their last bits. Both sums are exact.
  const D low = D::from_bits((x & Words64<W>(0xffffffffu)) | Words64<W>(0x4330000000000000u));
  const D high = D::from_bits((x >> 32) | Words64<W>(0x4530000000000000u));
  return (high - D(0x1p84)) + (low - D(0x1p52));
}

template <int W, int digits>
struct UniformFloats {
  using V = Native<float, W>;
  static constexpr int kRegisters = 2;
  HOLOGRAM_INLINE static void make(const PhiloxLanes<W>& lanes, uint64_t, V* out) {
    Words64<W> words[2];
    lanes.in_order(words);
    for (int i = 0; i < 2; ++i) {
      const Simd<uint32_t, W> word((Native<uint32_t, W>)words[i].v);
      const Simd<int32_t, W> number((Native<int32_t, W>)(word >> (32 - digits)).v);
      out[i] = (to_float(number) * Simd<float, W>(1.0 / (1 << digits))).v;
    }
  }
};

template <int W>
struct UniformDoubles {
  using V = Native<double, W>;
  static constexpr int kRegisters = 2;
  HOLOGRAM_INLINE static void make(const PhiloxLanes<W>& lanes, uint64_t, V* out) {
    Words64<W> words[2];
    lanes.in_order(words);
    for (int i = 0; i < 2; ++i) {
      out[i] = (to_double(words[i] >> 11) * Simd<double, W>(0x1p-53)).v;
    }
  }
};

// sqrt(-2 log(u)) with u = (word / 2 + 1/2) / 2^31, the word's half rounded down: in (0, 1].
template <int W>
HOLOGRAM_INLINE Simd<float, W> normal_radius(Simd<uint32_t, W> word) {
  using F = Simd<float, W>;
  const Simd<int32_t, W> half((Native<int32_t, W>)(word >> 1).v);
  const FloatLog<W> u(math_fma(to_float(half), F(0x1p-31), F(0x1p-32)));
  return math_sqrt(F(-2) * FloatLog<W>::logarithm(u.f, u.n()));
}

// The sine and the cosine of 2 pi word / 2^32: of what is beyond the nearest quarter turn, within
// pi / 4, and then by the quarter.
template <int W>
HOLOGRAM_INLINE void turn_of(Simd<uint32_t, W> word, Simd<float, W>& sine, Simd<float, W>& cosine) {
  using F = Simd<float, W>;
  using U = Simd<uint32_t, W>;
  using I = Simd<int32_t, W>;
  const U shifted = wrap_add(word, U(0x20000000u));
  const I rest((Native<int32_t, W>)wrap_sub(shifted & U(0x3fffffffu), U(0x20000000u)).v);
  const F x = to_float(rest) * F(0x1.921fb6p-30);
  const F z = x * x;
  const F s =
      math_fma(x * z, fused_polynomial(z, -0x1.555544p-3, 0x1.1106b4p-7, -0x1.99122ap-13), x);
  const F c = math_fma(z * z, fused_polynomial(z, 0x1.555548p-5, -0x1.6c0af4p-10, 0x1.99911cp-16),
                       math_fma(z, F(-0.5), F(1)));
  const auto odd = I((Native<int32_t, W>)(shifted << 1).v) < I(0);  // the quarter is 1 or 3
  const U half = shifted & U(0x80000000u);                          // 2 or 3
  const U middle = half ^ ((shifted << 1) & U(0x80000000u));        // 1 or 2
  sine = F::from_bits(select(odd, c, s).bits() ^ half);
  cosine = F::from_bits(select(odd, s, c).bits() ^ middle);
}

// The pairs of Box and Muller side by side: the cosine's first.
template <class S>
HOLOGRAM_INLINE void put_pairs(S radius, S sine, S cosine, typename S::V* out) {
  const S even = radius * cosine, odd = radius * sine;
  out[0] = interleave<false>(even, odd).v;
  out[1] = interleave<true>(even, odd).v;
}

template <int W>
struct NormalFloats {
  using V = Native<float, W>;
  static constexpr int kRegisters = 2;
  HOLOGRAM_INLINE static void make(const PhiloxLanes<W>& lanes, uint64_t, V* out) {
    const auto words = [&](int low, int high) HOLOGRAM_INLINED {
      return Simd<uint32_t, W>((Native<uint32_t, W>)lanes.pair(low, high).v);
    };
    Simd<float, W> sine, cosine;
    turn_of(words(1, 3), sine, cosine);
    put_pairs(normal_radius(words(0, 2)), sine, cosine, out);
  }
};

template <int W>
struct NormalDoubles {
  using V = Native<double, W>;
  static constexpr int kRegisters = 2;
  HOLOGRAM_INLINE static void make(const PhiloxLanes<W>& lanes, uint64_t, V* out) {
    using D = Simd<double, W>;
    // (0, 1], so that the logarithm is finite.
    const D u = (to_double(lanes.pair(0, 1) >> 11) + D(1)) * D(0x1p-53);
    const D v = to_double(lanes.pair(2, 3) >> 11) * D(0x1p-53);
    const D radius = math_sqrt(D(-2) * math_log(u)), angle = v * D(0x1.921fb54442d18p+2);
    D sine, cosine;
    for (int i = 0; i < D::kLanes; ++i) {  // side by side: one call of the C library makes both
      sine.v[i] = ::sin(angle.v[i]);
      cosine.v[i] = ::cos(angle.v[i]);
    }
    put_pairs(radius, sine, cosine, out);
  }
};

template <int W>
struct Integers {
  using V = Native<int64_t, W>;
  static constexpr int kRegisters = 4;
  HOLOGRAM_INLINE static void make(const PhiloxLanes<W>& lanes, uint64_t range, V* out) {
    using U = Words64<W>;
    U words[2];
    lanes.in_order(words);
    // word * range as word * (range - 1) + word: of 2^32 the low half would be 0.
    const U most(range - 1);
    for (int i = 0; i < 4; ++i) {
      Native<uint32_t, W / 2> half;
      __builtin_memcpy(&half, reinterpret_cast<const char*>(&words[i / 2].v) + i % 2 * (W / 2),
                       sizeof half);
      const U word(__builtin_convertvector(half, typename U::V));
      out[i] = (V)((multiply_low(word, most) + word) >> 32).v;
    }
  }
};

template <int W>
struct LongIntegers {
  using V = Native<int64_t, W>;
  static constexpr int kRegisters = 2;
  HOLOGRAM_INLINE static void make(const PhiloxLanes<W>& lanes, uint64_t range, V* out) {
    using U = Words64<W>;
    U words[2];
    lanes.in_order(words);
    const U low(range & 0xffffffffu), high(range >> 32), mask(0xffffffffu);
    for (int i = 0; i < 2; ++i) {
      // The upper half of the product, of four products of halves.
      const U x = words[i], upper = x >> 32;
      const U first = multiply_low(upper, low) + (multiply_low(x, low) >> 32);
      const U second = multiply_low(x, high) + (first & mask);
      const U product = multiply_low(upper, high) + (first >> 32) + (second >> 32);
      out[i] = (V)(range == 0 ? x.v : product.v);
    }
  }
};

// Lanes `from` and on of a and b side by side.
template <class E, int W>
HOLOGRAM_INLINE Native<E, W> lanes_from(Native<E, W> a, Native<E, W> b, int from) {
#if defined(__GNUC__) && !defined(__clang__)
  Native<std::make_signed_t<UnsignedOf<sizeof(E)>>, W> at;
  for (int i = 0; i < W / static_cast<int>(sizeof(E)); ++i) at[i] = i;
  return __builtin_shuffle(a, b, at + static_cast<decltype(+at[0])>(from));
#else
  Native<E, W> both[] = {a, b}, r;
  __builtin_memcpy(&r, reinterpret_cast<const E*>(both) + from, sizeof r);
  return r;
#endif
}

// Eight registers of elements from `element` on. `immediates`: kDrawImmediates.
template <class Of, class V>
HOLOGRAM_INLINE void draw_tile(const char* immediates, uint64_t element, V (&out)[8]) {
  constexpr int W = sizeof(V), n = Of::kRegisters;
  using E = std::remove_cvref_t<decltype(out[0][0])>;
  using Lanes = PhiloxLanes<W>;
  constexpr int kLanes = W / static_cast<int>(sizeof(E));
  constexpr int kOfOne = n * kLanes / Lanes::kCounters;  // elements of a counter
  uint64_t bits[3];
  __builtin_memcpy(bits, immediates, sizeof bits);
  const uint64_t first = bits[1] + element / kOfOne;
  const int skipped = static_cast<int>(element % kOfOne);
  if (skipped == 0) [[likely]] {
#pragma GCC unroll 4
    for (int k = 0; k < 8; k += n) {
      Of::make(Lanes(bits[0], first + static_cast<uint64_t>(k / n * Lanes::kCounters)), bits[2],
               out + k);
    }
    return;
  }
  V made[8 + n];
  for (int k = 0; k < 8 + n; k += n) {
    Of::make(Lanes(bits[0], first + static_cast<uint64_t>(k / n * Lanes::kCounters)), bits[2],
             made + k);
  }
  const V* const from = made + skipped / kLanes;
  for (int k = 0; k < 8; ++k) out[k] = lanes_from<E, W>(from[k], from[k + 1], skipped % kLanes);
}

}  // namespace hologram::cpu
