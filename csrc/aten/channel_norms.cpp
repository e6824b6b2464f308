// Batch norm and group norm, and their derivatives: statistics that have an element for each
// channel or group, and programs over rows that apply them.
//
// Where channels lie in rows (NCHW) the moments of each row are taken while it is in cache, and
// joined: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for
// Computing Sample Variances", 1979. What recording declines goes to torch's kernel. That is group
// norm with channels last, too: it takes both moments in one go, which folds down the rows of
// planes would need two for.
#include "aten/precompiled.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "aten/block.h"
#include "aten/delegate.h"
#include "aten/delegate_target.h"
#include "aten/folding.h"
#include "aten/norms.h"
#include "aten/past_autograd.h"
#include "aten/report.h"
#include "aten/row_programs.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::ScalarType;
using at::Tensor;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// ---- batch norm ----

// Elements of channels, in the order of memory: [planes, channels, inner], or [rows, channels].
class Channels {
 public:
  // None where recording has to leave the tensor to torch's kernel.
  static std::optional<Channels> of(const Tensor& input) {
    if (input.dim() < 2 || input.dim() > 5 || !is_real(input.scalar_type()) || input.numel() == 0) {
      return std::nullopt;
    }
    Channels result;
    result.count_ = input.numel();
    result.channels_ = input.size(1);
    result.format_ = input.suggest_memory_format();
    result.last_ = result.format_ != at::MemoryFormat::Contiguous;
    if (result.last_ && !input.is_contiguous(result.format_)) return std::nullopt;
    const int64_t planes = input.size(0), inner = result.count_ / planes / result.channels_;
    if (result.channels_ == 1) {
      result.space_ = {1, 1, result.count_};
      result.spread_ = kRows;
    } else if (result.last_ || inner == 1) {
      result.space_ = {1, planes * inner, result.channels_};
      result.spread_ = planes * inner == 1 ? kEach : kColumns;
    } else {
      result.space_ = {planes, result.channels_, inner};
      result.spread_ = planes == 1 ? kRows : kMiddle;
    }
    return result;
  }

  int64_t channels() const { return channels_; }
  double folded() const { return static_cast<double>(count_ / channels_); }
  bool is_folded() const { return count_ != channels_; }

  // The elements of the input, or of what has its sizes.
  std::optional<Folding> elements(const Tensor& tensor) const {
    return Folding::of(last_ ? tensor.movedim(1, -1) : tensor, 0, true);
  }
  void enter(Builder& b) const { b.enter(b.compute(), count_, space_); }
  void enter_channels(Builder& b) const { b.enter(b.compute(), channels_); }
  // A value of channels beside elements.
  View of_channel(const View& value) const { return by(value, spread_); }

  // What there is to sum of elements before the rest can be: one for each row, or each.
  View of_rows(Builder& b, const View& value) const {
    return in_rows() ? b.fold(Op::add, value, space_, kRows) : value;
  }
  // Sums over what of_rows() left.
  View of_channels(Builder& b, const View& value) const {
    if (!in_rows()) return b.fold(Op::add, value, space_, kColumns);
    if (space_.planes == 1) return value;
    return b.fold(Op::add, value, {1, space_.planes, channels_}, kColumns);
  }

  struct Statistics {
    View mean, squares;  // the squares of the distances from it, summed up
  };
  Statistics statistics(Builder& b, const View& x) const {
    if (!in_rows()) {
      const View mean =
          b.apply(Op::div, {b.fold(Op::add, x, space_, kColumns), b.number(folded())});
      enter(b);
      const View distance = b.apply(Op::sub, {x, by(mean, kColumns)});
      return {mean, b.fold(Op::add, b.apply(Op::mul, {distance, distance}), space_, kColumns)};
    }
    const View inner = b.number(static_cast<double>(space_.columns));
    const View means = b.apply(Op::div, {b.fold(Op::add, x, space_, kRows), inner});
    enter(b);
    const View distance = b.apply(Op::sub, {x, by(means, kRows)});
    const View squares = b.fold(Op::add, b.apply(Op::mul, {distance, distance}), space_, kRows);
    if (space_.planes == 1) return {means, squares};
    const Dimensions rows{1, space_.planes, channels_};
    const View mean = b.apply(Op::div, {b.fold(Op::add, means, rows, kColumns),
                                        b.number(static_cast<double>(space_.planes))});
    b.enter(b.compute(), space_.planes * channels_, rows);
    const View off = b.apply(Op::sub, {means, by(mean, kColumns)});
    const View between = b.apply(Op::mul, {b.apply(Op::mul, {off, off}), inner});
    return {mean, b.fold(Op::add, b.apply(Op::add, {squares, between}), rows, kColumns)};
  }

  // A new tensor with the sizes of the input, its elements in this order.
  Tensor make(Window& window, const Tensor& input) const {
    Tensor result = make_folded(window, input, input.sizes(), input.scalar_type());
    if (last_) result.unsafeGetTensorImpl()->empty_tensor_restride(format_);
    return result;
  }

 private:
  bool in_rows() const { return spread_ == kRows || spread_ == kMiddle; }

  int64_t count_ = 0, channels_ = 0;
  at::MemoryFormat format_ = at::MemoryFormat::Contiguous;
  bool last_ = false;  // channels lie next to each other
  Dimensions space_;
  Spread spread_ = kEach;  // of what there is one of for each channel
};

View dense_result(const Tensor& tensor) {
  return dense_view(block_of(tensor.storage().data_ptr()), tensor.unsafeGetTensorImpl(),
                    *group_dtype(tensor.scalar_type()));
}

// Two vectors for channels that exist both, or neither.
bool are_vectors(const OptionalTensor& mean, const OptionalTensor& variance, int64_t count,
                 const Tensor& input) {
  return is_given(mean) == is_given(variance) && is_vector(mean, count, input) &&
         is_vector(variance, count, input);
}

struct BatchNorm {
  const Tensor& input;
  const OptionalTensor &weight, &bias, &mean, &variance;  // the last two are running ones
  bool training;
  double momentum, eps;
};

View inverse_root(Builder& b, const View& variance, double eps) {
  return b.apply(Op::rsqrt, {b.apply(Op::add, {variance, b.number(eps)})});
}

// What is left of a running value.
View decayed(Builder& b, const Tensor& running, double momentum) {
  return b.apply(Op::mul, {contiguous_view(running), b.number(1 - momentum)});
}
void update(Builder& b, const Tensor& running, const View& left, const View& value,
            double momentum) {
  const View fresh = b.apply(Op::mul, {value, b.number(momentum)});
  b.store(contiguous_view(running), b.apply(Op::add, {fresh, left}));
}

bool record_batch_norm(const BatchNorm& call, Three& results) {
  const auto channels = Channels::of(call.input);
  const auto type =
      parameter_type(call.input, {&call.weight, &call.bias, &call.mean, &call.variance});
  if (!channels || !type || !is_vector(call.weight, channels->channels(), call.input) ||
      !is_vector(call.bias, channels->channels(), call.input) ||
      !are_vectors(call.mean, call.variance, channels->channels(), call.input) ||
      (call.training ? !channels->is_folded() : !is_given(call.mean))) {
    return false;
  }
  const auto elements = channels->elements(call.input);
  if (!elements) return false;
  Window& window = current_window(call.input.device().index());
  Tensor out = channels->make(window, call.input);
  const int64_t saved = call.training ? channels->channels() : 0;
  Tensor mean = make_folded(window, call.input, {saved}, *type);
  Tensor scale = make_folded(window, call.input, {saved}, *type);
  const DType dtype = *group_dtype(call.input.scalar_type()), compute = compute_dtype(dtype);
  Builder b(compute, call.input.numel(), {});
  const View x = elements->source(b);
  View its_mean, its_scale;
  if (call.training) {
    // First, so that nothing that is computed of elements has to come before it.
    View left_mean{}, left_variance{};
    channels->enter_channels(b);
    if (is_given(call.mean)) {
      left_mean = decayed(b, *call.mean, call.momentum);
      left_variance = decayed(b, *call.variance, call.momentum);
    }
    const auto statistics = channels->statistics(b, x);
    channels->enter_channels(b);
    its_mean = statistics.mean;
    const View variance = b.apply(Op::div, {statistics.squares, b.number(channels->folded())});
    its_scale = inverse_root(b, variance, call.eps);
    b.store(contiguous_view(mean), its_mean);
    b.store(contiguous_view(scale), its_scale);
    if (is_given(call.mean)) {
      update(b, *call.mean, left_mean, its_mean, call.momentum);
      const View n = b.number(channels->folded() - 1);
      const View unbiased = b.apply(Op::div, {statistics.squares, n});
      update(b, *call.variance, left_variance, unbiased, call.momentum);
    }
  } else {
    channels->enter_channels(b);
    its_mean = contiguous_view(*call.mean);
    its_scale = inverse_root(b, contiguous_view(*call.variance), call.eps);
  }
  if (is_given(call.weight)) {
    its_scale = b.apply(Op::mul, {its_scale, contiguous_view(*call.weight)});
  }
  channels->enter(b);
  const View distance = b.apply(Op::sub, {x, channels->of_channel(its_mean)});
  const View y = b.apply(Op::mul, {distance, channels->of_channel(its_scale)});
  if (is_given(call.bias)) {
    b.apply(Op::add, {y, channels->of_channel(contiguous_view(*call.bias))});
  }
  b.give(dense_result(out), dtype);
  record_built(window, b);
  results = {std::move(out), std::move(mean), std::move(scale)};
  return true;
}

Three batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                 const OptionalTensor& mean, const OptionalTensor& variance, bool training,
                 double momentum, double eps) {
  static Service here("aten::native_batch_norm", "");
  Three results;
  if (!record_batch_norm({input, weight, bias, mean, variance, training, momentum, eps}, results)) {
    return here.delegate.three(input, weight, bias, mean, variance, training, momentum, eps);
  }
  note_native(here.counter);
  return results;
}

// With statistics that the schema says are written, and without any.
Three batch_norm_with(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      Tensor& mean, Tensor& variance, bool training, double momentum, double eps) {
  static Service here("aten::_native_batch_norm_legit", "");
  Three results;
  if (!record_batch_norm({input, weight, bias, mean, variance, training, momentum, eps}, results)) {
    return here.delegate.three(input, weight, bias, mean, variance, training, momentum, eps);
  }
  note_native(here.counter);
  return results;
}
Three batch_norm_without(const Tensor& input, const OptionalTensor& weight,
                         const OptionalTensor& bias, bool training, double momentum, double eps) {
  static Service here("aten::_native_batch_norm_legit", "no_stats");
  Three results;
  if (!record_batch_norm({input, weight, bias, {}, {}, training, momentum, eps}, results)) {
    return here.delegate.three(input, weight, bias, training, momentum, eps);
  }
  note_native(here.counter);
  return results;
}

// The operators that say by their name whether running statistics are updated. They have a fourth
// result, which a backward kernel may keep things in; ours has none.
Four batch_norm_of(Service& here, const BatchNorm& call) {
  const Tensor reserved = at::empty({0}, call.input.options().dtype(at::kByte));
  Three results;
  if (record_batch_norm(call, results)) {
    note_native(here.counter);
  } else {
    results = batch_norm(call.input, call.weight, call.bias, call.mean, call.variance,
                         call.training, call.momentum, call.eps);
  }
  return std::tuple_cat(std::move(results), std::make_tuple(reserved));
}
Four batch_norm_with_update(const Tensor& input, const OptionalTensor& weight,
                            const OptionalTensor& bias, Tensor& mean, Tensor& variance,
                            double momentum, double eps) {
  static Service here("aten::_batch_norm_with_update", "");
  return batch_norm_of(here, {input, weight, bias, mean, variance, true, momentum, eps});
}
Four batch_norm_no_update(const Tensor& input, const OptionalTensor& weight,
                          const OptionalTensor& bias, const OptionalTensor& mean,
                          const OptionalTensor& variance, double momentum, double eps) {
  static Service here("aten::_batch_norm_no_update", "");
  return batch_norm_of(here, {input, weight, bias, mean, variance, false, momentum, eps});
}

bool record_batch_norm_backward(const Tensor& grad, const Tensor& input,
                                const OptionalTensor& weight, const OptionalTensor& mean,
                                const OptionalTensor& spread, bool training, double eps,
                                std::array<bool, 3> wanted, Three& results) {
  const auto channels = Channels::of(input);
  if (!channels || !is_given(mean) || !is_given(spread) || grad.sizes() != input.sizes() ||
      grad.scalar_type() != input.scalar_type() || grad.device() != input.device() ||
      !is_vector(weight, channels->channels(), input) ||
      !are_vectors(mean, spread, channels->channels(), input) || !channels->is_folded() ||
      (wanted[1] && !is_given(weight)) || !(wanted[0] || wanted[1] || wanted[2])) {
    return false;
  }
  const auto type = parameter_type(input, {&weight, &mean, &spread});
  const auto xs = channels->elements(input), grads = channels->elements(grad);
  if (!type || !xs || !grads) return false;
  Window& window = current_window(input.device().index());
  const auto make = [&](bool is_wanted) {
    return is_wanted ? make_folded(window, input, {channels->channels()}, *type) : Tensor();
  };
  Tensor dx = wanted[0] ? channels->make(window, input) : Tensor();
  Tensor dweight = make(wanted[1]), dbias = make(wanted[2]);
  const DType dtype = *group_dtype(input.scalar_type());
  Builder b(compute_dtype(dtype), input.numel(), {});
  const View x = xs->source(b), g = grads->source(b), its_mean = contiguous_view(*mean);
  // In training what was saved is the scale.
  View scale = contiguous_view(*spread);
  if (!training) {
    channels->enter_channels(b);
    scale = inverse_root(b, scale, eps);
  }
  const bool needs_sums = training || wanted[1] || wanted[2];
  View sum{}, along{};
  if (needs_sums) {
    channels->enter(b);
    const View distance = b.apply(Op::sub, {x, channels->of_channel(its_mean)});
    const View product = b.apply(Op::mul, {g, distance});
    along = channels->of_rows(b, product);
    channels->enter(b);
    sum = channels->of_rows(b, g);
    along = channels->of_channels(b, along);
    channels->enter(b);
    sum = channels->of_channels(b, sum);
    channels->enter_channels(b);
    if (wanted[1]) b.store(contiguous_view(dweight), b.apply(Op::mul, {along, scale}));
    if (wanted[2]) b.store(contiguous_view(dbias), sum);
  }
  if (wanted[0]) {
    channels->enter_channels(b);
    View factor = scale;
    if (is_given(weight)) factor = b.apply(Op::mul, {scale, contiguous_view(*weight)});
    View slope{}, offset{};
    if (training) {
      // (g - mean(g) - (x - mean) k) f as g f - x (k f) + (mean k - mean(g)) f: numbers of
      // channels, and the distances need not be kept.
      const View n = b.number(channels->folded());
      const View square = b.apply(Op::mul, {scale, scale});
      const View k = b.apply(Op::div, {b.apply(Op::mul, {along, square}), n});
      const View mean_grad = b.apply(Op::div, {sum, n});
      const View shift = b.apply(Op::sub, {b.apply(Op::mul, {its_mean, k}), mean_grad});
      slope = b.apply(Op::mul, {k, factor});
      offset = b.apply(Op::mul, {shift, factor});
    }
    channels->enter(b);
    const View of_grad = b.apply(Op::mul, {g, channels->of_channel(factor)});
    if (training) {
      const View of_x = b.apply(Op::mul, {x, channels->of_channel(slope)});
      const View rest = b.apply(Op::sub, {of_grad, of_x});
      b.apply(Op::add, {rest, channels->of_channel(offset)});
    }
    b.give(dense_result(dx), dtype);
  }
  record_built(window, b);
  results = {std::move(dx), std::move(dweight), std::move(dbias)};
  return true;
}

Three batch_norm_backward(const Tensor& grad, const Tensor& input, const OptionalTensor& weight,
                          const OptionalTensor& running_mean,
                          const OptionalTensor& running_variance, const OptionalTensor& mean,
                          const OptionalTensor& scale, bool training, double eps,
                          std::array<bool, 3> wanted) {
  static Service here("aten::native_batch_norm_backward", "");
  Three results;
  if (!record_batch_norm_backward(grad, input, weight, training ? mean : running_mean,
                                  training ? scale : running_variance, training, eps, wanted,
                                  results)) {
    return here.delegate.three(grad, input, weight, running_mean, running_variance, mean, scale,
                               training, eps, wanted);
  }
  note_native(here.counter);
  return results;
}

Three batch_norm_backward_of(const Tensor& grad, const Tensor& input, const Tensor& weight,
                             const OptionalTensor& running_mean,
                             const OptionalTensor& running_variance, const OptionalTensor& mean,
                             const OptionalTensor& scale, bool update, double eps,
                             std::array<bool, 3> wanted, const Tensor& reserve) {
  static Service here("aten::batch_norm_backward", "");
  check_devices("batch_norm_backward", grad, input, weight, running_mean, running_variance, mean,
                scale, reserve);
  Three results;
  if (!record_batch_norm_backward(grad, input, weight, update ? mean : running_mean,
                                  update ? scale : running_variance, update, eps, wanted,
                                  results)) {
    return batch_norm_backward(grad, input, weight, running_mean, running_variance, mean, scale,
                               update, eps, wanted);
  }
  note_native(here.counter);
  return results;
}

// ---- group norm ----

// [samples, groups, of each group, inner], contiguous.
struct Groups {
  int64_t samples, groups, each, inner;

  // None where torch has to complain, or its kernel to serve.
  static std::optional<Groups> of(const Tensor& input, int64_t samples, int64_t channels,
                                  int64_t inner, int64_t groups) {
    if (samples <= 0 || channels <= 0 || inner <= 0 || groups <= 0 || channels % groups != 0 ||
        input.numel() != samples * channels * inner || !input.is_contiguous() ||
        input.suggest_memory_format() != at::MemoryFormat::Contiguous ||  // of one channel: both
        !is_real(input.scalar_type()) || channels / groups * inner == 1) {
      return std::nullopt;
    }
    return Groups{samples, groups, channels / groups, inner};
  }

  int64_t channels() const { return groups * each; }
  int64_t all_groups() const { return samples * groups; }
  int64_t all_channels() const { return samples * channels(); }
  Dimensions of_groups() const { return {1, all_groups(), each * inner}; }
  // Of what there is one of for each channel of each sample.
  Dimensions of_channels() const { return {1, all_channels(), inner}; }

  // A value of groups as one for each channel of each sample.
  View expand(Builder& b, const View& value) const {
    if (each == 1) return value;
    b.enter(b.compute(), all_channels(), {1, all_groups(), each});
    return b.copy(by(value, kRows));
  }
  void enter_channels(Builder& b) const {
    b.enter(b.compute(), all_channels(), {1, samples, channels()});
  }
  // A parameter beside these.
  View parameter(const OptionalTensor& tensor) const {
    return by(contiguous_view(*tensor), samples == 1 ? kEach : kColumns);
  }
  // A value for each channel of each sample beside elements.
  View of_channel(const View& value) const { return by(value, inner == 1 ? kEach : kRows); }
  void enter(Builder& b) const { b.enter(b.compute(), all_channels() * inner, of_channels()); }

  // Sums of elements for each channel of each sample, of these for each group, or each channel.
  View sum_inner(Builder& b, const View& value) const {
    return inner == 1 ? value : b.fold(Op::add, value, of_channels(), kRows);
  }
  View sum_group(Builder& b, const View& value) const {
    return each == 1 ? value : b.fold(Op::add, value, {1, all_groups(), each}, kRows);
  }
  View sum_samples(Builder& b, const View& value) const {
    return samples == 1 ? b.copy(value)
                        : b.fold(Op::add, value, {1, samples, channels()}, kColumns);
  }
};

bool record_group_norm(const Tensor& input, const OptionalTensor& weight,
                       const OptionalTensor& bias, const std::optional<Groups>& groups, double eps,
                       Three& results) {
  const auto type = parameter_type(input, {&weight, &bias});
  if (!groups || !type || !is_vector(weight, groups->channels(), input) ||
      !is_vector(bias, groups->channels(), input)) {
    return false;
  }
  const auto elements = Folding::of(input, 0, true);
  if (!elements) return false;
  Window& window = current_window(input.device().index());
  Tensor out = make_folded(window, input, input.sizes(), input.scalar_type());
  Tensor mean = make_folded(window, input, {groups->samples, groups->groups}, *type);
  Tensor scale = make_folded(window, input, {groups->samples, groups->groups}, *type);
  const DType dtype = *group_dtype(input.scalar_type());
  Builder b(compute_dtype(dtype), input.numel(), {});
  const View x = elements->source(b);
  const Moments m = moments(b, x, groups->of_groups(), eps);
  b.store(contiguous_view(mean), m.mean);
  b.store(contiguous_view(scale), m.scale);
  if (!is_given(weight) && !is_given(bias)) {
    b.enter(b.compute(), input.numel(), groups->of_groups());
    b.apply(Op::mul, {m.distance, by(m.scale, kRows)});
  } else {
    View factor = groups->expand(b, m.scale);
    const View its_mean = groups->expand(b, m.mean);
    groups->enter_channels(b);
    if (is_given(weight)) factor = b.apply(Op::mul, {factor, groups->parameter(weight)});
    View shift = b.apply(Op::neg, {b.apply(Op::mul, {its_mean, factor})});
    if (is_given(bias)) shift = b.apply(Op::add, {shift, groups->parameter(bias)});
    groups->enter(b);
    const View scaled = b.apply(Op::mul, {x, groups->of_channel(factor)});
    b.apply(Op::add, {scaled, groups->of_channel(shift)});
  }
  b.give(contiguous_view(out), dtype);
  record_built(window, b);
  results = {std::move(out), std::move(mean), std::move(scale)};
  return true;
}

// Other devices' kernels ask for contiguous tensors, where the CPU's read channels last, and give
// such. A tensor may be another device's, which the call refuses.
bool is_contiguous_only(const Tensor& tensor) {
  return tensor.device().type() == kHologram && !target_of(tensor.device().index()).is_cpu();
}
Tensor as_delegated(const Tensor& tensor) {
  return is_contiguous_only(tensor) ? tensor.contiguous() : tensor;
}
Three like_input(Three results, const Tensor& input) {
  Tensor& first = std::get<0>(results);
  if (is_contiguous_only(input) && first.defined()) {
    first = first.contiguous(input.suggest_memory_format());
  }
  return results;
}

Three group_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                 int64_t samples, int64_t channels, int64_t inner, int64_t groups, double eps) {
  static Service here("aten::native_group_norm", "");
  Three results;
  if (!record_group_norm(input, weight, bias, Groups::of(input, samples, channels, inner, groups),
                         eps, results)) {
    return like_input(here.delegate.three(as_delegated(input), weight, bias, samples, channels,
                                          inner, groups, eps),
                      input);
  }
  note_native(here.counter);
  return results;
}

bool record_group_norm_backward(const Tensor& grad, const Tensor& input, const Tensor& mean,
                                const Tensor& scale, const OptionalTensor& weight,
                                const std::optional<Groups>& groups, std::array<bool, 3> wanted,
                                Three& results) {
  if (!groups || grad.sizes() != input.sizes() || grad.scalar_type() != input.scalar_type() ||
      grad.device() != input.device() || !is_vector(weight, groups->channels(), input) ||
      !is_vector(mean, groups->all_groups(), input) ||
      !is_vector(scale, groups->all_groups(), input) || (wanted[1] && !is_given(weight)) ||
      !(wanted[0] || wanted[1] || wanted[2])) {
    return false;
  }
  // The statistics have the parameters' dtype, also where there is no weight.
  const OptionalTensor given_mean = mean, given_scale = scale;
  const auto type = parameter_type(input, {&weight, &given_mean, &given_scale});
  const auto xs = Folding::of(input, 0, true), grads = Folding::of(grad, 0, true);
  if (!type || !xs || !grads) return false;
  Window& window = current_window(input.device().index());
  const auto make = [&](bool is_wanted) {
    return is_wanted ? make_folded(window, input, {groups->channels()}, *type) : Tensor();
  };
  Tensor dx = wanted[0] ? make_folded(window, input, input.sizes(), input.scalar_type()) : Tensor();
  Tensor dweight = make(wanted[1]), dbias = make(wanted[2]);
  const DType dtype = *group_dtype(input.scalar_type()), compute = compute_dtype(dtype);
  Builder b(compute, input.numel(), {});
  const View x = xs->source(b), g = grads->source(b);
  const View its_mean = contiguous_view(mean), its_scale = contiguous_view(scale);
  groups->enter(b);
  const View products = groups->sum_inner(b, b.apply(Op::mul, {g, x}));
  groups->enter(b);
  const View sums = groups->sum_inner(b, g);
  const View each_scale = groups->expand(b, its_scale);
  if (wanted[1]) {
    const View each_mean = groups->expand(b, its_mean);
    groups->enter_channels(b);
    const View along = b.apply(Op::sub, {products, b.apply(Op::mul, {sums, each_mean})});
    groups->sum_samples(b, b.apply(Op::mul, {along, each_scale}));
    b.give(contiguous_view(dweight), *group_dtype(*type));
  }
  if (wanted[2]) {
    groups->enter_channels(b);
    groups->sum_samples(b, sums);
    b.give(contiguous_view(dbias), *group_dtype(*type));
  }
  if (wanted[0]) {
    groups->enter_channels(b);
    View weighted_products = products, weighted_sums = sums, factor = each_scale;
    if (is_given(weight)) {
      weighted_products = b.apply(Op::mul, {products, groups->parameter(weight)});
      weighted_sums = b.apply(Op::mul, {sums, groups->parameter(weight)});
      factor = b.apply(Op::mul, {each_scale, groups->parameter(weight)});
    }
    weighted_products = groups->sum_group(b, weighted_products);
    groups->enter_channels(b);
    weighted_sums = groups->sum_group(b, weighted_sums);
    b.enter(compute, groups->all_groups());
    const View n = b.number(1.0 / static_cast<double>(groups->each * groups->inner));
    const View cube = b.apply(Op::mul, {b.apply(Op::mul, {its_scale, its_scale}), its_scale});
    const View along =
        b.apply(Op::sub, {b.apply(Op::mul, {weighted_sums, its_mean}), weighted_products});
    const View slope = b.apply(Op::mul, {b.apply(Op::mul, {along, cube}), n});
    const View mean_grad = b.apply(Op::mul, {b.apply(Op::mul, {weighted_sums, its_scale}), n});
    const View offset =
        b.apply(Op::neg, {b.apply(Op::add, {b.apply(Op::mul, {slope, its_mean}), mean_grad})});
    const View slopes = groups->expand(b, slope), offsets = groups->expand(b, offset);
    groups->enter(b);
    const View of_grad = b.apply(Op::mul, {g, groups->of_channel(factor)});
    const View of_x = b.apply(Op::mul, {x, groups->of_channel(slopes)});
    b.apply(Op::add, {b.apply(Op::add, {of_grad, of_x}), groups->of_channel(offsets)});
    b.give(contiguous_view(dx), dtype);
  }
  record_built(window, b);
  results = {std::move(dx), std::move(dweight), std::move(dbias)};
  return true;
}

Three group_norm_backward(const Tensor& grad, const Tensor& input, const Tensor& mean,
                          const Tensor& scale, const OptionalTensor& weight, int64_t samples,
                          int64_t channels, int64_t inner, int64_t groups,
                          std::array<bool, 3> wanted) {
  static Service here("aten::native_group_norm_backward", "");
  Three results;
  if (!record_group_norm_backward(grad, input, mean, scale, weight,
                                  Groups::of(input, samples, channels, inner, groups), wanted,
                                  results)) {
    return like_input(here.delegate.three(as_delegated(grad), as_delegated(input), mean, scale,
                                          weight, samples, channels, inner, groups, wanted),
                      input);
  }
  note_native(here.counter);
  return results;
}

}  // namespace

void register_channel_norms() {
  // torch has a kernel of autograd for it in Python, too, for graphs: it is to be the only one.
  native_library().impl("native_batch_norm", &batch_norm);
  implement("_native_batch_norm_legit", &batch_norm_with);
  implement("_native_batch_norm_legit.no_stats", &batch_norm_without);
  implement("_batch_norm_with_update", &batch_norm_with_update);
  implement("_batch_norm_no_update", &batch_norm_no_update);
  implement("native_batch_norm_backward", &batch_norm_backward);
  implement("batch_norm_backward", &batch_norm_backward_of);
  implement("native_group_norm", &group_norm);
  implement("native_group_norm_backward", &group_norm_backward);
}

}  // namespace hologram::aten
