// The cross entropy with label smoothing. torch divides its mean by the weights of the targets that
// are not ignored, which it selects: the host has to wait for that. Here they are what nll_loss
// leaves as its total weight, so that all of it is recorded, and joins the pass of the loss.
#include "aten/precompiled.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss_native.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss2d_forward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/where.h>
#include <c10/core/SymInt.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "aten/bare.h"
#include "aten/iteration.h"
#include "aten/norms.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// Whether this is such a call, on operands that torch would not complain of.
bool is_smoothed(const Tensor& input, const Tensor& target, const OptionalTensor& weight,
                 int64_t reduction, double smoothing) {
  const bool weighted = is_given(weight);
  if (!(smoothing > 0 && smoothing <= 1) || reduction < 0 || reduction >= at::Reduction::END ||
      !is_bare(input) || !is_bare(target) || (weighted && !is_bare(*weight)) || input.dim() < 1 ||
      target.scalar_type() != at::kLong || input.numel() == 0) {
    return false;
  }
  const int64_t of_classes = input.dim() == 1 ? 0 : 1;
  Sizes of_targets;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d != of_classes) of_targets.push_back(input.size(d));
  }
  return target.sizes() == of_targets &&
         (!weighted || (weight->dim() == 1 && weight->numel() == input.size(of_classes) &&
                        weight->scalar_type() == input.scalar_type()));
}

// The loss of logarithms, and the weights of the targets that count where it is their mean.
std::tuple<Tensor, Tensor> smoothed_loss_of(const Tensor& logs, const Tensor& target,
                                            const OptionalTensor& weight, int64_t reduction,
                                            int64_t ignored) {
  if (logs.dim() <= 2) return at::nll_loss_forward(logs, target, weight, reduction, ignored);
  if (logs.dim() == 4) return at::nll_loss2d_forward(logs, target, weight, reduction, ignored);
  auto [loss, total] =
      at::nll_loss2d_forward(logs.reshape({logs.size(0), logs.size(1), 1, -1}),
                             target.reshape({logs.size(0), 1, -1}), weight, reduction, ignored);
  if (reduction == at::Reduction::None) loss = loss.reshape(target.sizes());
  return {loss, total};
}

Tensor smoothed(const Tensor& input, const Tensor& target, const OptionalTensor& weight,
                int64_t reduction, int64_t ignored, double smoothing) {
  const int64_t of_classes = input.dim() == 1 ? 0 : 1;
  const Tensor logs = at::log_softmax(input, of_classes, input.scalar_type());
  const auto [loss, total_weight] = smoothed_loss_of(logs, target, weight, reduction, ignored);
  Tensor weighted = logs;
  if (is_given(weight)) {
    Sizes along_classes(static_cast<size_t>(input.dim()), 1);
    along_classes[static_cast<size_t>(of_classes)] = weight->numel();
    weighted = logs * weight->view(along_classes);
  }
  Tensor smooth = -weighted.sum(of_classes);
  smooth = at::where(at::eq(target, ignored), at::Scalar(0.0), smooth);
  if (reduction != at::Reduction::None) smooth = smooth.sum();
  if (reduction == at::Reduction::Mean) smooth = smooth / total_weight;
  const auto classes = static_cast<double>(input.size(of_classes));
  return (1 - smoothing) * loss + smooth * (smoothing / classes);
}

Tensor cross_entropy(const Tensor& input, const Tensor& target, const OptionalTensor& weight,
                     int64_t reduction, c10::SymInt ignored, double smoothing) {
  // Before torch's composition looks at anything else.
  check_devices("cross_entropy_loss", input, target, weight);
  if (!ignored.is_symbolic() && is_smoothed(input, target, weight, reduction, smoothing)) {
    return smoothed(input, target, weight, reduction, ignored.expect_int(), smoothing);
  }
  return at::native::cross_entropy_loss_symint(input, target, weight, reduction, ignored,
                                               smoothing);
}

}  // namespace

// With gradients, which are those of its parts, and where autograd is off.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("cross_entropy_loss", &cross_entropy);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cross_entropy_loss", &cross_entropy);
}

}  // namespace hologram::aten
