// The fused optimizers as recordings: every parameter's step is a handful of instructions, which
// the canonicaliser makes one pass over memory, and equal steps of many parameters one batch.
//
// Formulas and their order are those of torch's CPU kernels (aten/src/ATen/native/cpu/
// FusedAdamKernel.cpp, FusedSGDKernel.cpp): computed in float32 for half precision, in the
// parameters' dtype otherwise, rounded where a tensor is written.
//
// What recording declines - parameters of several layouts or dtypes, memory that a CPU tensor sees,
// arguments that are wrong - goes to torch's kernel for the whole list.
#include "aten/precompiled.h"

#include <ATen/core/List.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "aten/delegate.h"
#include "aten/record.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

// The tensors of one parameter's step.
constexpr size_t kMostTensors = 5;
struct Step {
  Window* window = nullptr;
  DType dtype{};
  int64_t count = 0;
  std::array<View, kMostTensors> views;
};

// Whether a list of parameters can be recorded as a whole; fills in one step each. Every list has
// one tensor per parameter, or none at all.
bool prepare_steps(at::ArrayRef<TensorList> lists, c10::SmallVector<Step, 16>& steps) {
  const size_t count = lists[0].size();
  for (const auto& list : lists) {
    if (list.size() != count && !list.empty()) {
      return false;
    }
  }
  steps.resize(count);
  for (size_t i = 0; i < count; ++i) {
    c10::SmallVector<const Tensor*, kMostTensors> tensors;
    for (const auto& list : lists) {
      if (!list.empty()) {
        tensors.push_back(&list[i]);
      }
    }
    auto& step = steps[i];
    step.window = views_alike(tensors, step.views.data());
    if (step.window == nullptr || !lists[0][i].is_floating_point()) {
      return false;
    }
    step.dtype = step.views[0].dtype;
    step.count = lists[0][i].numel();
  }
  return true;
}

// Whether a tensor, if there is one, is a number on the device. What else may be given, and what is
// refused, is left to the delegate.
bool is_number(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kHologram && tensor.numel() == 1;
}
bool is_number(const OptionalTensor& tensor) {
  return !tensor || !tensor->defined() || is_number(*tensor);
}

// The learning rate: a number, or a tensor of one element anywhere, which is read.
bool is_rate(double) {
  return true;
}
bool is_rate(const Tensor& rate) {
  return rate.defined() && rate.numel() == 1;
}
double value_of(double rate) {
  return rate;
}
double value_of(const Tensor& rate) {
  return rate.item<double>();
}

// Amp's arguments: whether the step is skipped, and what gradients are divided by.
struct Scaling {
  bool skipped = false;
  std::optional<double> scale;
  Scaling(const OptionalTensor& grad_scale, const OptionalTensor& found_inf)
      : skipped(found_inf && found_inf->defined() && found_inf->item<float>() == 1.0f) {
    if (grad_scale && grad_scale->defined() && !skipped) {
      scale = grad_scale->item<float>();
    }
  }
};

// The gradient as the step uses it. Torch's kernels leave the unscaled one in its tensor.
View gradient(Builder& b, const View& grad, const Scaling& scaling, bool maximize) {
  View value = grad;
  if (scaling.scale) {
    value = b.apply(Op::div, {value, b.number(*scaling.scale)});
    b.store(grad, value);
  }
  return maximize ? b.apply(Op::neg, {value}) : value;
}

// The overload of an optimizer by its learning rate, a number or a tensor.
template <class Lr>
constexpr const char* overload = std::is_same_v<Lr, Tensor> ? "tensor_lr" : "";

struct AdamOptions {
  double lr, beta1, beta2, weight_decay, eps;
  bool amsgrad, maximize, decoupled;  // decoupled: AdamW
};

void adam_step(Builder& b, const View* views, double step, const AdamOptions& o,
               const Scaling& scaling) {
  const View &param = views[0], &exp_avg = views[2], &exp_avg_sq = views[3], &most = views[4];
  const double correction1 = 1 - std::pow(o.beta1, step);
  const double correction2 = std::sqrt(1 - std::pow(o.beta2, step));
  View p = param;
  View grad = gradient(b, views[1], scaling, o.maximize);
  if (o.weight_decay != 0) {
    if (o.decoupled) {
      p = b.apply(Op::mul, {p, b.number(1 - o.lr * o.weight_decay)});
    } else {
      const View decay = b.apply(Op::mul, {p, b.number(o.weight_decay)});
      grad = b.apply(Op::add, {grad, decay});
    }
  }
  // m += (1 - beta1) * (grad - m), from the nearer end and with one rounding.
  const double weight = 1 - o.beta1;
  const View span = b.apply(Op::sub, {grad, exp_avg});
  const View m = weight < 0.5 ? b.apply(Op::fma, {b.number(weight), span, exp_avg})
                              : b.apply(Op::fma, {b.number(weight - 1), span, grad});
  b.store(exp_avg, m);
  const View fresh = b.apply(Op::mul, {b.apply(Op::mul, {b.number(1 - o.beta2), grad}), grad});
  View v = b.apply(Op::add, {b.apply(Op::mul, {exp_avg_sq, b.number(o.beta2)}), fresh});
  b.store(exp_avg_sq, v);
  if (o.amsgrad) {
    v = b.apply(Op::maximum, {most, v});
    b.store(most, v);
  }
  const View root = b.apply(Op::div, {b.apply(Op::sqrt, {v}), b.number(correction2)});
  const View denominator = b.apply(Op::add, {root, b.number(o.eps)});
  const View change = b.apply(Op::mul, {b.number(-o.lr / correction1), m});
  b.store(param, b.apply(Op::add, {p, b.apply(Op::div, {change, denominator})}));
}

template <class Lr, bool decoupled>
struct Adam {
  static void call(TensorList self, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,
                   TensorList max_exp_avg_sqs, TensorList state_steps,
                   std::conditional_t<std::is_same_v<Lr, Tensor>, const Tensor&, double> lr,
                   double beta1, double beta2, double weight_decay, double eps, bool amsgrad,
                   bool maximize, const OptionalTensor& grad_scale,
                   const OptionalTensor& found_inf) {
    static Service& here =
        *new Service(decoupled ? "aten::_fused_adamw_" : "aten::_fused_adam_", overload<Lr>);
    c10::SmallVector<Step, 16> steps;
    if (state_steps.size() != self.size() ||
        max_exp_avg_sqs.size() != (amsgrad ? self.size() : 0) || !is_rate(lr) ||
        !is_number(grad_scale) || !is_number(found_inf) ||
        !std::all_of(state_steps.begin(), state_steps.end(),
                     [](const Tensor& step) { return is_number(step); }) ||
        !prepare_steps({self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, steps)) {
      here.delegate.run(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1,
                        beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf);
      return;
    }
    note_native(here.counter);
    const Scaling scaling(grad_scale, found_inf);
    if (scaling.skipped) {
      return;
    }
    const AdamOptions options{value_of(lr), beta1,   beta2,    weight_decay,
                              eps,          amsgrad, maximize, decoupled};
    for (size_t i = 0; i < steps.size(); ++i) {
      Builder b(compute_dtype(steps[i].dtype), steps[i].count, {});
      adam_step(b, steps[i].views.data(), state_steps[i].item<double>(), options, scaling);
      steps[i].window->record(b.list(), b.temporaries());
    }
  }
};

struct SgdOptions {
  double weight_decay, momentum, lr, dampening;
  bool nesterov, maximize, first;
};

void sgd_step(Builder& b, const View* views, const SgdOptions& o, const Scaling& scaling) {
  const View &param = views[0], &buffer = views[2];
  View grad = gradient(b, views[1], scaling, o.maximize);
  if (o.weight_decay != 0) {
    grad = b.apply(Op::add, {grad, b.apply(Op::mul, {param, b.number(o.weight_decay)})});
  }
  if (o.momentum != 0) {
    View momentum = grad;
    if (!o.first) {
      momentum = b.apply(Op::add, {b.apply(Op::mul, {buffer, b.number(o.momentum)}),
                                   b.apply(Op::mul, {grad, b.number(1 - o.dampening)})});
    }
    b.store(buffer, momentum);
    grad = o.nesterov ? b.apply(Op::add, {grad, b.apply(Op::mul, {momentum, b.number(o.momentum)})})
                      : momentum;
  }
  b.store(param, b.apply(Op::add, {param, b.apply(Op::mul, {grad, b.number(-o.lr)})}));
}

template <class Lr>
struct Sgd {
  static void call(TensorList self, TensorList grads, TensorList momentum_buffers,
                   double weight_decay, double momentum,
                   std::conditional_t<std::is_same_v<Lr, Tensor>, const Tensor&, double> lr,
                   double dampening, bool nesterov, bool maximize, bool is_first_step,
                   const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
    static Service& here = *new Service("aten::_fused_sgd_", overload<Lr>);
    c10::SmallVector<Step, 16> steps;
    if (momentum_buffers.size() != (momentum != 0 ? self.size() : 0) || !is_rate(lr) ||
        !is_number(grad_scale) || !is_number(found_inf) ||
        !prepare_steps({self, grads, momentum_buffers}, steps)) {
      here.delegate.run(self, grads, momentum_buffers, weight_decay, momentum, lr, dampening,
                        nesterov, maximize, is_first_step, grad_scale, found_inf);
      return;
    }
    note_native(here.counter);
    const Scaling scaling(grad_scale, found_inf);
    if (scaling.skipped) {
      return;
    }
    const SgdOptions options{weight_decay, momentum, value_of(lr), dampening,
                             nesterov,     maximize, is_first_step};
    for (const Step& step : steps) {
      Builder b(compute_dtype(step.dtype), step.count, {});
      sgd_step(b, step.views.data(), options, scaling);
      step.window->record(b.list(), b.temporaries());
    }
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_adam_", &Adam<double, false>::call);
  m.impl("_fused_adam_.tensor_lr", &Adam<Tensor, false>::call);
  m.impl("_fused_adamw_", &Adam<double, true>::call);
  m.impl("_fused_adamw_.tensor_lr", &Adam<Tensor, true>::call);
  m.impl("_fused_sgd_", &Sgd<double>::call);
  m.impl("_fused_sgd_.tensor_lr", &Sgd<Tensor>::call);
}

}  // namespace hologram::aten
