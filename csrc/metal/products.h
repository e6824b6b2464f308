// Matrix products by the package's own kernels (metal/native/product.h).
#pragma once

#include <cstdint>
#include <optional>

#include "atlas/product.h"
#include "metal/native_launch.h"

namespace hologram::metal {

// As the kernel has them.
struct ProductParameters {
  uint64_t a_stride, b_stride, c_stride, out_stride;
  uint64_t a_leading, b_leading, c_leading, out_leading;
  uint32_t rows, columns, inner;
  uint32_t flags;
  float alpha, beta;
};

// Of a, b, c, out and the bias.
using ProductLaunch = NativeLaunch<ProductParameters, 5>;

// None where there is no kernel for it: of f64, and where numbers do not fit.
std::optional<ProductLaunch> launch_of(const Product& product);

}  // namespace hologram::metal
