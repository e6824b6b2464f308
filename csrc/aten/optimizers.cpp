// The fused optimizers as recordings: every parameter's step is a handful of instructions, which
// the canonicaliser makes one pass over memory, and equal steps of many parameters one batch.
//
// Formulas and their order are those of torch's CPU kernels (aten/src/ATen/native/cpu/
// FusedAdamKernel.cpp, FusedSGDKernel.cpp, FusedAdagradKernel.cpp): computed in float32 for half
// precision, in the parameters' dtype otherwise, rounded where a tensor is written. What those
// kernels make of numbers first, in double, is recorded too: no step waits for a tensor of the
// device, be it the count of steps, the learning rate or amp's arguments.
//
// What recording declines - parameters of several layouts or dtypes, memory that a CPU tensor sees,
// arguments that are wrong - goes to torch's kernel for the whole list.
#include "aten/precompiled.h"

#include <ATen/core/List.h>
#include <ATen/ops/_foreach_add_native.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "aten/builder.h"
#include "aten/delegate.h"
#include "aten/delegate_target.h"
#include "aten/numbers.h"
#include "aten/operand.h"
#include "aten/past_autograd.h"
#include "aten/record.h"
#include "aten/report.h"
#include "aten/runtime.h"
#include "atlas/op_table.h"
#include "atlas/window.h"

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
  View number{};  // of the step, where it is asked for
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
    if (step.window == nullptr || step.window != steps[0].window ||
        !lists[0][i].is_floating_point()) {
      return false;
    }
    step.dtype = step.views[0].dtype;
    step.count = lists[0][i].numel();
  }
  return true;
}

// The element of a tensor that has one, for all of a parameter. What else may be given, and what is
// refused, is left to the delegate.
bool prepare_number(const Tensor& tensor, DTypeSet dtypes, const Window* window, View& view) {
  if (!view_of_one(tensor, dtypes, window, view)) {
    return false;
  }
  view.layout = Layout::scalar;
  return true;
}

// The counts as float32, where they are not and a vendor's kernels would read them as such: those
// of CUDA do not look at the dtype. The CPU's do, and are given them as they are.
std::optional<std::vector<Tensor>> converted(TensorList counts, TensorList parameters) {
  const auto wrong = [](const Tensor& count) { return count.scalar_type() != at::kFloat; };
  if (parameters.empty() || target_of(parameters[0].device().index()).is_cpu() ||
      std::none_of(counts.begin(), counts.end(), wrong)) {
    return std::nullopt;
  }
  std::vector<Tensor> result;
  for (const Tensor& count : counts) result.push_back(count.to(at::kFloat));
  return result;
}

bool prepare_numbers(TensorList tensors, c10::SmallVector<Step, 16>& steps) {
  if (tensors.size() != steps.size()) {
    return false;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!prepare_number(tensors[i], dtype_bit(DType::f32), steps[i].window, steps[i].number)) {
      return false;
    }
  }
  return true;
}

// What all parameters of a call have in common. Views are of one element; scale and found_inf are
// amp's: what gradients are divided by, and whether the step is skipped.
struct Common {
  double rate = 0;  // unless the device has it
  std::optional<View> device_rate, scale, found_inf;

  template <class Lr>
  bool prepare(at::ArrayRef<Step> steps, const Lr& lr, const OptionalTensor& grad_scale,
               const OptionalTensor& infinite) {
    if (steps.empty()) {
      return false;
    }
    const Window* window = steps[0].window;
    return prepare_rate(lr, window) && prepare(grad_scale, window, scale) &&
           prepare(infinite, window, found_inf);
  }

 private:
  bool prepare_rate(double number, const Window*) {
    rate = number;
    return true;
  }
  bool prepare_rate(const Tensor& tensor, const Window* window) {
    if (!tensor.defined() || tensor.numel() != 1) {
      return false;
    }
    if (tensor.is_cpu()) {
      rate = tensor.item<double>();
      return true;
    }
    return prepare_number(tensor, kReal, window, device_rate.emplace());
  }
  static bool prepare(const OptionalTensor& tensor, const Window* window,
                      std::optional<View>& number) {
    return !tensor || !tensor->defined() ||
           prepare_number(*tensor, dtype_bit(DType::f32), window, number.emplace());
  }
};

// Parameters whose steps are recorded together. What they make of numbers is one group with an
// element for each of them: a CPU computes groups in blocks of 32 elements or more, so that of one
// element would cost as much, two pow for each of the block. Not more, because a block of memory
// that is touched in more places has an index (OpenProgram::kIndexedFrom).
//
// Nor are numbers read where nobody has to wait for them, on devices that are not asynchronous: the
// flush that reading takes costs as much as recording them, but with amp, whose steps take about a
// tenth longer.
constexpr size_t kTogether = 7;

// Element `i` of a value, as one for all elements of another space.
View element(const View& value, size_t i) {
  return {value.block, value.offset + static_cast<int64_t>(i * dtype_size(value.dtype)),
          value.dtype, Layout::scalar, value.temporary};
}

// A value as element() needs it, rounded to a dtype.
View kept(Builder& b, const View& value, DType dtype) {
  const View memory = b.temporary(dtype);
  b.store(memory, value);
  return memory;
}

// Amp's arguments, an element for each parameter: of steps that load the same number, those over
// spaces of one size would become one group.
struct Amp {
  std::optional<View> scale, skipped;
  Amp(Builder& b, const Common& common, DType compute) {
    if (common.scale) scale = kept(b, *common.scale, compute);
    if (common.found_inf) skipped = b.apply(Op::eq, {*common.found_inf, b.number(1)});
  }
};

// The step of the parameter `number` of those that are recorded together.
class Recorder {
 public:
  Recorder(Builder& b, const Amp& amp, size_t number) : b_(b), amp_(amp), number_(number) {}

  // Writes a value, unless the step is skipped. Returns what to go on with in its place: nothing
  // else has to be kept then, and what is made of it in a skipped step is not written either.
  View store(const View& out, View value) {
    if (amp_.skipped) {
      value = b_.apply(Op::where, {element(*amp_.skipped, number_), out, value});
    }
    return b_.put(out, value);
  }
  // The gradient as the step uses it. Torch's kernels leave the unscaled one in its tensor.
  View gradient(const View& grad, bool maximize) {
    View value = grad;
    if (amp_.scale) {
      value = store(grad, b_.apply(Op::div, {value, element(*amp_.scale, number_)}));
    }
    return maximize ? b_.apply(Op::neg, {value}) : value;
  }

 private:
  Builder& b_;
  const Amp& amp_;
  const size_t number_;
};

// Calls record(builder, steps, dtype in which they are computed) for those that are recorded
// together, the builder being where numbers are computed.
template <class Record>
void record_steps(at::ArrayRef<Step> steps, const Common& common, Record&& record) {
  Builder b(DType::f64, 0, {});
  b.reserve(kTogether * 24);
  for (size_t begin = 0, end; begin < steps.size(); begin = end) {
    const DType compute = compute_dtype(steps[begin].dtype);
    end = begin + 1;
    while (end < steps.size() && end - begin < kTogether &&
           compute_dtype(steps[end].dtype) == compute) {
      ++end;
    }
    b.enter(DType::f64, static_cast<int64_t>(end - begin));
    record(b, steps.slice(begin, end - begin), compute);
    steps[begin].window->record(b.list(), b.temporaries());
    b.clear();
  }
  // After all of them have been recorded, so that they run as one program.
  for (const Step& step : steps) {
    run_if_shared(*step.window, step.views);
    run_if_shared(*step.window, {&step.number, 1});
  }
  for (const auto& view : {common.device_rate, common.scale, common.found_inf}) {
    if (view) run_if_shared(*steps[0].window, {&*view, 1});
  }
}

// The overload of an optimizer by its learning rate, a number or a tensor.
template <class Lr>
constexpr const char* overload = std::is_same_v<Lr, Tensor> ? "tensor_lr" : "";

struct AdamOptions {
  double beta1, beta2, weight_decay, eps;
  bool amsgrad, maximize, decoupled;  // decoupled: AdamW
};

// What the steps of several parameters make of numbers: an element for each.
struct AdamNumbers {
  View change, root;
  std::optional<View> decay;
};

// The counts of steps side by side. What follows is computed for each of them.
View gathered_counts(Builder& b, at::ArrayRef<Step> steps) {
  const View numbers = b.temporary(DType::f32);
  b.enter(DType::f32, 1);
  for (size_t i = 0; i < steps.size(); ++i) {
    // Dense, as whoever counted the step has written it.
    View place = element(numbers, i), number = steps[i].number;
    place.layout = number.layout = Layout::dense;
    b.store(place, number);
  }
  b.enter(DType::f64, static_cast<int64_t>(steps.size()));
  return numbers;
}

AdamNumbers adam_numbers(Builder& b, at::ArrayRef<Step> steps, DType compute, const AdamOptions& o,
                         const Common& common) {
  const View numbers = gathered_counts(b, steps);
  const auto correction = [&](double beta) {
    return b.apply(Op::sub, {b.number(1), b.apply(Op::pow, {b.number(beta), numbers})});
  };
  // What uses the rate alone, before it is used with a number of these parameters, would go to the
  // group of those before them, and these would have to wait for that.
  const View change =
      b.apply(Op::div, {common.device_rate.value_or(b.number(common.rate)), correction(o.beta1)});
  AdamNumbers result;
  result.change = kept(b, b.apply(Op::neg, {change}), compute);
  result.root = kept(b, b.apply(Op::sqrt, {correction(o.beta2)}), compute);
  if (o.decoupled && o.weight_decay != 0 && common.device_rate) {
    const View decay = b.apply(Op::mul, {*common.device_rate, b.number(o.weight_decay)});
    result.decay = kept(b, b.apply(Op::sub, {b.number(1), decay}), compute);
  }
  return result;
}

void adam_step(Builder& b, Recorder& recorder, const View* views, const AdamOptions& o,
               const View& change, const View& root, const View& decay) {
  const View &param = views[0], &exp_avg = views[2], &exp_avg_sq = views[3], &most = views[4];
  View p = param;
  View grad = recorder.gradient(views[1], o.maximize);
  if (o.weight_decay != 0) {
    if (o.decoupled) {
      p = b.apply(Op::mul, {p, decay});
    } else {
      grad = b.apply(Op::add, {grad, b.apply(Op::mul, {p, b.number(o.weight_decay)})});
    }
  }
  // m += (1 - beta1) * (grad - m), from the nearer end and with one rounding.
  const double weight = 1 - o.beta1;
  const View span = b.apply(Op::sub, {grad, exp_avg});
  View m = weight < 0.5 ? b.apply(Op::fma, {b.number(weight), span, exp_avg})
                        : b.apply(Op::fma, {b.number(weight - 1), span, grad});
  m = recorder.store(exp_avg, m);
  const View fresh = b.apply(Op::mul, {b.apply(Op::mul, {b.number(1 - o.beta2), grad}), grad});
  View v = b.apply(Op::add, {b.apply(Op::mul, {exp_avg_sq, b.number(o.beta2)}), fresh});
  v = recorder.store(exp_avg_sq, v);
  if (o.amsgrad) v = recorder.store(most, b.apply(Op::maximum, {most, v}));
  const View denominator =
      b.apply(Op::add, {b.apply(Op::div, {b.apply(Op::sqrt, {v}), root}), b.number(o.eps)});
  const View step = b.apply(Op::div, {b.apply(Op::mul, {change, m}), denominator});
  recorder.store(param, b.apply(Op::add, {p, step}));
}

template <class Lr, bool decoupled>
struct Adam {
  static void call(TensorList self, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,
                   TensorList max_exp_avg_sqs, TensorList state_steps,
                   std::conditional_t<std::is_same_v<Lr, Tensor>, const Tensor&, double> lr,
                   double beta1, double beta2, double weight_decay, double eps, bool amsgrad,
                   bool maximize, const OptionalTensor& grad_scale,
                   const OptionalTensor& found_inf) {
    if (const auto counts = converted(state_steps, self)) {
      return call(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, *counts, lr, beta1, beta2,
                  weight_decay, eps, amsgrad, maximize, grad_scale, found_inf);
    }
    static Service& here =
        *new Service(decoupled ? "aten::_fused_adamw_" : "aten::_fused_adam_", overload<Lr>);
    c10::SmallVector<Step, 16> steps;
    Common common;
    if (max_exp_avg_sqs.size() != (amsgrad ? self.size() : 0) ||
        !prepare_steps({self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, steps) ||
        !prepare_numbers(state_steps, steps) || !common.prepare(steps, lr, grad_scale, found_inf)) {
      here.delegate.run(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1,
                        beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf);
      return;
    }
    note_native(here.counter);
    const AdamOptions options{beta1, beta2, weight_decay, eps, amsgrad, maximize, decoupled};
    record_steps(steps, common, [&](Builder& b, at::ArrayRef<Step> some, DType compute) {
      const AdamNumbers numbers = adam_numbers(b, some, compute, options, common);
      const Amp amp(b, common, compute);
      for (size_t i = 0; i < some.size(); ++i) {
        b.enter(compute, some[i].count);
        Recorder recorder(b, amp, i);
        adam_step(
            b, recorder, some[i].views.data(), options, element(numbers.change, i),
            element(numbers.root, i),
            numbers.decay ? element(*numbers.decay, i) : b.number(1 - common.rate * weight_decay));
      }
    });
  }
};

struct SgdOptions {
  double weight_decay, momentum, dampening;
  bool nesterov, maximize, first;
};

void sgd_step(Builder& b, Recorder& recorder, const View* views, const SgdOptions& o,
              const View& change) {
  const View &param = views[0], &buffer = views[2];
  View grad = recorder.gradient(views[1], o.maximize);
  if (o.weight_decay != 0) {
    grad = b.apply(Op::add, {grad, b.apply(Op::mul, {param, b.number(o.weight_decay)})});
  }
  if (o.momentum != 0) {
    View momentum{};
    if (o.first) {
      grad = momentum = recorder.store(buffer, grad);
    } else {
      momentum = b.apply(Op::add, {b.apply(Op::mul, {buffer, b.number(o.momentum)}),
                                   b.apply(Op::mul, {grad, b.number(1 - o.dampening)})});
      momentum = recorder.store(buffer, momentum);
    }
    grad = o.nesterov ? b.apply(Op::add, {grad, b.apply(Op::mul, {momentum, b.number(o.momentum)})})
                      : momentum;
  }
  recorder.store(param, b.apply(Op::add, {param, b.apply(Op::mul, {grad, change})}));
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
    Common common;
    if (momentum_buffers.size() != (momentum != 0 ? self.size() : 0) ||
        !prepare_steps({self, grads, momentum_buffers}, steps) ||
        !common.prepare(steps, lr, grad_scale, found_inf)) {
      here.delegate.run(self, grads, momentum_buffers, weight_decay, momentum, lr, dampening,
                        nesterov, maximize, is_first_step, grad_scale, found_inf);
      return;
    }
    note_native(here.counter);
    const SgdOptions options{weight_decay, momentum, dampening, nesterov, maximize, is_first_step};
    record_steps(steps, common, [&](Builder& b, at::ArrayRef<Step> some, DType compute) {
      std::optional<View> change;
      if (common.device_rate) {
        change = kept(b, b.apply(Op::neg, {*common.device_rate}), compute);
      }
      const Amp amp(b, common, compute);
      for (size_t i = 0; i < some.size(); ++i) {
        b.enter(compute, some[i].count);
        Recorder recorder(b, amp, i);
        sgd_step(b, recorder, some[i].views.data(), options,
                 change ? element(*change, i) : b.number(-common.rate));
      }
    });
  }
};

struct AdagradOptions {
  double lr_decay, weight_decay, eps;
  bool maximize;
};

void adagrad_step(Builder& b, Recorder& recorder, const View* views, const AdagradOptions& o,
                  const View& rate) {
  const View &param = views[0], &sum = views[2];
  View grad = recorder.gradient(views[1], o.maximize);
  if (o.weight_decay != 0) {
    grad = b.apply(Op::add, {grad, b.apply(Op::mul, {param, b.number(o.weight_decay)})});
  }
  const View squares = recorder.store(sum, b.apply(Op::add, {sum, b.apply(Op::mul, {grad, grad})}));
  const View deviation = b.apply(Op::add, {b.apply(Op::sqrt, {squares}), b.number(o.eps)});
  const View step = b.apply(Op::div, {b.apply(Op::mul, {rate, grad}), deviation});
  recorder.store(param, b.apply(Op::sub, {param, step}));
}

template <class Lr>
struct Adagrad {
  static void call(TensorList self, TensorList grads, TensorList state_sums, TensorList state_steps,
                   std::conditional_t<std::is_same_v<Lr, Tensor>, const Tensor&, double> lr,
                   double lr_decay, double weight_decay, double eps, bool maximize,
                   const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
    if (const auto counts = converted(state_steps, self)) {
      return call(self, grads, state_sums, *counts, lr, lr_decay, weight_decay, eps, maximize,
                  grad_scale, found_inf);
    }
    static Service& here = *new Service("aten::_fused_adagrad_", overload<Lr>);
    c10::SmallVector<Step, 16> steps;
    Common common;
    if (state_sums.size() != self.size() || !prepare_steps({self, grads, state_sums}, steps) ||
        !prepare_numbers(state_steps, steps) || !common.prepare(steps, lr, grad_scale, found_inf)) {
      here.delegate.run(self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps,
                        maximize, grad_scale, found_inf);
      return;
    }
    note_native(here.counter);
    const AdagradOptions options{lr_decay, weight_decay, eps, maximize};
    record_steps(steps, common, [&](Builder& b, at::ArrayRef<Step> some, DType compute) {
      std::optional<View> rates;
      if (lr_decay != 0) {
        const View late = b.apply(Op::sub, {gathered_counts(b, some), b.number(1)});
        const View divisor =
            b.apply(Op::add, {b.number(1), b.apply(Op::mul, {late, b.number(lr_decay)})});
        const View rate = common.device_rate.value_or(b.number(common.rate));
        rates = kept(b, b.apply(Op::div, {rate, divisor}), compute);
      } else if (common.device_rate) {
        rates = kept(b, *common.device_rate, compute);
      }
      const Amp amp(b, common, compute);
      for (size_t i = 0; i < some.size(); ++i) {
        b.enter(compute, some[i].count);
        Recorder recorder(b, amp, i);
        adagrad_step(b, recorder, some[i].views.data(), options,
                     rates ? element(*rates, i) : b.number(common.rate));
      }
    });
  }
};

// Torch composes this of a call for each tensor. Before a fused step it counts the steps of every
// parameter, where the calls would take as long as all else that is recorded.
bool record_add(TensorList self, const at::Scalar& number) {
  if (self.empty() || number.isBoolean() || !is_plain_number(number)) {
    return false;
  }
  Window* window = nullptr;
  std::vector<Operands> list(self.size());
  for (size_t i = 0; i < self.size(); ++i) {
    const Tensor* const one[] = {&self[i]};
    View view{};
    Window* const own = views_alike(one, &view);
    if (own == nullptr || (window != nullptr && own != window) ||
        (view.dtype != DType::f32 && view.dtype != DType::f64) || !has_value(number, view.dtype)) {
      return false;
    }
    window = own;
    const View added = immediate(immediate_bits(number, view.dtype, false), view.dtype);
    list[i] = {static_cast<Code>(Op::add), view.dtype, 2, self[i].numel(), {}, view,
               {view, added, {}}};
  }
  constexpr size_t kAtOnce = Window::kMostInstructions / 2;
  for (std::span<const Operands> rest = list; !rest.empty();) {
    const size_t some = std::min(rest.size(), kAtOnce);
    window->record(rest.first(some), 0);
    rest = rest.subspan(some);
  }
  for (size_t i = 0; i < self.size(); ++i) {
    self[i].unsafeGetTensorImpl()->bump_version();  // as add_ would: of lists, torch bumps none
    run_if_shared(*window, {&list[i].out, 1});
  }
  return true;
}

void add_to_each(TensorList self, const at::Scalar& number) {
  static OpCounter& counter = op_counter("aten::_foreach_add_.Scalar");
  if (record_add(self, number)) {
    note_native(counter);
  } else {
    at::native::foreach_tensor_add_scalar_kernel_slow_(self, number);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement("_foreach_add_.Scalar", &add_to_each, m);
  implement("_fused_adam_", &Adam<double, false>::call, m);
  implement("_fused_adam_.tensor_lr", &Adam<Tensor, false>::call, m);
  implement("_fused_adamw_", &Adam<double, true>::call, m);
  implement("_fused_adamw_.tensor_lr", &Adam<Tensor, true>::call, m);
  implement("_fused_adagrad_", &Adagrad<double>::call, m);
  implement("_fused_adagrad_.tensor_lr", &Adagrad<Tensor>::call, m);
  implement("_fused_sgd_", &Sgd<double>::call, m);
  implement("_fused_sgd_.tensor_lr", &Sgd<Tensor>::call, m);
}

}  // namespace hologram::aten
