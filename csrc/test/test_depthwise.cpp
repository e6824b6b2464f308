#include "cpu/depthwise.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "cpu/kernel_table.h"

namespace hologram::cpu {
namespace {

using Floats = std::vector<float>;

Depthwise shape_of(int64_t images, int64_t channels, int64_t height, int64_t width, int64_t ky,
                   int64_t kx, int64_t stride, int64_t pad) {
  return {images,
          channels,
          height,
          width,
          (height + 2 * pad - ky) / stride + 1,
          (width + 2 * pad - kx) / stride + 1,
          ky,
          kx,
          stride,
          stride,
          pad,
          pad};
}

// Calls use(plane, output, input, weight), numbers of elements, for each product of a convolution.
template <class Use>
void for_products(const Depthwise& s, const Use& use) {
  for (int64_t n = 0; n < s.images * s.channels; ++n) {
    for (int64_t oy = 0; oy < s.out_height; ++oy) {
      for (int64_t ox = 0; ox < s.out_width; ++ox) {
        for (int64_t ky = 0; ky < s.kernel_height; ++ky) {
          for (int64_t kx = 0; kx < s.kernel_width; ++kx) {
            const int64_t y = oy * s.stride_height + ky - s.pad_height;
            const int64_t x = ox * s.stride_width + kx - s.pad_width;
            if (y < 0 || y >= s.height || x < 0 || x >= s.width) continue;
            use(static_cast<size_t>(n * s.out_plane() + oy * s.out_width + ox),
                static_cast<size_t>(n * s.plane() + y * s.width + x),
                static_cast<size_t>(n % s.channels * s.taps() + ky * s.kernel_width + kx));
          }
        }
      }
    }
  }
}

Floats random_floats(int64_t count, std::mt19937& random) {
  Floats result(static_cast<size_t>(count));
  std::uniform_real_distribution<float> values(-1, 1);
  for (float& each : result) each = values(random);
  return result;
}

// `wanted` and the sums of the magnitudes of what it is made of, which bound the rounding.
void compare(const std::string& what, const Floats& found, const std::vector<double>& wanted,
             const std::vector<double>& magnitudes) {
  for (size_t i = 0; i < found.size(); ++i) {
    const double bound = 64 * static_cast<double>(std::numeric_limits<float>::epsilon());
    if (std::abs(static_cast<double>(found[i]) - wanted[i]) <= bound * magnitudes[i]) continue;
    check::fail(__FILE__, __LINE__,
                what + ", element " + std::to_string(i) + ": " + std::to_string(found[i]) +
                    " instead of " + std::to_string(wanted[i]));
    return;
  }
}

void check_shape(const Depthwise& s, Parallel& parallel = serial()) {
  std::mt19937 random(7);
  const int64_t planes = s.images * s.channels;
  const Floats images = random_floats(planes * s.plane(), random);
  const Floats kernels = random_floats(s.channels * s.taps(), random);
  const Floats grads = random_floats(planes * s.out_plane(), random);
  Floats outputs(grads.size(), NAN), image_grads(images.size(), NAN), kernel_grads(kernels.size());
  struct Wanted {
    std::vector<double> values, magnitudes;
    explicit Wanted(size_t count) : values(count), magnitudes(count) {}
    void add(size_t i, double product) {
      values[i] += product;
      magnitudes[i] += std::abs(product);
    }
  } output(grads.size()), image(images.size()), kernel(kernels.size());
  for_products(s, [&](size_t out, size_t in, size_t weight) {
    output.add(out, double{images[in]} * double{kernels[weight]});
    image.add(in, double{grads[out]} * double{kernels[weight]});
    kernel.add(weight, double{grads[out]} * double{images[in]});
  });
  depthwise(s, images.data(), kernels.data(), outputs.data(), parallel);
  depthwise_input_gradient(s, grads.data(), kernels.data(), image_grads.data(), parallel);
  depthwise_weight_gradient(s, grads.data(), images.data(), kernel_grads.data(), parallel);
  const std::string what = std::to_string(s.height) + " x " + std::to_string(s.width) +
                           ", kernel " + std::to_string(s.kernel_height) + " x " +
                           std::to_string(s.kernel_width) + ", stride " +
                           std::to_string(s.stride_width) + ", pad " + std::to_string(s.pad_width);
  compare("output of " + what, outputs, output.values, output.magnitudes);
  compare("gradient of images of " + what, image_grads, image.values, image.magnitudes);
  compare("gradient of kernels of " + what, kernel_grads, kernel.values, kernel.magnitudes);
}

}  // namespace

TEST(depthwise_convolutions_are_sums_of_products) {
  for (const int64_t height : {1, 2, 4, 7, 13}) {
    for (const int64_t width : {1, 2, 3, 8, 17, 70}) {
      for (const auto& [ky, kx] : {std::pair{1, 1}, {3, 3}, {5, 5}, {7, 7}, {2, 4}, {1, 3}}) {
        for (const int64_t stride : {1, 2, 3}) {
          for (const int64_t pad : {0, 1, 2, 4}) {
            if (height + 2 * pad < ky || width + 2 * pad < kx) continue;
            check_shape(shape_of(2, 3, height, width, ky, kx, stride, pad));
          }
        }
      }
    }
  }
}

TEST(depthwise_kernels_may_be_long) {
  check_shape(shape_of(1, 2, 3, 130, 1, 121, 1, 0));
  check_shape(shape_of(1, 2, 130, 3, 121, 1, 1, 0));
  check_shape(shape_of(1, 2, 2, 3, 5, 24, 1, 12));
  check_shape(shape_of(2, 1, 60, 61, 11, 11, 2, 5));
}

TEST(depthwise_strides_and_pads_may_differ) {
  Depthwise s = shape_of(2, 2, 9, 11, 3, 5, 1, 1);
  s.stride_height = 2;
  s.stride_width = 3;
  s.pad_height = 0;
  s.pad_width = 2;
  s.out_height = (9 - 3) / 2 + 1;
  s.out_width = (11 + 4 - 5) / 3 + 1;
  check_shape(s);
}

TEST(depthwise_threads_share_the_planes) {
  struct Threads final : Parallel {
    int threads() const override { return 3; }
    void run(int count, Body body, void* context) override {
      std::vector<std::thread> all;
      for (int i = 0; i < count; ++i) all.emplace_back(body, context, i);
      for (auto& each : all) each.join();
    }
  } threads;
  check_shape(shape_of(2, 7, 64, 60, 5, 5, 1, 2), threads);
  check_shape(shape_of(4, 2, 90, 90, 3, 3, 1, 1), threads);
}

// What is infinite reaches only what reads it.
TEST(depthwise_keeps_infinities_where_they_belong) {
  const Depthwise s = shape_of(1, 1, 4, 4, 3, 3, 1, 0);  // outputs of 2 x 2
  Floats images(16, 1.0F), grads(4, 1.0F), kernels(9);
  images[3] = std::numeric_limits<float>::infinity();  // the end of the first row
  depthwise_weight_gradient(s, grads.data(), images.data(), kernels.data(), serial());
  for (size_t t = 0; t < 9; ++t) CHECK_EQ(std::isinf(kernels[t]), t == 2);
  Floats outputs(4);
  depthwise(s, images.data(), Floats(9, 1.0F).data(), outputs.data(), serial());
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(std::isinf(outputs[i]), i == 1);
}

}  // namespace hologram::cpu
