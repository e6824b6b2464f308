// What norms have in common: their operands, and the moments of rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "aten/builder.h"
#include "aten/iteration.h"
#include "atlas/operands.h"

namespace hologram::aten {

// Raises what torch raises where tensors are of several devices: kernels that torch composes on the
// CPU, and so does not check.
template <class... Tensors>
void check_devices(const char* method, const Tensors&... tensors) {
  std::optional<c10::Device> device;
  (c10::impl::check_and_update_common_device(device, tensors, method, "argument"), ...);
}

using OptionalTensor = std::optional<at::Tensor>;

bool is_given(const OptionalTensor& tensor);

// The space of the last dimensions, a row of each; none where torch has to complain.
std::optional<Dimensions> normalized(const at::Tensor& input, at::IntArrayRef shape);
// The sizes of what there is one of for each row.
Sizes row_sizes(const at::Tensor& input, at::IntArrayRef shape);

// A contiguous tensor of real numbers on the device of another, with so many elements.
bool is_vector(const at::Tensor& tensor, int64_t count, const at::Tensor& beside);
bool is_vector(const OptionalTensor& tensor, int64_t count, const at::Tensor& beside);

// A value, or an operand, as one of another spread.
View by(View value, Spread spread);

// The dtype of a norm's statistics and of its parameters: that of the input, or float32 beside half
// precision. None for mixtures that torch refuses.
std::optional<c10::ScalarType> parameter_type(
    const at::Tensor& input, std::initializer_list<const OptionalTensor*> parameters);

// Whether the backward of a norm adds a product by fma. Of bfloat16 the CPU has no loop with a
// product that is not in the accumulator.
bool adds_product_by_fma(const at::Tensor& input);

struct Moments {
  View distance, scale, mean;  // x - mean of each element; 1 / sqrt(variance + eps), and the mean
};
// Of rows.
Moments moments(Builder& b, const View& x, const Dimensions& space, double eps);

}  // namespace hologram::aten
