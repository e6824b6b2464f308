// Reductions: folds of the op table's rows, and what is computed before and after them.
//
// Each is recorded as the instructions that torch's formula is made of, or left to torch's kernel.
#include "aten/precompiled.h"

#include "aten/row_programs.h"

#include <c10/core/DefaultDtype.h>

#include <cmath>
#include <limits>
#include <optional>

#include "aten/folding.h"
#include "aten/overloads.h"
#include "aten/past_autograd.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using c10::OptionalArrayRef;
using Dims = OptionalArrayRef<int64_t>;
using OptionalType = std::optional<ScalarType>;

// Values of a reduction as they are built: of the result, after which the builder is there.
using Build = View (*)(Builder& b, const Folding& folding, View x, double parameter);

struct Reduction {
  Build build;
  DType compute;
  ScalarType type;       // of the result
  double parameter = 0;  // of the builder
  bool needs_space = false;
  std::optional<DType> converted = std::nullopt;  // what elements are rounded to before all else
};

bool record(const Reduction& reduction, const Tensor& self, Dims dims, bool keepdim,
            const Target& to) {
  const auto set = dim_set(self, dims);
  const auto folding = set ? Folding::of(self, *set, false) : std::nullopt;
  if (!folding || (reduction.needs_space && !folding->has_space())) {
    return false;
  }
  const Sizes sizes = folded_sizes(self, *set, keepdim);
  if (to.out != nullptr && !takes_result(*to.out, sizes, reduction.type, {&self})) {
    return false;
  }
  Window& window = current_window(self.device().index());
  if (to.out == nullptr) *to.fresh = make_folded(window, self, sizes, reduction.type);
  const Tensor& out = to.out != nullptr ? *to.out : *to.fresh;
  Builder b(reduction.compute, folding->count(), {});
  View x = folding->source(b);
  if (reduction.converted) {
    folding->enter_elements(b, *reduction.converted);
    x = b.copy(x);
    folding->enter_elements(b, reduction.compute);
  }
  const View value = reduction.build(b, *folding, x, reduction.parameter);
  folding->give_kept(b, value, out, *foldable_dtype(reduction.type));
  record_built(window, b);
  return true;
}

// ---- what is built ----

template <Op op>
View fold(Builder& b, const Folding& f, View x, double) {
  return f.fold(b, op, x);
}
View mean(Builder& b, const Folding& f, View x, double) {
  const View sum = f.fold(b, Op::add, x);
  return b.apply(Op::div, {sum, b.number(static_cast<double>(f.folded()))});
}
// What is no number counts as 0.
View nansum(Builder& b, const Folding& f, View x, double) {
  f.enter_elements(b, b.compute());
  const View nan = b.apply(Op::ne, {x, x});
  return f.fold(b, Op::add, b.apply(Op::where, {nan, b.number(0), x}));
}
// Of truth values: whether any, or all, are not zero.
template <Op op>
View truth(Builder& b, const Folding& f, View x, double) {
  f.enter_elements(b, b.compute());
  return f.fold(b, op, b.apply(Op::ne, {x, b.number(0)}));
}
View count_nonzero(Builder& b, const Folding& f, View x, double) {
  f.enter_elements(b, b.compute());
  const View truths = b.apply(Op::ne, {x, b.number(0)});
  f.enter_elements(b, DType::i64);
  return f.fold(b, Op::add, truths);
}

// Of the squares of the distances from the mean, which is built first.
View squared_distances(Builder& b, const Folding& f, View x, const View& mean) {
  f.enter_elements(b, b.compute());
  const View distance = b.apply(Op::sub, {x, f.beside_elements(mean)});
  return f.fold(b, Op::add, b.apply(Op::mul, {distance, distance}));
}
View variance(Builder& b, const Folding& f, View x, double correction) {
  const View sum = squared_distances(b, f, x, mean(b, f, x, 0));
  return b.apply(Op::div, {sum, b.number(static_cast<double>(f.folded()) - correction)});
}
View deviation(Builder& b, const Folding& f, View x, double correction) {
  return b.apply(Op::sqrt, {variance(b, f, x, correction)});
}
// The mean beside a variance is no number where that is none: torch's kernel updates it by
// distances from the mean so far, of which an infinite element has none.
View mean_beside_variance(Builder& b, const Folding& f, View x, double) {
  const View its_mean = mean(b, f, x, 0);
  if (f.folded() == 1) return its_mean;
  const View squares = squared_distances(b, f, x, its_mean);
  return b.apply(Op::where, {b.apply(Op::ne, {squares, squares}), squares, its_mean});
}

View norm(Builder& b, const Folding& f, View x, double order) {
  f.enter_elements(b, b.compute());
  if (order == 2) {
    return b.apply(Op::sqrt, {f.fold(b, Op::add, b.apply(Op::mul, {x, x}))});
  }
  if (order == 0) {
    const View truths = b.apply(Op::ne, {x, b.number(0)});
    return f.fold(b, Op::add, truths);
  }
  const View size = b.apply(Op::abs, {x});
  if (order == 1) return f.fold(b, Op::add, size);
  if (std::isinf(order)) return f.fold(b, order > 0 ? Op::maximum : Op::minimum, size);
  const View sum = f.fold(b, Op::add, b.apply(Op::pow, {size, b.number(order)}));
  return b.apply(Op::pow, {sum, b.number(1 / order)});
}

// An infinite maximum is not taken off: infinity less itself is no number.
View logsumexp(Builder& b, const Folding& f, View x, double) {
  const View most = f.fold(b, Op::maximum, x);
  const View infinite = b.apply(
      Op::eq, {b.apply(Op::abs, {most}), b.number(std::numeric_limits<double>::infinity())});
  const View shift = b.apply(Op::where, {infinite, b.number(0), most});
  f.enter_elements(b, b.compute());
  const View e = b.apply(Op::exp, {b.apply(Op::sub, {x, f.beside_elements(shift)})});
  const View sum = f.fold(b, Op::add, e);
  return b.apply(Op::add, {b.apply(Op::log, {sum}), shift});
}

// ---- their dtypes ----

// The dtype in which a type's values are folded; none for those of others.
std::optional<DType> fold_compute(ScalarType type) {
  const auto dtype = foldable_dtype(type);
  if (!dtype) return std::nullopt;
  if (*dtype == DType::b8) return DType::b8;
  return compute_type_of(*dtype) == ComputeType::i64 ? DType::i64 : compute_dtype(*dtype);
}

// The dtype that the elements of `own` are rounded to first where the result is to have `type`;
// none where a fold's loads convert them exactly, or keep those bits of an integer that its result
// has.
std::optional<DType> converted_to(ScalarType own, ScalarType type) {
  const DType dtype = *foldable_dtype(type);
  if (own == type || !foldable_dtype(own)) return std::nullopt;
  if (is_half(dtype)) return dtype;
  if (is_real(own) && (dtype == DType::i32 || dtype == DType::i64)) return dtype;
  return std::nullopt;
}

// The sum of a tensor is an int64 where it is one of integers, or has the dtype that is asked for,
// to which the elements are converted.
std::optional<Reduction> sum_like(Build build, const Tensor& self, OptionalType dtype) {
  const ScalarType own = self.scalar_type();
  const bool integral = c10::isIntegralType(own, /*includeBool=*/true);
  const ScalarType type = dtype.value_or(integral ? at::kLong : own);
  const auto compute = fold_compute(type);
  if (!compute || *compute == DType::b8) return std::nullopt;
  return Reduction{build, *compute, type, 0, false, converted_to(own, type)};
}

std::optional<Reduction> nansum_of(const Tensor& self, OptionalType dtype) {
  // Of integers there is nothing to leave out, of a float as an integer no saying what.
  if (!is_real(dtype.value_or(self.scalar_type()))) {
    return is_real(self.scalar_type()) ? std::nullopt : sum_like(fold<Op::add>, self, dtype);
  }
  return sum_like(nansum, self, dtype);
}

std::optional<Reduction> mean_of(Build build, const Tensor& self, OptionalType dtype) {
  if (!is_real(dtype.value_or(self.scalar_type()))) return std::nullopt;
  return sum_like(build, self, dtype);
}

std::optional<Reduction> extremum(Build build, const Tensor& self) {
  const auto compute = fold_compute(self.scalar_type());
  if (!compute) return std::nullopt;
  return Reduction{build, *compute, self.scalar_type()};
}

// torch gives uint8 for uint8.
template <Op op>
std::optional<Reduction> truth_of(const Tensor& self) {
  const auto compute = fold_compute(self.scalar_type());
  if (!compute) return std::nullopt;
  return Reduction{*compute == DType::b8 ? fold<op> : truth<op>, *compute,
                   self.scalar_type() == at::kByte ? at::kByte : at::kBool};
}

// torch warns where nothing is left to divide by.
std::optional<Reduction> variance_of(Build build, const Tensor& self, Dims dims,
                                     const std::optional<Scalar>& correction) {
  if (!is_real(self.scalar_type())) return std::nullopt;
  const double less = correction ? correction->toDouble() : 1;
  const auto set = dim_set(self, dims);
  if (!set || self.numel() == 0) return std::nullopt;
  int64_t count = 1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if ((*set >> d & 1) != 0) count *= self.size(d);
  }
  if (!(static_cast<double>(count) - less > 0)) return std::nullopt;
  return Reduction{build, compute_dtype(*group_dtype(self.scalar_type())), self.scalar_type(), less,
                   true};
}

std::optional<Reduction> beside_variance_of(const Tensor& self) {
  auto reduction = mean_of(mean_beside_variance, self, {});
  if (reduction) reduction->needs_space = true;
  return reduction;
}

// torch refuses a dtype= that is narrower.
std::optional<Reduction> norm_of(const Tensor& self, const Scalar& order, OptionalType dtype) {
  const ScalarType own = self.scalar_type(), type = dtype.value_or(own);
  if (!is_real(own) || !is_real(type) || c10::promoteTypes(own, type) != type ||
      order.isComplex() || order.isSymbolic()) {
    return std::nullopt;
  }
  return Reduction{norm, compute_dtype(*group_dtype(type)), type, order.toDouble()};
}

// Integers become floats first. Without dimensions or elements there is an error to raise, and of
// an integer `out` too: that is torch's.
std::optional<Reduction> logsumexp_of(const Tensor& self, at::IntArrayRef dims) {
  const ScalarType own = self.scalar_type();
  const ScalarType type =
      c10::isIntegralType(own, /*includeBool=*/true) ? c10::get_default_dtype_as_scalartype() : own;
  if (!is_real(type) || self.numel() == 0 || dims.empty()) return std::nullopt;
  return Reduction{
      logsumexp, compute_dtype(*group_dtype(type)), type, 0, true, converted_to(own, type)};
}

// ---- operators ----

// Serves a call by recording it or by torch's kernel.
template <class... Args>
Tensor serve(Service& here, const std::optional<Reduction>& reduction, const Tensor& self,
             Dims dims, bool keepdim, const Args&... args) {
  Tensor fresh;
  if (reduction && record(*reduction, self, dims, keepdim, {nullptr, &fresh})) {
    note_native(here.counter);
    return fresh;
  }
  return here.delegate(self, args...);
}
template <class... Args>
Tensor& serve_out(Service& here, const std::optional<Reduction>& reduction, const Tensor& self,
                  Dims dims, bool keepdim, Tensor& out, const Args&... args) {
  if (reduction && record(*reduction, self, dims, keepdim, {&out, nullptr})) {
    note_native(here.counter);
  } else {
    here.delegate(self, args..., out);
  }
  return out;
}

// Two reductions of the same elements, which join one pass.
using Two = std::tuple<Tensor, Tensor>;
template <class... Args>
Two serve_two(Service& here, const std::optional<Reduction>& first,
              const std::optional<Reduction>& second, const Tensor& self, Dims dims, bool keepdim,
              const Args&... args) {
  Two fresh;
  if (first && second && record(*first, self, dims, keepdim, {nullptr, &std::get<0>(fresh)}) &&
      record(*second, self, dims, keepdim, {nullptr, &std::get<1>(fresh)})) {
    note_native(here.counter);
    return fresh;
  }
  return here.delegate.two(self, args...);
}

// X(operator, overload, the rest of its parameters, their names, the reduction, dims, keepdim)
#define HOLOGRAM_REDUCTION(function, name, overload, parameters, arguments, reduction, dims, keep) \
  Tensor function(const Tensor& self HOLOGRAM_UNPACK parameters) {                                 \
    static Service here("aten::" name, overload);                                                  \
    return serve(here, reduction, self, dims, keep HOLOGRAM_UNPACK arguments);                     \
  }
#define HOLOGRAM_REDUCTION_OUT(function, name, overload, parameters, arguments, reduction, dims, \
                               keep)                                                             \
  Tensor& function##_out(const Tensor& self HOLOGRAM_UNPACK parameters, Tensor& out) {           \
    static Service here("aten::" name, overload);                                                \
    return serve_out(here, reduction, self, dims, keep, out HOLOGRAM_UNPACK arguments);          \
  }
#define HOLOGRAM_UNPACK(...) __VA_OPT__(, ) __VA_ARGS__
#define HOLOGRAM_BOTH(function, name, overload, out_overload, parameters, arguments, reduction, \
                      dims, keep)                                                               \
  HOLOGRAM_REDUCTION(function, name, overload, parameters, arguments, reduction, dims, keep)    \
  HOLOGRAM_REDUCTION_OUT(function, name, out_overload, parameters, arguments, reduction, dims, keep)

HOLOGRAM_BOTH(sum_dims, "sum", "dim_IntList", "IntList_out",
              (Dims dims, bool keep, OptionalType dtype), (dims, keep, dtype),
              sum_like(fold<Op::add>, self, dtype), dims, keep)
HOLOGRAM_BOTH(nansum_dims, "nansum", "", "out", (Dims dims, bool keep, OptionalType dtype),
              (dims, keep, dtype), nansum_of(self, dtype), dims, keep)
HOLOGRAM_BOTH(mean_dims, "mean", "dim", "out", (Dims dims, bool keep, OptionalType dtype),
              (dims, keep, dtype), mean_of(mean, self, dtype), dims, keep)
HOLOGRAM_REDUCTION(prod_all, "prod", "", (OptionalType dtype), (dtype),
                   sum_like(fold<Op::mul>, self, dtype), std::nullopt, false)
HOLOGRAM_BOTH(prod_dim, "prod", "dim_int", "int_out", (int64_t dim, bool keep, OptionalType dtype),
              (dim, keep, dtype), sum_like(fold<Op::mul>, self, dtype), Dims(dim), keep)
HOLOGRAM_BOTH(amax, "amax", "", "out", (at::IntArrayRef dims, bool keep), (dims, keep),
              extremum(fold<Op::maximum>, self), Dims(dims), keep)
HOLOGRAM_BOTH(amin, "amin", "", "out", (at::IntArrayRef dims, bool keep), (dims, keep),
              extremum(fold<Op::minimum>, self), Dims(dims), keep)
HOLOGRAM_BOTH(max_all, "max", "", "unary_out", (), (), extremum(fold<Op::maximum>, self),
              std::nullopt, false)
HOLOGRAM_BOTH(min_all, "min", "", "unary_out", (), (), extremum(fold<Op::minimum>, self),
              std::nullopt, false)
HOLOGRAM_BOTH(any_all, "any", "", "all_out", (), (), truth_of<Op::maximum>(self), std::nullopt,
              false)
HOLOGRAM_BOTH(all_all, "all", "", "all_out", (), (), truth_of<Op::minimum>(self), std::nullopt,
              false)
HOLOGRAM_BOTH(any_dim, "any", "dim", "out", (int64_t dim, bool keep), (dim, keep),
              truth_of<Op::maximum>(self), Dims(dim), keep)
HOLOGRAM_BOTH(all_dim, "all", "dim", "out", (int64_t dim, bool keep), (dim, keep),
              truth_of<Op::minimum>(self), Dims(dim), keep)
HOLOGRAM_BOTH(any_dims, "any", "dims", "dims_out", (Dims dims, bool keep), (dims, keep),
              dims.has_value() && dims->empty() ? std::nullopt : truth_of<Op::maximum>(self), dims,
              keep)
HOLOGRAM_BOTH(all_dims, "all", "dims", "dims_out", (Dims dims, bool keep), (dims, keep),
              dims.has_value() && dims->empty() ? std::nullopt : truth_of<Op::minimum>(self), dims,
              keep)
HOLOGRAM_BOTH(var, "var", "correction", "correction_out",
              (Dims dims, const std::optional<Scalar>& correction, bool keep),
              (dims, correction, keep), variance_of(variance, self, dims, correction), dims, keep)
HOLOGRAM_BOTH(std_, "std", "correction", "correction_out",
              (Dims dims, const std::optional<Scalar>& correction, bool keep),
              (dims, correction, keep), variance_of(deviation, self, dims, correction), dims, keep)
Two var_mean(const Tensor& self, Dims dims, const std::optional<Scalar>& correction, bool keep) {
  static Service here("aten::var_mean", "correction");
  return serve_two(here, variance_of(variance, self, dims, correction), beside_variance_of(self),
                   self, dims, keep, dims, correction, keep);
}
Two std_mean(const Tensor& self, Dims dims, const std::optional<Scalar>& correction, bool keep) {
  static Service here("aten::std_mean", "correction");
  return serve_two(here, variance_of(deviation, self, dims, correction), beside_variance_of(self),
                   self, dims, keep, dims, correction, keep);
}
Two aminmax(const Tensor& self, std::optional<int64_t> dim, bool keep) {
  static Service here("aten::aminmax", "");
  const Dims dims = dim ? Dims(*dim) : std::nullopt;
  return serve_two(here, extremum(fold<Op::minimum>, self), extremum(fold<Op::maximum>, self), self,
                   dims, keep, dim, keep);
}
HOLOGRAM_BOTH(vector_norm, "linalg_vector_norm", "", "out",
              (const Scalar& order, Dims dims, bool keep, OptionalType dtype),
              (order, dims, keep, dtype), norm_of(self, order, dtype), dims, keep)

HOLOGRAM_BOTH(log_of_sum, "logsumexp", "", "out", (at::IntArrayRef dims, bool keep), (dims, keep),
              logsumexp_of(self, dims), Dims(dims), keep)

std::optional<Reduction> nonzero_of(const Tensor& self) {
  const auto compute = fold_compute(self.scalar_type());
  if (!compute) return std::nullopt;
  if (*compute == DType::b8) return Reduction{fold<Op::add>, DType::i64, at::kLong};
  return Reduction{count_nonzero, *compute, at::kLong};
}
HOLOGRAM_REDUCTION(nonzeros, "count_nonzero", "dim_IntList", (at::IntArrayRef dims), (dims),
                   nonzero_of(self), Dims(dims), false)

}  // namespace

void register_reductions() {
  implement("sum.dim_IntList", &sum_dims);
  implement("sum.IntList_out", &sum_dims_out);
  implement("nansum", &nansum_dims);
  implement("nansum.out", &nansum_dims_out);
  implement("mean.dim", &mean_dims);
  implement("mean.out", &mean_dims_out);
  implement("prod", &prod_all);
  implement("prod.dim_int", &prod_dim);
  implement("prod.int_out", &prod_dim_out);
  implement("amax", &amax);
  implement("amax.out", &amax_out);
  implement("amin", &amin);
  implement("amin.out", &amin_out);
  implement("max", &max_all);
  implement("max.unary_out", &max_all_out);
  implement("min", &min_all);
  implement("min.unary_out", &min_all_out);
  implement("any", &any_all);
  implement("any.all_out", &any_all_out);
  implement("any.dim", &any_dim);
  implement("any.out", &any_dim_out);
  implement("any.dims", &any_dims);
  implement("any.dims_out", &any_dims_out);
  implement("all", &all_all);
  implement("all.all_out", &all_all_out);
  implement("all.dim", &all_dim);
  implement("all.out", &all_dim_out);
  implement("all.dims", &all_dims);
  implement("all.dims_out", &all_dims_out);
  implement("var.correction", &var);
  implement("var.correction_out", &var_out);
  implement("std.correction", &std_);
  implement("std.correction_out", &std__out);
  implement("var_mean.correction", &var_mean);
  implement("std_mean.correction", &std_mean);
  implement("aminmax", &aminmax);
  implement("linalg_vector_norm", &vector_norm);
  implement("linalg_vector_norm.out", &vector_norm_out);
  implement("logsumexp", &log_of_sum);
  implement("logsumexp.out", &log_of_sum_out);
  implement("count_nonzero.dim_IntList", &nonzeros);
}

}  // namespace hologram::aten
