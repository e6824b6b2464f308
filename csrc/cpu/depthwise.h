// Convolutions in which each channel has a kernel of its own, of images in float32: each output
// plane is computed of one input plane.
//
// torch's library spends some 50 us on the description of each such call, turns the images into
// another layout and back; a network for phones has a dozen of them to three dozen, of 10 us of
// arithmetic each.
#pragma once

#include <cstdint>

#include "atlas/export.h"
#include "cpu/parallel.h"

namespace hologram::cpu {

// Images [images, channels, height, width], kernels [channels, kernel_height, kernel_width],
// outputs [images, channels, out_height, out_width], all of them dense and not empty:
// out_height = (height + 2 pad_height - kernel_height) / stride_height + 1, width likewise.
struct Depthwise {
  int64_t images, channels;
  int64_t height, width, out_height, out_width;
  int64_t kernel_height, kernel_width, stride_height, stride_width, pad_height, pad_width;

  int64_t plane() const { return height * width; }
  int64_t out_plane() const { return out_height * out_width; }
  int64_t taps() const { return kernel_height * kernel_width; }
};

// Threads share the work, by planes. What lies outside of an image counts as zero, in products too:
// an infinite weight makes NaN of it. Throws std::bad_alloc.
HOLOGRAM_EXPORT void depthwise(const Depthwise& shape, const float* images, const float* kernels,
                               float* outputs, Parallel& parallel);
HOLOGRAM_EXPORT void depthwise_input_gradient(const Depthwise& shape, const float* grads,
                                              const float* kernels, float* images,
                                              Parallel& parallel);
HOLOGRAM_EXPORT void depthwise_weight_gradient(const Depthwise& shape, const float* grads,
                                               const float* images, float* kernels,
                                               Parallel& parallel);

}  // namespace hologram::cpu
