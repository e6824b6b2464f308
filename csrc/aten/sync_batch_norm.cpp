// The operators of torch.nn.SyncBatchNorm, which torch has for GPUs alone: statistics of a batch
// that several processes have parts of. On other devices each is composed of recorded operations.
//
// Of n values of a channel with mean m and variance v (divided by n) torch passes on m and
// 1 / sqrt(v + eps); those of parts are put together as
// m = sum(n_i m_i) / n, v = sum(n_i (v_i + (m_i - m)^2)) / n.
#include "aten/precompiled.h"

#include <ATen/AccumulateType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "aten/delegate.h"
#include "aten/past_autograd.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

bool has_kernels(const Tensor& x) {
  return !target_of(x.device().index()).is_cpu();
}

// As torch's kernels for GPUs do, before anything else.
template <class... Others>
void check_devices(const char* name, const Tensor& first, const Others&... others) {
  std::optional<c10::Device> common = first.device();
  (c10::impl::check_and_update_common_device(common, others, name, "another tensor"), ...);
}

bool is_there(const MaybeTensor& x) {
  return x && x->defined();
}

// Sums are in float32 where the elements are shorter.
Tensor to_sum(const Tensor& x) {
  return x.to(at::toAccumulateType(x.scalar_type(), /*is_cuda=*/true));
}

// All dimensions but that of the channels.
c10::SmallVector<int64_t, 5> others(const Tensor& x) {
  TORCH_CHECK(x.dim() >= 2, "expected a batch with a dimension of channels, got shape ", x.sizes());
  c10::SmallVector<int64_t, 5> dimensions{0};
  for (int64_t d = 2; d < x.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

// A number for each channel, beside x.
Tensor beside(const Tensor& of_channels, const Tensor& x) {
  TORCH_CHECK(of_channels.dim() == 1 && of_channels.size(0) == x.size(1), "expected ", x.size(1),
              " numbers, one for each channel, got shape ", of_channels.sizes());
  c10::SmallVector<int64_t, 5> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = x.size(1);
  return of_channels.view(sizes);
}

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  static const OperatorDelegate delegate("aten::batch_norm_stats", "");
  if (has_kernels(input)) return delegate.two(input, eps);
  const Tensor x = to_sum(input);
  const auto dimensions = others(x);
  const Tensor variance = at::var(x, dimensions, /*correction=*/0);
  return {x.mean(dimensions), (variance + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather_with_counts(const Tensor& input, const Tensor& mean,
                                              const Tensor& invstd, const MaybeTensor& running_mean,
                                              const MaybeTensor& running_var, double momentum,
                                              double eps, const Tensor& counts) {
  static const OperatorDelegate delegate("aten::batch_norm_gather_stats_with_counts", "");
  check_devices("batch_norm_gather_stats_with_counts", input, mean, invstd, running_mean,
                running_var, counts);
  if (has_kernels(input)) {
    return delegate.two(input, mean, invstd, running_mean, running_var, momentum, eps, counts);
  }
  TORCH_CHECK(mean.dim() == 2 && mean.sizes() == invstd.sizes() && counts.numel() == mean.size(0),
              "expected a mean, a deviation and a count for each process, got shapes ",
              mean.sizes(), ", ", invstd.sizes(), " and ", counts.sizes());
  const Tensor weights = counts.to(mean.scalar_type()).view({-1, 1});
  const Tensor n = weights.sum();
  const Tensor all = (mean * weights).sum(0) / n;
  const Tensor variances = invstd.square().reciprocal() - eps;
  const Tensor variance = ((variances + (mean - all).square()) * weights).sum(0) / n;
  if (is_there(running_mean)) running_mean->mul_(1 - momentum).add_(all, momentum);
  if (is_there(running_var)) {
    running_var->mul_(1 - momentum).add_(variance * (n / (n - 1)), momentum);
  }
  return {all, (variance + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather(const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                  const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                  double momentum, double eps, int64_t count) {
  static const OperatorDelegate delegate("aten::batch_norm_gather_stats", "");
  check_devices("batch_norm_gather_stats", input, mean, invstd, running_mean, running_var);
  if (has_kernels(input)) {
    return delegate.two(input, mean, invstd, running_mean, running_var, momentum, eps, count);
  }
  const Tensor counts = mean.new_full({mean.size(0)}, count);
  return gather_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

Tensor normalised(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                  const Tensor& mean, const Tensor& invstd) {
  Tensor x = (to_sum(input) - beside(mean, input)) * beside(invstd, input);
  if (is_there(weight)) x = x * beside(to_sum(*weight), input);
  if (is_there(bias)) x = x + beside(to_sum(*bias), input);
  return x.to(input.scalar_type());
}
Tensor elemt(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
             const Tensor& mean, const Tensor& invstd, double eps) {
  static const OperatorDelegate delegate("aten::batch_norm_elemt", "");
  check_devices("batch_norm_elemt", input, weight, bias, mean, invstd);
  if (has_kernels(input)) return delegate(input, weight, bias, mean, invstd, eps);
  return normalised(input, weight, bias, mean, invstd);
}
Tensor& elemt_out(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                  const Tensor& mean, const Tensor& invstd, double eps, Tensor& out) {
  static const OperatorDelegate delegate("aten::batch_norm_elemt", "out");
  check_devices("batch_norm_elemt_out", input, weight, bias, mean, invstd, out);
  if (has_kernels(input)) {
    delegate(input, weight, bias, mean, invstd, eps, out);
    return out;
  }
  out.resize_(input.sizes());
  return out.copy_(normalised(input, weight, bias, mean, invstd));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad_out,
                                                           const Tensor& input, const Tensor& mean,
                                                           const Tensor& invstd,
                                                           const MaybeTensor& weight, bool of_input,
                                                           bool of_weight, bool of_bias) {
  static const OperatorDelegate delegate("aten::batch_norm_backward_reduce", "");
  check_devices("batch_norm_backward_reduce", grad_out, input, mean, invstd, weight);
  if (has_kernels(input)) {
    return delegate.four(grad_out, input, mean, invstd, weight, of_input, of_weight, of_bias);
  }
  const auto dimensions = others(input);
  const Tensor dy = to_sum(grad_out);
  const Tensor sum = dy.sum(dimensions);
  const Tensor with_x = (dy * (to_sum(input) - beside(mean, input))).sum(dimensions);
  const auto dtype = is_there(weight) ? weight->scalar_type() : sum.scalar_type();
  return {of_input ? sum : Tensor(), of_input ? with_x : Tensor(),
          of_weight ? (with_x * invstd).to(dtype) : Tensor(), of_bias ? sum.to(dtype) : Tensor()};
}

Tensor backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                      const Tensor& invstd, const MaybeTensor& weight, const Tensor& sum_dy,
                      const Tensor& sum_dy_xmu, const Tensor& count) {
  static const OperatorDelegate delegate("aten::batch_norm_backward_elemt", "");
  check_devices("batch_norm_backward_elemt", grad_out, input, mean, invstd, weight, sum_dy,
                sum_dy_xmu, count);
  if (has_kernels(input)) {
    return delegate(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count);
  }
  const Tensor n = count.sum().to(mean.scalar_type());
  const Tensor slope = invstd.square() * (sum_dy_xmu / n);
  Tensor scale = invstd;
  if (is_there(weight)) scale = scale * to_sum(*weight);
  const Tensor x = to_sum(input) - beside(mean, input);
  const Tensor dy = to_sum(grad_out) - beside(sum_dy / n, input);
  return ((dy - x * beside(slope, input)) * beside(scale, input)).to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement("batch_norm_stats", &stats, m);
  implement("batch_norm_gather_stats", &gather, m);
  implement("batch_norm_gather_stats_with_counts", &gather_with_counts, m);
  implement("batch_norm_elemt", &elemt, m);
  implement("batch_norm_elemt.out", &elemt_out, m);
  implement("batch_norm_backward_reduce", &backward_reduce, m);
  implement("batch_norm_backward_elemt", &backward_elemt, m);
}

}  // namespace hologram::aten
