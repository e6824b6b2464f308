// The loops of cpu/depthwise.cpp over registers.
#pragma once

#include <cstdint>

#include "cpu/kernel_table.h"
#include "cpu/math.h"
#include "cpu/simd.h"

namespace hologram::cpu {

template <int W>
class DepthwiseLoops {
  using F = Simd<float, W>;
  static constexpr int64_t kLanes = F::kLanes;

  HOLOGRAM_INLINE static F add_product(F sum, F x, F y) {
    if constexpr (kIsBaseline<W>) {
      return sum + x * y;  // the baseline has no other
    } else {
      return math_fma(x, y, sum);
    }
  }

  template <int registers>
  HOLOGRAM_INLINE static void sums_of(const DepthwiseTap* taps, int64_t tap_count,
                                      const float* from, float* to) {
    F sums[registers];
    for (auto& each : sums) each = F(0.0F);
    for (int64_t t = 0; t < tap_count; ++t) {
      const F weight(taps[t].weight);
      const float* const at = from + taps[t].offset;
      for (int r = 0; r < registers; ++r) {
        sums[r] = add_product(sums[r], load_lanes<float, W>(at + r * kLanes), weight);
      }
    }
    for (int r = 0; r < registers; ++r) store_lanes<float, W>(to + r * kLanes, sums[r]);
  }

  template <int taps>
  HOLOGRAM_INLINE static void products_of(const DepthwiseTap* at, const float* from,
                                          const float* grad, const uint32_t* inside, int64_t count,
                                          float* to) {
    F sums[taps];
    for (auto& each : sums) each = F(0.0F);
    for (int64_t i = 0; i < count; i += kLanes) {
      const F g = load_lanes<float, W>(grad + i);
      const auto mask = load_lanes<uint32_t, W>(inside + i);
      for (int t = 0; t < taps; ++t) {
        const F x = load_lanes<float, W>(from + at[t].offset + i);
        sums[t] = add_product(sums[t], F::from_bits(x.bits() & mask), g);
      }
    }
    for (int t = 0; t < taps; ++t) {
      float lanes[kLanes];
      store_lanes<float, W>(lanes, sums[t]);
      float sum = 0;
      for (const float lane : lanes) sum += lane;
      to[t] += sum;
    }
  }

 public:
  static constexpr int kRegisters = 4, kTaps = 8;  // that are added to side by side
  static_assert(kRegisters * kLanes <= kDepthwiseSlack);

  static void sums(const DepthwiseTap* taps, int64_t tap_count, const float* from, float* to,
                   int64_t count) {
    int64_t done = 0;
    for (; count - done > 2 * kLanes; done += kRegisters * kLanes) {
      sums_of<kRegisters>(taps, tap_count, from + done, to + done);
    }
    if (count - done > kLanes) {
      sums_of<2>(taps, tap_count, from + done, to + done);
    } else if (count > done) {
      sums_of<1>(taps, tap_count, from + done, to + done);
    }
  }
  static void products(const DepthwiseTap* taps, int64_t tap_count, const float* from,
                       const float* grad, const uint32_t* inside, int64_t count, float* to) {
    int64_t t = 0;
    for (; t + kTaps <= tap_count; t += kTaps) {
      products_of<kTaps>(taps + t, from, grad, inside, count, to + t);
    }
    for (; t < tap_count; ++t) products_of<1>(taps + t, from, grad, inside, count, to + t);
  }
};

}  // namespace hologram::cpu
