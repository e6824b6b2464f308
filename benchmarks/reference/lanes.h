// What the loops by hand compute on: a vector register of floats, loaded from f32 or bf16.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/convert.h"
#include "cpu/math.h"

namespace {

using namespace hologram::cpu;

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
constexpr int kWidth = 64;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kWidth = 32;
#else
constexpr int kWidth = 16;
#endif

using V = Simd<float, kWidth>;
constexpr long kLanes = V::kLanes;

struct F32 {
  using Element = float;
  HOLOGRAM_INLINE static V load(const float* p) { return load_lanes<float, kWidth>(p); }
  HOLOGRAM_INLINE static void store(float* p, V x) { store_lanes(p, x); }
  HOLOGRAM_INLINE static V round(V x) { return x; }
};

struct BF16 {
  using Element = uint16_t;
  typedef uint16_t Words __attribute__((vector_size(kWidth / 2)));
  HOLOGRAM_INLINE static V load(const uint16_t* p) {
    Words words;
    std::memcpy(&words, p, sizeof words);
    return from_bf16_bits(
        Simd<uint32_t, kWidth>(__builtin_convertvector(words, typename Simd<uint32_t, kWidth>::V)));
  }
  // Of a rounded value.
  HOLOGRAM_INLINE static void store(uint16_t* p, V x) {
    const Words words = __builtin_convertvector(bf16_bits(x).v, Words);
    std::memcpy(p, &words, sizeof words);
  }
  // No NaN here has payload in its low bits: operands are bf16.
  HOLOGRAM_INLINE static V round(V x) { return round_clean_to_bf16(x); }
};

}  // namespace
