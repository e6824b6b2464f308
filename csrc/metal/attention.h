// Attention by the package's own kernels (metal/native/attention.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "atlas/attention.h"
#include "metal/native_launch.h"

namespace hologram::metal {

// As the kernels have them.
struct AttentionParameters {
  struct Strides {
    uint64_t batch, head, row;
  };
  Strides query, key, value, out, sums, mask;
  uint64_t mask_column, of_out_column;
  Strides of_out, of_query, of_key, of_value;
  uint32_t heads, group, queries, keys, head_size;
  uint32_t flags;
  float scale;
};

// Of query, key, value, mask, out and sums; of a backward kernel of of_out, memory, of_query,
// of_key and of_value, too.
using AttentionLaunch = NativeLaunch<AttentionParameters, 11>;

// None where there is no kernel for it: of f64, of larger heads, and where numbers do not fit.
std::optional<AttentionLaunch> launch_of(const Attention& attention);
// The same of the gradients: that of the queries first, which computes what the other one reads.
std::optional<std::array<AttentionLaunch, 2>> launches_of(const Attention& attention,
                                                          const AttentionGradients& gradients);

}  // namespace hologram::metal
