// GradScaler's operators as recordings, so that neither gradients nor the scale are waited for.
//
// What recording declines - gradients with gaps or without elements, tensors of several devices,
// arguments that are wrong - goes to torch's kernel.
#include "aten/precompiled.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_ops.h>
#include <torch/library.h>

#include <vector>

#include "aten/builder.h"
#include "aten/delegate.h"
#include "aten/folding.h"
#include "aten/operand.h"
#include "aten/prepare.h"
#include "aten/quick.h"
#include "aten/record.h"
#include "aten/runtime.h"
#include "atlas/op_table.h"
#include "atlas/window.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using at::TensorList;

// So many instructions are recorded at once.
constexpr size_t kManyInstructions = 256;

View scalar(View view) {
  view.layout = Layout::scalar;
  return view;
}

// The products of a gradient with 0 are 0, that of an element that is not finite is not a number,
// and so is their sum.
View sum_of_zeros(Builder& b, const View& grad, int64_t count) {
  const View zeros = b.apply(Op::mul, {grad, b.number(0)});
  return count == 1 ? zeros : b.fold(Op::add, zeros, {1, 1, count}, kRows);
}

bool record_unscale(TensorList grads, const Tensor& found_inf, const Tensor& inv_scale) {
  if (grads.empty()) {
    return false;
  }
  std::vector<View> views(grads.size());
  Window* window = nullptr;
  for (size_t i = 0; i < grads.size(); ++i) {
    const Tensor* const one[] = {&grads[i]};
    Window* const its = views_alike(one, &views[i]);
    if (its == nullptr || (i != 0 && its != window) || !grads[i].is_floating_point()) {
      return false;
    }
    window = its;
  }
  View found{}, inverse{};
  if (!view_of_one(found_inf, dtype_bit(DType::f32), window, found) ||
      !view_of_one(inv_scale, dtype_bit(DType::f32), window, inverse)) {
    return false;
  }
  const auto count = static_cast<int64_t>(grads.size());
  // Memory of its own: the gradients may be more than are recorded at once.
  const Tensor sums = make_result(*window, count, at::kFloat, found_inf.device().index());
  const View all = contiguous_view(sums);
  Builder b(DType::f32, 0, {});
  for (size_t i = 0; i < grads.size(); ++i) {
    const DType compute = compute_dtype(views[i].dtype);
    const int64_t size = grads[i].numel();
    b.enter(compute, size, {1, 1, size});
    View place = all;
    place.offset += static_cast<int64_t>(i * dtype_size(DType::f32));
    b.store(place, sum_of_zeros(b, views[i], size));
    b.enter(compute, size, {1, 1, size});
    b.put(views[i], b.apply(Op::mul, {views[i], scalar(inverse)}));
    if (b.list().size() >= kManyInstructions) {
      window->record(b.list(), b.temporaries());
      b.clear();
    }
  }
  b.enter(DType::f32, count, {1, 1, count});
  const View sum = count == 1 ? all : b.fold(Op::add, all, {1, 1, count}, kRows);
  const View infinite = b.apply(Op::ne, {sum, b.number(0)});
  b.put(found, b.apply(Op::where, {infinite, b.number(1), found}));
  window->record(b.list(), b.temporaries());
  run_if_shared(*window, views);
  run_if_shared(*window, {&found, 1});
  run_if_shared(*window, {&inverse, 1});
  return true;
}

void check_and_unscale(c10::DispatchKeySet keys, TensorList self, Tensor& found_inf,
                       const Tensor& inv_scale) {
  static auto& torchs = quick_kernel<at::_ops::_amp_foreach_non_finite_check_and_unscale_>();
  if (record_unscale(self, found_inf, inv_scale)) {
    note_native(torchs.op().counter());
  } else {
    torchs(keys, self, found_inf, inv_scale);
  }
}

// In double, as torch's kernel computes the scale; a count of steps is exact in it.
bool record_update(const Tensor& self, const Tensor& tracker, const Tensor& found_inf,
                   double growth, double backoff, int64_t interval) {
  constexpr int64_t kExact = int64_t{1} << 53;
  const Tensor* const one[] = {&self};
  View scale{}, count{}, found{};
  Window* const window = views_alike(one, &scale);
  if (window == nullptr || self.numel() != 1 || scale.dtype != DType::f32 ||
      !view_of_one(tracker, dtype_bit(DType::i32), window, count) ||
      !view_of_one(found_inf, dtype_bit(DType::f32), window, found) || interval > kExact ||
      interval < -kExact) {
    return false;
  }
  Builder b(DType::f64, 1, {});
  const View infinite = b.apply(Op::ne, {found, b.number(0)});
  const View next = b.apply(Op::add, {count, b.number(1)});
  const View due = b.apply(Op::eq, {next, b.number(static_cast<double>(interval))});
  // The scale stays where it would not be finite in float32: from half a step beyond the largest.
  const View grown = b.apply(Op::mul, {scale, b.number(growth)});
  const View fits = b.apply(Op::lt, {b.apply(Op::abs, {grown}), b.number(0x1.ffffffp+127)});
  const View larger = b.apply(Op::where, {due, b.apply(Op::where, {fits, grown, scale}), scale});
  const View smaller = b.apply(Op::mul, {scale, b.number(backoff)});
  b.store(scale, b.apply(Op::where, {infinite, smaller, larger}));
  const View counted = b.apply(Op::where, {due, b.number(0), next});
  b.store(count, b.apply(Op::where, {infinite, b.number(0), counted}));
  window->record(b.list(), b.temporaries());
  const View views[] = {scale, count, found};
  run_if_shared(*window, views);
  return true;
}

Tensor& update_scale(Tensor& self, Tensor& growth_tracker, const Tensor& found_inf, double growth,
                     double backoff, int64_t interval) {
  static Service here("aten::_amp_update_scale_", "");
  if (record_update(self, growth_tracker, found_inf, growth, backoff, interval)) {
    note_native(here.counter);
  } else {
    here.delegate(self, growth_tracker, found_inf, growth, backoff, interval);
  }
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_amp_foreach_non_finite_check_and_unscale_", &check_and_unscale);
  m.impl("_amp_update_scale_", &update_scale);
}

}  // namespace hologram::aten
