// The RMS norm: with a kernel of torch's fused operator it has one node of autograd, and a backward
// that is one pass.
//
// torch has the operator as a composite. What recording declines goes to that, on the device's own
// operations; the backward of it is below.
#include "aten/precompiled.h"

#include "aten/row_programs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <c10/util/strides.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "aten/delegate.h"
#include "aten/folding.h"
#include "aten/iteration.h"
#include "aten/norms.h"
#include "aten/past_autograd.h"
#include "aten/report.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::ScalarType;
using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;

// Statistics are of the type that is computed in.
ScalarType statistics_type(const Tensor& input) {
  return at::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type();
}

// Whether torch's product of `tensor` and what is broadcast to it has the strides of a new tensor,
// which are those that a recorded result has.
bool lies_as_new(const Tensor& tensor, const Tensor& other) {
  const Sizes strides =
      result_strides({tensor.unsafeGetTensorImpl(), other.unsafeGetTensorImpl()},
                     {tensor.scalar_type() != other.scalar_type(), false}, tensor.sizes(), false);
  return strides.empty() ||
         at::IntArrayRef(strides) == at::IntArrayRef(c10::contiguous_strides(tensor.sizes()));
}

// What torch's composite would complain of is not recorded.
bool is_recorded(const Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight) {
  if (!is_real(input.scalar_type())) return false;
  if (!is_given(weight)) return true;
  return weight->sizes() == shape && weight->scalar_type() == input.scalar_type() &&
         is_vector(weight, c10::multiply_integers(shape), input);
}

bool record_forward(const Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                    std::optional<double> eps, Two& results) {
  const auto space = normalized(input, shape);
  if (!space || !is_recorded(input, shape, weight)) return false;
  const auto folding = Folding::of(input, 0, true);
  if (!folding) return false;
  const ScalarType type = statistics_type(input);
  const double least = type == at::kDouble ? std::numeric_limits<double>::epsilon()
                                           : std::numeric_limits<float>::epsilon();
  Window& window = current_window(input.device().index());
  Tensor scale = make_folded(window, input, row_sizes(input, shape), type);
  if (!lies_as_new(input, scale)) return false;
  Tensor out = make_folded(window, input, input.sizes(), input.scalar_type());
  const DType dtype = *group_dtype(input.scalar_type()), compute = compute_dtype(dtype);
  Builder b(compute, folding->count(), {});
  const View x = folding->source(b);
  b.enter(compute, folding->count(), *space);
  const View squares = b.fold(Op::add, b.apply(Op::mul, {x, x}), *space, kRows);
  const View mean = b.apply(Op::div, {squares, b.number(static_cast<double>(space->columns))});
  const View root = b.apply(Op::rsqrt, {b.apply(Op::add, {mean, b.number(eps.value_or(least))})});
  b.store(contiguous_view(scale), root);
  b.enter(compute, folding->count(), *space);
  const View y = b.apply(Op::mul, {x, by(root, kRows)});
  if (is_given(weight)) b.apply(Op::mul, {y, by(contiguous_view(*weight), kColumns)});
  b.give(contiguous_view(out), dtype);
  record_built(window, b);
  results = {std::move(out), std::move(scale)};
  return true;
}

Two rms_norm(const Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
             std::optional<double> eps) {
  static OpCounter& counter = op_counter("aten::_fused_rms_norm");
  check_devices("_fused_rms_norm", input, weight);
  Two results;
  if (!record_forward(input, shape, weight, eps, results)) {
    return at::compositeimplicitautograd::_fused_rms_norm(input, shape, weight, eps);
  }
  note_native(counter);
  return results;
}

bool record_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape,
                     const Tensor& scale, const OptionalTensor& weight, std::array<bool, 2> wanted,
                     Two& results) {
  const auto space = normalized(input, shape);
  if (!space || !is_recorded(input, shape, weight) || (wanted[1] && !is_given(weight)) ||
      grad.scalar_type() != input.scalar_type() || grad.sizes() != input.sizes() ||
      grad.device() != input.device() || !is_vector(scale, space->rows, input) ||
      scale.scalar_type() != statistics_type(input) || !(wanted[0] || wanted[1]) ||
      !lies_as_new(grad, is_given(weight) ? *weight : scale)) {
    return false;
  }
  const auto xs = Folding::of(input, 0, true), grads = Folding::of(grad, 0, true);
  if (!xs || !grads) return false;
  Window& window = current_window(input.device().index());
  const DType dtype = *group_dtype(input.scalar_type()), compute = compute_dtype(dtype);
  Tensor dx, dweight;
  if (wanted[0]) dx = make_folded(window, input, input.sizes(), input.scalar_type());
  if (wanted[1]) dweight = make_folded(window, input, shape, input.scalar_type());
  Builder b(compute, xs->count(), {});
  const View x = xs->source(b), g = grads->source(b), root = contiguous_view(scale);
  const auto elements = [&] { b.enter(compute, xs->count(), *space); };
  elements();
  // In this order the accumulator alone is enough for each of them.
  const View normal = b.apply(Op::mul, {x, by(root, kRows)});
  const View product = b.apply(Op::mul, {normal, g});
  if (wanted[1]) {
    b.fold(Op::add, product, *space, kColumns);
    b.give(contiguous_view(dweight), dtype);
    elements();
  }
  if (wanted[0]) {
    View weighted = g, along = product;
    if (is_given(weight)) {
      const View of_columns = by(contiguous_view(*weight), kColumns);
      weighted = b.apply(Op::mul, {g, of_columns});
      along = b.apply(Op::mul, {product, of_columns});
    }
    const View sum = b.fold(Op::add, along, *space, kRows);
    const View mean = b.apply(Op::div, {sum, b.number(static_cast<double>(space->columns))});
    const View share = b.apply(Op::mul, {mean, root});
    View distance;
    if (adds_product_by_fma(input)) {
      const View less = b.apply(Op::neg, {share});
      elements();
      distance = b.apply(Op::fma, {x, by(less, kRows), weighted});
    } else {
      elements();
      distance = b.apply(Op::sub, {weighted, b.apply(Op::mul, {x, by(share, kRows)})});
    }
    b.apply(Op::mul, {distance, by(root, kRows)});
    b.give(contiguous_view(dx), dtype);
  }
  record_built(window, b);
  results = {std::move(dx), std::move(dweight)};
  return true;
}

// The same in operations of torch, for all that the forward takes. The gradient lies as the first
// product does, as it does where autograd goes back through the composite.
Two composed_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape,
                      const Tensor& scale, const OptionalTensor& weight,
                      std::array<bool, 2> wanted) {
  Sizes normal_dims, other_dims;
  for (int64_t d = 0; d < input.dim(); ++d) {
    const bool is_normal = d >= input.dim() - static_cast<int64_t>(shape.size());
    (is_normal ? normal_dims : other_dims).push_back(d);
  }
  const Tensor g = grad.to(scale.scalar_type()), normal = input.to(scale.scalar_type()) * scale;
  Tensor dx, dweight;
  if (wanted[0]) {
    const Tensor weighted = is_given(weight) ? g * *weight : g;
    const Tensor mean = (weighted * normal).mean(normal_dims, true);
    dx = (weighted * scale).sub_(normal * (mean * scale)).to(input.scalar_type());
  }
  if (wanted[1]) {
    const Tensor product = g * normal;
    dweight = (other_dims.empty() ? product : product.sum(other_dims)).to(weight->scalar_type());
  }
  return {std::move(dx), std::move(dweight)};
}

Two rms_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape,
                      const Tensor& scale, const OptionalTensor& weight,
                      std::array<bool, 2> wanted) {
  static OpCounter& counter = op_counter("aten::_fused_rms_norm_backward");
  check_devices("_fused_rms_norm_backward", grad, input, scale, weight);
  Two results;
  if (!record_backward(grad, input, shape, scale, weight, wanted, results)) {
    return composed_backward(grad, input, shape, scale, weight, wanted);
  }
  note_native(counter);
  return results;
}

}  // namespace

void register_rms_norm() {
  implement("_fused_rms_norm", &rms_norm);
  implement("_fused_rms_norm_backward", &rms_norm_backward);
}

}  // namespace hologram::aten
