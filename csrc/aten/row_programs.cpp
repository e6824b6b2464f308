// Softmax, norms and their derivatives, each as the instructions of its formula: a program over
// rows that the canonicaliser joins with what is before and after it.
//
// Half precision is computed in float32 and rounded once, where torch stores it. What recording
// declines goes to torch's kernel.
#include "aten/precompiled.h"

#include "aten/row_programs.h"

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "aten/block.h"
#include "aten/folding.h"
#include "aten/norms.h"
#include "aten/overloads.h"
#include "aten/past_autograd.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::ScalarType;
using at::Tensor;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// ---- softmax ----

// Writes the program of elementwise results over one dimension.
using BuildSoftmax = View (*)(Builder& b, const Folding& f, View x, View y);

View softmax(Builder& b, const Folding& f, View x, View) {
  const DType compute = b.compute();
  const View most = f.fold(b, Op::maximum, x);
  f.enter_elements(b, compute);
  const View e = b.apply(Op::exp, {b.apply(Op::sub, {x, f.beside_elements(most)})});
  const View sum = f.fold(b, Op::add, e);
  f.enter_elements(b, compute);
  return b.apply(Op::div, {e, f.beside_elements(sum)});
}
View log_softmax(Builder& b, const Folding& f, View x, View) {
  const DType compute = b.compute();
  const View most = f.fold(b, Op::maximum, x);
  f.enter_elements(b, compute);
  const View shifted = b.apply(Op::sub, {x, f.beside_elements(most)});
  const View sum = f.fold(b, Op::add, b.apply(Op::exp, {shifted}));
  const View log = b.apply(Op::log, {sum});
  f.enter_elements(b, compute);
  return b.apply(Op::sub, {shifted, f.beside_elements(log)});
}
View softmax_backward(Builder& b, const Folding& f, View grad, View output) {
  const DType compute = b.compute();
  f.enter_elements(b, compute);
  const View sum = f.fold(b, Op::add, b.apply(Op::mul, {grad, output}));
  f.enter_elements(b, compute);
  return b.apply(Op::mul, {output, b.apply(Op::sub, {grad, f.beside_elements(sum)})});
}
View log_softmax_backward(Builder& b, const Folding& f, View grad, View output) {
  const DType compute = b.compute();
  const View sum = f.fold(b, Op::add, grad);
  f.enter_elements(b, compute);
  const View e = b.apply(Op::exp, {output});
  return b.apply(Op::sub, {grad, b.apply(Op::mul, {e, f.beside_elements(sum)})});
}

bool record_softmax(BuildSoftmax build, const Tensor& x, const Tensor* y, int64_t dim,
                    const Target& to) {
  if (!is_real(x.scalar_type()) ||
      (y != nullptr && (y->scalar_type() != x.scalar_type() || y->sizes() != x.sizes() ||
                        y->device() != x.device()))) {
    return false;
  }
  const auto set = dim_set(x, at::IntArrayRef(dim));
  const auto folding = set ? Folding::of(x, *set, true) : std::nullopt;
  if (!folding || !folding->has_space()) return false;
  const auto other = y != nullptr ? Folding::of(*y, *set, true) : folding;
  if (!other) return false;
  if (to.out != nullptr &&
      !takes_result(*to.out, x.sizes(), x.scalar_type(), {&x, y != nullptr ? y : &x})) {
    return false;
  }
  Window& window = current_window(x.device().index());
  if (to.out == nullptr) *to.fresh = make_folded(window, x, x.sizes(), x.scalar_type());
  const Tensor& out = to.out != nullptr ? *to.out : *to.fresh;
  const DType dtype = *group_dtype(x.scalar_type());
  Builder b(compute_dtype(dtype), folding->count(), {});
  const View first = folding->source(b);
  const View second = y != nullptr ? other->source(b) : first;
  build(b, *folding, first, second);
  const View result = contiguous_view(out);
  b.give(result, dtype);
  record_built(window, b);
  return true;
}

Tensor forward(Service& here, BuildSoftmax build, const Tensor& self, int64_t dim, bool to_float) {
  Tensor fresh;
  if (to_float || !record_softmax(build, self, nullptr, dim, {nullptr, &fresh})) {
    return here.delegate(self, dim, to_float);
  }
  note_native(here.counter);
  return fresh;
}
Tensor& forward_out(Service& here, BuildSoftmax build, const Tensor& self, int64_t dim,
                    bool to_float, Tensor& out) {
  if (to_float || !record_softmax(build, self, nullptr, dim, {&out, nullptr})) {
    here.delegate(self, dim, to_float, out);
  } else {
    note_native(here.counter);
  }
  return out;
}
Tensor backward(Service& here, BuildSoftmax build, const Tensor& grad, const Tensor& output,
                int64_t dim, ScalarType type) {
  Tensor fresh;
  if (type != grad.scalar_type() || !record_softmax(build, grad, &output, dim, {nullptr, &fresh})) {
    return here.delegate(grad, output, dim, type);
  }
  note_native(here.counter);
  return fresh;
}
Tensor& backward_out(Service& here, BuildSoftmax build, const Tensor& grad, const Tensor& output,
                     int64_t dim, ScalarType type, Tensor& out) {
  if (type != grad.scalar_type() || !record_softmax(build, grad, &output, dim, {&out, nullptr})) {
    here.delegate(grad, output, dim, type, out);
  } else {
    note_native(here.counter);
  }
  return out;
}

// ---- layer norm ----

bool record_layer_norm(const Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                       const OptionalTensor& bias, double eps, Three& results) {
  const auto space = normalized(input, shape);
  const auto type = parameter_type(input, {&weight, &bias});
  if (!space || !type || !is_real(input.scalar_type()) ||
      !is_vector(weight, space->columns, input) || !is_vector(bias, space->columns, input)) {
    return false;
  }
  const auto folding = Folding::of(input, 0, true);
  if (!folding) return false;
  Window& window = current_window(input.device().index());
  const Sizes sizes = row_sizes(input, shape);
  Tensor out = make_folded(window, input, input.sizes(), input.scalar_type());
  Tensor mean = make_folded(window, input, sizes, *type);
  Tensor scale = make_folded(window, input, sizes, *type);
  const DType dtype = *group_dtype(input.scalar_type()), compute = compute_dtype(dtype);
  Builder b(compute, folding->count(), {});
  const View x = folding->source(b);
  const Moments m = moments(b, x, *space, eps);
  const View mean_view = contiguous_view(mean), scale_view = contiguous_view(scale);
  b.store(mean_view, m.mean);
  b.store(scale_view, m.scale);
  b.enter(compute, folding->count(), *space);
  View y = b.apply(Op::mul, {m.distance, by(m.scale, kRows)});
  if (is_given(weight)) y = b.apply(Op::mul, {y, by(contiguous_view(*weight), kColumns)});
  if (is_given(bias)) y = b.apply(Op::add, {y, by(contiguous_view(*bias), kColumns)});
  const View result = contiguous_view(out);
  b.give(result, dtype);
  record_built(window, b);
  results = {std::move(out), std::move(mean), std::move(scale)};
  return true;
}

Three layer_norm(const Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                 const OptionalTensor& bias, double eps) {
  static Service here("aten::native_layer_norm", "");
  Three results;
  if (!record_layer_norm(input, shape, weight, bias, eps, results)) {
    return here.delegate.three(input, shape, weight, bias, eps);
  }
  note_native(here.counter);
  return results;
}

bool record_layer_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape,
                                const Tensor& mean, const Tensor& scale,
                                const OptionalTensor& weight, std::array<bool, 3> wanted,
                                Three& results) {
  const auto space = normalized(input, shape);
  if (!space || !is_real(input.scalar_type()) || grad.scalar_type() != input.scalar_type() ||
      grad.sizes() != input.sizes() || grad.device() != input.device() ||
      !is_vector(mean, space->rows, input) || !is_vector(scale, space->rows, input) ||
      !is_vector(weight, space->columns, input) || !(wanted[0] || wanted[1] || wanted[2])) {
    return false;
  }
  // The statistics have the parameters' dtype, also where there is no weight.
  const OptionalTensor its_mean = mean, its_scale = scale;
  const auto type = parameter_type(input, {&weight, &its_mean, &its_scale});
  const auto xs = Folding::of(input, 0, true), grads = Folding::of(grad, 0, true);
  if (!type || !xs || !grads || (wanted[1] && !is_given(weight))) return false;
  Window& window = current_window(input.device().index());
  const DType dtype = *group_dtype(input.scalar_type()), compute = compute_dtype(dtype);
  const auto make = [&](bool is_wanted, at::IntArrayRef sizes, ScalarType its) {
    return is_wanted ? make_folded(window, input, sizes, its) : Tensor();
  };
  Tensor dx = make(wanted[0], input.sizes(), input.scalar_type());
  Tensor dweight = make(wanted[1], shape, *type), dbias = make(wanted[2], shape, *type);
  Builder b(compute, xs->count(), {});
  const View x = xs->source(b), g = grads->source(b);
  const auto elements = [&] { b.enter(compute, xs->count(), *space); };
  elements();
  const View distance = b.apply(Op::sub, {x, by(contiguous_view(mean), kRows)});
  const View normal = b.apply(Op::mul, {distance, by(contiguous_view(scale), kRows)});
  // In this order the accumulator alone is enough for what is folded, and for dx.
  const View product = b.apply(Op::mul, {normal, g});
  if (wanted[1]) {
    b.fold(Op::add, product, *space, kColumns);
    b.give(contiguous_view(dweight), *group_dtype(*type));
    elements();
  }
  if (wanted[2]) {
    b.fold(Op::add, g, *space, kColumns);
    b.give(contiguous_view(dbias), *group_dtype(*type));
    elements();
  }
  if (wanted[0]) {
    const View n = b.number(static_cast<double>(space->columns));
    const bool has_weight = is_given(weight);
    const View of_columns = has_weight ? by(contiguous_view(*weight), kColumns) : View{};
    const View weighted = has_weight ? b.apply(Op::mul, {g, of_columns}) : g;
    const View along = has_weight ? b.apply(Op::mul, {product, of_columns}) : product;
    const View mean_of_all = b.apply(Op::div, {b.fold(Op::add, weighted, *space, kRows), n});
    elements();
    const View mean_along = b.apply(Op::div, {b.fold(Op::add, along, *space, kRows), n});
    if (has_weight && adds_product_by_fma(input)) {
      const View less = b.apply(Op::neg, {mean_along}), shift = b.apply(Op::neg, {mean_of_all});
      elements();
      const View line =
          b.apply(Op::add, {b.apply(Op::mul, {normal, by(less, kRows)}), by(shift, kRows)});
      const View distances = b.apply(Op::fma, {g, of_columns, line});
      b.apply(Op::mul, {distances, by(contiguous_view(scale), kRows)});
    } else {
      elements();
      const View line = b.apply(
          Op::add, {b.apply(Op::mul, {normal, by(mean_along, kRows)}), by(mean_of_all, kRows)});
      b.apply(Op::mul, {b.apply(Op::sub, {weighted, line}), by(contiguous_view(scale), kRows)});
    }
    b.give(contiguous_view(dx), dtype);
  }
  record_built(window, b);
  results = {std::move(dx), std::move(dweight), std::move(dbias)};
  return true;
}

Three layer_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape,
                          const Tensor& mean, const Tensor& scale, const OptionalTensor& weight,
                          const OptionalTensor& bias, std::array<bool, 3> wanted) {
  static Service here("aten::native_layer_norm_backward", "");
  Three results;
  if (!record_layer_norm_backward(grad, input, shape, mean, scale, weight, wanted, results)) {
    return here.delegate.three(grad, input, shape, mean, scale, weight, bias, wanted);
  }
  note_native(here.counter);
  return results;
}

}  // namespace

// X(function, name, forward or backward, builder)
#define HOLOGRAM_SOFTMAX(name, build)                                                 \
  {                                                                                   \
    static Service plain("aten::" #name, ""), with_out("aten::" #name, "out");        \
    implement(                                                                        \
        #name, +[](const Tensor& self, int64_t dim, bool to_float) {                  \
          return forward(plain, build, self, dim, to_float);                          \
        });                                                                           \
    implement(                                                                        \
        #name ".out",                                                                 \
        +[](const Tensor& self, int64_t dim, bool to_float, Tensor& out) -> Tensor& { \
          return forward_out(with_out, build, self, dim, to_float, out);              \
        });                                                                           \
  }
#define HOLOGRAM_SOFTMAX_BACKWARD(name, overload, build)                                         \
  {                                                                                              \
    static Service plain("aten::" #name, ""), with_out("aten::" #name, overload);                \
    implement(                                                                                   \
        #name, +[](const Tensor& grad, const Tensor& output, int64_t dim, ScalarType type) {     \
          return backward(plain, build, grad, output, dim, type);                                \
        });                                                                                      \
    implement(                                                                                   \
        #name "." overload,                                                                      \
        +[](const Tensor& grad, const Tensor& output, int64_t dim, ScalarType type, Tensor& out) \
            -> Tensor& { return backward_out(with_out, build, grad, output, dim, type, out); }); \
  }

void register_row_programs() {
  HOLOGRAM_SOFTMAX(_softmax, softmax)
  HOLOGRAM_SOFTMAX(_log_softmax, log_softmax)
  HOLOGRAM_SOFTMAX_BACKWARD(_softmax_backward_data, "out", softmax_backward)
  HOLOGRAM_SOFTMAX_BACKWARD(_log_softmax_backward_data, "out", log_softmax_backward)
  implement("native_layer_norm", &layer_norm);
  implement("native_layer_norm_backward", &layer_norm_backward);
}

}  // namespace hologram::aten
