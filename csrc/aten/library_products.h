// Matrix products by the library of a device's vendor (Queue::product), as calls of the program
// that its queue computes, with no kernel of torch's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>

#include "aten/report.h"

namespace hologram::aten {

// alpha * a @ b + beta * self, for each matrix of tensors with three dimensions.
struct ProductTerms {
  const at::Tensor& a;
  const at::Tensor& b;
  const at::Tensor* self = nullptr;  // of the dtype of the others, and of sizes that broadcast
  double beta = 0, alpha = 1;
};

// A new tensor for what a queue computes.
at::Tensor make_fresh(at::IntArrayRef sizes, at::IntArrayRef strides, caffe2::TypeMeta dtype,
                      c10::DeviceIndex device);

// Whether the device has a library; then it may be that it computes a product.
bool has_product_library(c10::DeviceIndex device);

// Computes a product whose operands are plain (is_plain_operand()), of one dtype and of sizes that
// fit, in `*out` or, where that is null, in a new tensor, `fresh`. Counts it as native. False, with
// neither changed but for what the product would have overwritten, where torch's kernel has to do
// it.
bool product_by_library(OpCounter& counter, const ProductTerms& terms, const at::Tensor* out,
                        at::Tensor* fresh);

}  // namespace hologram::aten
