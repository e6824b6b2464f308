// Random numbers: operators whose numbers are drawn in the program, each a draw (atlas/random.h)
// and rows of the op table, so that dropout is one pass with what is before and after it. Their
// counters are taken from the generator when the operator is called.
//
// torch's templates check parameters, in its words, and call the kernels of this file. What these
// decline, such as complex numbers, is left to torch's CPU kernels, which draw from a generator of
// their own (kernel_generator).
#include "aten/precompiled.h"

#include "aten/random.h"

#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "aten/block.h"
#include "aten/builder.h"
#include "aten/delegate.h"
#include "aten/folding.h"
#include "aten/generator.h"
#include "aten/memory_overlap.h"
#include "aten/numbers.h"
#include "aten/past_autograd.h"
#include "aten/prepare.h"
#include "aten/report.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using at::TensorIteratorBase;
using Generator = std::optional<at::Generator>;

constexpr uint64_t kWordRange = uint64_t{1} << 32;  // of Draw::integer at most

// What elements of a space are drawn from: takes as many counters.
RandomState reserve(const Generator& generator, c10::DeviceIndex device, Draw draw, DType dtype,
                    int64_t count) {
  const int each = elements_per_counter(draw, dtype);
  return random_source(generator, device).reserve(static_cast<uint64_t>((count + each - 1) / each));
}

// The dtype that a distribution is computed in for results of `dtype`.
DType computed_in(DType dtype) {
  switch (compute_type_of(dtype)) {
    case ComputeType::f32: return DType::f32;
    default: return DType::f64;
  }
}

// A tensor that is filled with what build(builder, drawn) makes of a draw: in the order of its
// memory where it fills that, else in the order of its dimensions.
template <class Build>
bool record_fill(OpCounter& counter, const Tensor& self, const Generator& generator, Draw draw,
                 DType drawn, DType compute, uint64_t range, Build&& build) {
  const auto* impl = self.unsafeGetTensorImpl();
  const auto dtype = foldable_dtype(self.scalar_type());
  if (!dtype || !is_plain_strided(impl) || operand_block(impl) == nullptr ||
      overlaps_itself(impl)) {
    return false;
  }
  const auto device = self.device().index();
  const RandomState from = reserve(generator, device, draw, drawn, impl->numel());
  View out = contiguous_view(self);
  const bool dense = impl->is_non_overlapping_and_dense();
  const Sizes strides = dense ? Sizes{} : byte_strides(impl, self.sizes());
  if (!dense) {
    out.layout = Layout::strided;
    out.strides = strides.data();
  }
  Builder b(compute, impl->numel(), {self.sizes().data(), self.sizes().size()});
  build(b, b.draw(draw, drawn, from, range));
  b.give(out, *dtype);
  record_built(current_window(device), b);
  note_native(counter);
  return true;
}

// ---- uniform numbers ----

// The number of a dtype before a finite one.
double below(double x, DType dtype) {
  switch (dtype) {
    case DType::f64: return std::nextafter(x, -std::numeric_limits<double>::infinity());
    case DType::f32:
      return static_cast<double>(
          std::nextafter(static_cast<float>(x), -std::numeric_limits<float>::infinity()));
    default: break;
  }
  const auto step = [&](auto half) {
    half.x = x == 0 ? uint16_t{0x8001} : static_cast<uint16_t>(half.x + (x > 0 ? -1 : 1));
    return static_cast<double>(static_cast<float>(half));
  };
  if (dtype == DType::f16) return step(c10::Half(static_cast<float>(x)));
  return step(c10::BFloat16(static_cast<float>(x)));
}

double rounded_to(double x, DType dtype) {
  switch (dtype) {
    case DType::f64: return x;
    case DType::f16: return static_cast<double>(float{c10::Half(static_cast<float>(x))});
    case DType::bf16: return static_cast<double>(float{c10::BFloat16(static_cast<float>(x))});
    default: return static_cast<double>(static_cast<float>(x));
  }
}

bool is_floating(const Tensor& self) {
  return is_real(self.scalar_type());
}

// In [from, to): what is rounded up to `to` is the number before it.
template <class>
struct UniformKernel {
  void operator()(TensorIteratorBase& iter, double from, double to, const Generator& generator) {
    static Service here("aten::uniform_", "");
    Tensor self = iter.tensor(0);
    if (is_floating(self)) {
      const DType dtype = *group_dtype(self.scalar_type());
      from = rounded_to(from, dtype), to = rounded_to(to, dtype);
      const bool recorded =
          record_fill(here.counter, self, generator, Draw::uniform, dtype, computed_in(dtype), 0,
                      [&](Builder& b, View x) {
                        if (from == 0 && to == 1) return;
                        x = b.apply(Op::mul, {x, b.number(to - from)});
                        x = b.apply(Op::add, {x, b.number(from)});
                        b.apply(Op::minimum, {x, b.number(std::max(below(to, dtype), from))});
                      });
      if (recorded) return;
    }
    here.delegate(self, from, to, generator);
  }
};

// ---- numbers of other distributions ----

// Of float tensors: build(builder, drawn, number of the dtype with the least exponent) of draws in
// the dtype that is computed in.
template <class Build>
bool record_floats(Service& here, const Tensor& self, const Generator& generator, Draw draw,
                   Build&& build) {
  if (!is_floating(self)) return false;
  const DType compute = computed_in(*group_dtype(self.scalar_type()));
  return record_fill(here.counter, self, generator, draw, compute, compute, 0, build);
}

View scaled_and_moved(Builder& b, View x, double factor, double shift) {
  if (factor != 1) x = b.apply(Op::mul, {x, b.number(factor)});
  if (shift != 0) x = b.apply(Op::add, {x, b.number(shift)});
  return x;
}

template <class>
struct NormalKernel {
  void operator()(const Tensor& self, double mean, double std, const Generator& generator) {
    static Service here("aten::normal_", "");
    const auto build = [&](Builder& b, View z) { scaled_and_moved(b, z, std, mean); };
    if (!record_floats(here, self, generator, Draw::normal, build)) {
      here.delegate(self, mean, std, generator);
    }
  }
};

template <class>
struct LogNormalKernel {
  void operator()(TensorIteratorBase& iter, double mean, double std, const Generator& generator) {
    static Service here("aten::log_normal_", "");
    const auto build = [&](Builder& b, View z) {
      b.apply(Op::exp, {scaled_and_moved(b, z, std, mean)});
    };
    if (!record_floats(here, iter.tensor(0), generator, Draw::normal, build)) {
      here.delegate(iter.tensor(0), mean, std, generator);
    }
  }
};

// -log(1 - u) / lambda. Of the 2^24 or 2^53 values of u, 0 stands for all below the next: for it
// the middle of these is taken, and no zero, since the result divides.
template <class>
struct ExponentialKernel {
  void operator()(TensorIteratorBase& iter, double lambda, const Generator& generator) {
    static Service here("aten::exponential_", "");
    const Tensor& self = iter.tensor(0);
    const bool is_double = self.scalar_type() == at::kDouble;
    const double normal = is_double                         ? 0x1p-1022
                          : self.scalar_type() == at::kHalf ? 0x1p-24
                                                            : 0x1p-126;
    const double least = std::max(normal, (is_double ? 0x1p-54 : 0x1p-25) / lambda);
    const auto build = [&](Builder& b, View u) {
      const View log = b.apply(Op::log1p, {b.apply(Op::neg, {u})});
      b.apply(Op::maximum, {b.apply(Op::div, {log, b.number(-lambda)}), b.number(least)});
    };
    if (!record_floats(here, self, generator, Draw::uniform, build)) {
      here.delegate(self, lambda, generator);
    }
  }
};

// The least k of at least 1 with 1 - (1 - p)^k >= u.
template <class>
struct GeometricKernel {
  void operator()(TensorIteratorBase& iter, double p, const Generator& generator) {
    static Service here("aten::geometric_", "");
    const Tensor& self = iter.tensor(0);
    const auto dtype = foldable_dtype(self.scalar_type());
    const auto build = [&](Builder& b, View u) {
      const View log = b.apply(Op::log1p, {b.apply(Op::neg, {u})});
      const View trials = b.apply(Op::ceil, {b.apply(Op::div, {log, b.number(std::log1p(-p))})});
      b.apply(Op::maximum, {trials, b.number(1)});
    };
    if (!dtype || *dtype == DType::b8 ||
        !record_fill(here.counter, self, generator, Draw::uniform, computed_in(*dtype),
                     computed_in(*dtype), 0, build)) {
      here.delegate(self, p, generator);
    }
  }
};

// median + sigma tan(pi (u - 1/2)), by the distance w of u from the nearer end: the tangent is
// cos(pi w) / sin(pi w) with the sign of u - 1/2.
template <class>
struct CauchyKernel {
  void operator()(TensorIteratorBase& iter, double median, double sigma,
                  const Generator& generator) {
    static Service here("aten::cauchy_", "");
    const Tensor& self = iter.tensor(0);
    const auto build = [&](Builder& b, View u) {
      const double least = b.compute() == DType::f64 ? 0x1p-54 : 0x1p-25;
      const View v = b.apply(Op::sub, {u, b.number(0.5)});
      const View w = b.apply(Op::sub, {b.number(0.5), b.apply(Op::abs, {v})});
      const View angle =
          b.apply(Op::mul, {b.apply(Op::maximum, {w, b.number(least)}), b.number(M_PI)});
      const View tangent = b.apply(Op::div, {b.apply(Op::cos, {angle}), b.apply(Op::sin, {angle})});
      const View sign = b.apply(
          Op::where, {b.apply(Op::lt, {v, b.number(0)}), b.number(-sigma), b.number(sigma)});
      const View result = b.apply(Op::mul, {tangent, sign});
      if (median != 0) b.apply(Op::add, {result, b.number(median)});
    };
    if (!record_floats(here, self, generator, Draw::uniform, build)) {
      here.delegate(self, median, sigma, generator);
    }
  }
};

// ---- integers ----

// base + integers below `range`, of 2^64 where that is 0.
bool record_integers(OpCounter& counter, const Tensor& self, const Generator& generator,
                     uint64_t range, int64_t base) {
  const bool narrow = range != 0 && range <= kWordRange;
  return record_fill(counter, self, generator, narrow ? Draw::integer : Draw::long_integer,
                     DType::i64, DType::i64, range, [&](Builder& b, View x) {
                       if (base == 0) return;
                       b.apply(Op::add, {x, immediate(static_cast<uint64_t>(base), DType::i64)});
                     });
}

// Of random_() without bounds: all integers from 0 on that the dtype holds, with all before them.
std::optional<uint64_t> whole_range(at::ScalarType type) {
  switch (type) {
    case at::kBool: return 2;
    case at::kByte: return 1u << 8;
    case at::kChar: return 1u << 7;
    case at::kShort: return 1u << 15;
    case at::kInt: return uint64_t{1} << 31;
    case at::kLong: return uint64_t{1} << 63;
    case at::kHalf: return (1u << 11) + 1;
    case at::kBFloat16: return (1u << 8) + 1;
    case at::kFloat: return (1u << 24) + 1;
    case at::kDouble: return (uint64_t{1} << 53) + 1;
    default: return std::nullopt;
  }
}

template <class>
struct RandomKernel {
  void operator()(TensorIteratorBase& iter, const Generator& generator) {
    static Service here("aten::random_", "");
    const Tensor& self = iter.tensor(0);
    const auto range = whole_range(self.scalar_type());
    if (!range || !record_integers(here.counter, self, generator, *range, 0)) {
      here.delegate(self, generator);
    }
  }
};
template <class>
struct RandomFromToKernel {
  void operator()(TensorIteratorBase& iter, uint64_t range, int64_t base,
                  const Generator& generator) {
    static Service here("aten::random_", "from");
    const Tensor& self = iter.tensor(0);
    if (!record_integers(here.counter, self, generator, range, base)) {
      const auto to = static_cast<int64_t>(static_cast<uint64_t>(base) + range);
      here.delegate(self, base, std::optional<int64_t>(to), generator);
    }
  }
  // All integers of 64 bits.
  void operator()(TensorIteratorBase& iter, const Generator& generator) {
    static Service here("aten::random_", "from");
    const Tensor& self = iter.tensor(0);
    const auto type = self.scalar_type();
    const bool holds =
        type == at::kLong || type == at::kDouble || type == at::kFloat || type == at::kBFloat16;
    if (!holds || !record_integers(here.counter, self, generator, 0, 0)) {
      here.delegate(self, std::numeric_limits<int64_t>::min(), std::optional<int64_t>(), generator);
    }
  }
};

}  // namespace

// ---- numbers that have to be in range, and are seen when they are there ----

bool check_later(const Tensor& values, double least, double most, const char* message,
                 const char* operation) {
  const auto* impl = values.unsafeGetTensorImpl();
  const auto dtype = group_dtype(values.scalar_type());
  if (!dtype || !is_floating(values) || !is_plain_strided(impl) || operand_block(impl) == nullptr) {
    return false;
  }
  Window& window = current_window(values.device().index());
  auto words = std::make_shared<Tensor>(make_folded(window, values, {2}, at::kLong));
  const int64_t count = impl->numel();
  Builder b(compute_dtype(*dtype), count, {});
  View x = dense_view(block_of(values.storage().data_ptr()), impl, *dtype);
  const Sizes strides = byte_strides(impl, values.sizes());
  if (!impl->is_non_overlapping_and_dense()) {
    x.layout = Layout::strided;
    x.strides = strides.data();
    x = b.copy_strided(x, {values.sizes().data(), values.sizes().size()}, count);
  }
  // Not `x < least`: of NaN all comparisons are false.
  const View lower = b.fold(Op::minimum, x, {1, 1, count}, kRows);
  View fits = b.apply(Op::ge, {lower, b.number(least)});
  if (most != std::numeric_limits<double>::infinity()) {
    const View upper = b.fold(Op::maximum, x, {1, 1, count}, kRows);
    const View below = b.apply(Op::le, {upper, b.number(most)});
    fits = b.apply(Op::logical_and, {fits, below});
  }
  View word = contiguous_view(*words);
  for (int i = 0; i < 2; ++i) {
    b.apply(Op::logical_not, {fits});
    b.give(word, DType::i64);
    word.offset += sizeof(int64_t);
  }
  Block* const block = block_of(words->storage().data_ptr());
  Check check{block, std::move(words), message, operation, 1};
  check.is_whole = true;
  record_built(window, b, &check);
  return true;
}

namespace {

// ---- Bernoulli ----

template <class>
struct BernoulliKernel {
  void operator()(Tensor& self, double p, const Generator& generator) {
    static Service here("aten::bernoulli_", "float");
    const DType compute = self.scalar_type() == at::kDouble ? DType::f64 : DType::f32;
    const auto build = [&](Builder& b, View u) { b.apply(Op::lt, {u, b.number(p)}); };
    if (!record_fill(here.counter, self, generator, Draw::uniform, compute, compute, 0, build)) {
      here.delegate(self, p, generator);
    }
  }
};

template <class>
struct BernoulliTensorKernel {
  void operator()(Tensor& self, const Tensor& given, const Generator& generator) {
    static Service here("aten::bernoulli_", "Tensor");
    const Tensor p = given.to(self.device());
    const Tensor expanded = p.expand(self.sizes());
    const std::array<Argument, 1> in{Argument(expanded)};
    Prepared prepared;
    const OperandRules rules{.dtypes = kReal, .predicate = true, .widens = true};
    if (!is_floating(p) || !prepare(rules, in, &self, nullptr, prepared) ||
        !check_later(p, 0, 1, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.",
                     "bernoulli_")) {
      here.delegate(self, p, generator);
      return;
    }
    const DType compute = computed_in(prepared.dtype);
    const RandomState from =
        reserve(generator, self.device().index(), Draw::uniform, compute, prepared.space.count);
    Builder b(compute, prepared);
    b.apply(Op::lt, {b.draw(Draw::uniform, compute, from), prepared.in[0]});
    b.give(prepared.out, prepared.out.dtype);
    prepared.record(1, b.list(), b.temporaries());
    note_native(here.counter);
  }
};

// ---- dropout ----

// x * mask / (1 - p), as torch multiplies: what is infinite or NaN stays NaN where it is dropped.
View dropped(Builder& b, View x, View mask, double scale) {
  return b.apply(Op::mul, {b.apply(Op::mul, {x, mask}), b.number(scale)});
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  static Service here("aten::native_dropout", "");
  if (input.numel() == 0 || (train && !*train)) {
    note_native(here.counter);
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const std::array<Argument, 1> in{Argument(input)};
  Prepared prepared;
  Tensor output;
  const double keep = 1 - p, scale = keep == 0 ? 0 : 1 / keep;
  const OperandRules rules{.dtypes = kReal, .widens = true};
  if (!is_floating(input) || !prepare(rules, in, nullptr, &output, prepared)) {
    // By torch's composition, of a mask that the program draws.
    Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(keep);
    return {input.mul(mask).mul_(scale), mask};
  }
  Tensor mask = make_result(*prepared.window, input.sizes(), at::kBool, input.device().index());
  mask.unsafeGetTensorImpl()->set_sizes_and_strides(output.sizes(), output.strides());
  const DType compute = computed_in(prepared.dtype);
  // Of float32 for doubles too: probabilities are as exact.
  const RandomState from =
      reserve(std::nullopt, input.device().index(), Draw::uniform, compute, prepared.space.count);
  Builder b(compute, prepared);
  const View u = b.draw(Draw::uniform, compute, from);
  b.apply(Op::lt, {u, b.number(keep)});
  const View kept =
      dense_view(block_of(mask.storage().data_ptr()), mask.unsafeGetTensorImpl(), DType::b8);
  b.give(kept, DType::b8);
  dropped(b, prepared.in[0], kept, scale);
  b.give(prepared.out, prepared.dtype);
  prepared.record(1, b.list(), b.temporaries());
  note_native(here.counter);
  return {output, mask};
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  static Service here("aten::native_dropout_backward", "");
  const std::array<Argument, 2> in{Argument(grad), Argument(mask)};
  Prepared prepared;
  Tensor result;
  const OperandRules rules{.dtypes = kReal, .widens = true};
  if (!is_floating(grad) || mask.scalar_type() != at::kBool ||
      !prepare(rules, in, nullptr, &result, prepared)) {
    return here.delegate(grad, mask, scale);
  }
  Builder b(computed_in(prepared.dtype), prepared);
  dropped(b, prepared.in[0], prepared.in[1], scale);
  b.give(prepared.out, prepared.dtype);
  prepared.record(2, b.list(), b.temporaries());
  note_native(here.counter);
  return result;
}

// ---- normal numbers of tensors ----

void check_std(const Tensor& std) {
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  constexpr const char* kMessage = "normal expects all elements of std >= 0.0";
  if (std.numel() == 0 ||
      check_later(std, 0, std::numeric_limits<double>::infinity(), kMessage, "normal")) {
    return;
  }
  TORCH_CHECK(std.min().ge(0).item<bool>(), kMessage);
}

namespace from_torch = at::native::templates;

using None = void;  // of the templates' parameter, a class of generators

void check_same_device(const Tensor& out, const Tensor& like) {
  TORCH_CHECK(out.device() == like.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              like.device(), " and ", out.device(), "!");
}

Tensor& fill_normal(Tensor& out, at::IntArrayRef sizes, const Generator& generator) {
  at::native::resize_output(out, sizes);
  return from_torch::normal_impl_<NormalKernel, None>(out, 0, 1, generator);
}

Tensor& normal_by_tensors_out(const Tensor& mean, const Tensor& std, Generator generator,
                              Tensor& out) {
  check_same_device(out, mean);
  check_same_device(std, mean);
  check_std(std);
  const auto sizes = at::infer_size(mean.sizes(), std.sizes());
  return fill_normal(out, sizes, generator).mul_(std).add_(mean);
}
Tensor normal_by_tensors(const Tensor& mean, const Tensor& std, Generator generator) {
  check_same_device(std, mean);
  Tensor out = at::empty(at::infer_size(mean.sizes(), std.sizes()), mean.options());
  return normal_by_tensors_out(mean, std, std::move(generator), out);
}
Tensor& normal_by_std_out(double mean, const Tensor& std, Generator generator, Tensor& out) {
  check_same_device(out, std);
  check_std(std);
  return fill_normal(out, std.sizes(), generator).mul_(std).add_(mean);
}
Tensor normal_by_std(double mean, const Tensor& std, Generator generator) {
  Tensor out = at::empty_like(std, at::MemoryFormat::Contiguous);
  return normal_by_std_out(mean, std, std::move(generator), out);
}
Tensor& normal_by_mean_out(const Tensor& mean, double std, Generator generator, Tensor& out) {
  check_same_device(out, mean);
  return from_torch::normal_out_impl<NormalKernel, None>(out, mean, std, std::move(generator));
}
Tensor normal_by_mean(const Tensor& mean, double std, Generator generator) {
  return from_torch::normal_impl<NormalKernel, None>(mean, std, std::move(generator));
}

// ---- what torch calls ----

Tensor& uniform_(Tensor& self, double from, double to, Generator generator) {
  return from_torch::uniform_impl_<UniformKernel, None>(self, from, to, std::move(generator));
}
Tensor& normal_(Tensor& self, double mean, double std, Generator generator) {
  return from_torch::normal_impl_<NormalKernel, None>(self, mean, std, std::move(generator));
}
Tensor& log_normal_(Tensor& self, double mean, double std, Generator generator) {
  return from_torch::log_normal_impl_<LogNormalKernel, None>(self, mean, std, std::move(generator));
}
Tensor& exponential_(Tensor& self, double lambda, Generator generator) {
  return from_torch::exponential_impl_<ExponentialKernel, None>(self, lambda, std::move(generator));
}
Tensor& geometric_(Tensor& self, double p, Generator generator) {
  return from_torch::geometric_impl_<GeometricKernel, None>(self, p, std::move(generator));
}
Tensor& cauchy_(Tensor& self, double median, double sigma, Generator generator) {
  return from_torch::cauchy_impl_<CauchyKernel, None>(self, median, sigma, std::move(generator));
}
Tensor& random_(Tensor& self, Generator generator) {
  return from_torch::random_impl<RandomKernel, None>(self, std::move(generator));
}
Tensor& random_from(Tensor& self, int64_t from, std::optional<int64_t> to, Generator generator) {
  return from_torch::random_from_to_impl<RandomFromToKernel, None>(self, from, to,
                                                                   std::move(generator));
}
Tensor& random_to(Tensor& self, int64_t to, Generator generator) {
  return random_from(self, 0, to, std::move(generator));
}
Tensor& bernoulli_(Tensor& self, double p, Generator generator) {
  return from_torch::bernoulli_impl_<BernoulliKernel, None>(self, p, std::move(generator));
}
Tensor& bernoulli_by_tensor(Tensor& self, const Tensor& p, Generator generator) {
  return from_torch::bernoulli_impl_<BernoulliTensorKernel, None>(self, p, std::move(generator));
}
Tensor& bernoulli_out(const Tensor& p, Generator generator, Tensor& out) {
  check_same_device(out, p);
  return from_torch::bernoulli_out_impl<BernoulliTensorKernel, None>(out, p, std::move(generator));
}

}  // namespace

void register_random() {
  implement("uniform_", &uniform_);
  implement("normal_", &normal_);
  implement("normal.Tensor_Tensor", &normal_by_tensors);
  implement("normal.Tensor_Tensor_out", &normal_by_tensors_out);
  implement("normal.float_Tensor", &normal_by_std);
  implement("normal.float_Tensor_out", &normal_by_std_out);
  implement("normal.Tensor_float", &normal_by_mean);
  implement("normal.Tensor_float_out", &normal_by_mean_out);
  implement("log_normal_", &log_normal_);
  implement("exponential_", &exponential_);
  implement("geometric_", &geometric_);
  implement("cauchy_", &cauchy_);
  implement("random_", &random_);
  implement("random_.from", &random_from);
  implement("random_.to", &random_to);
  implement("bernoulli_.float", &bernoulli_);
  implement("bernoulli_.Tensor", &bernoulli_by_tensor);
  implement("bernoulli.out", &bernoulli_out);
  implement("native_dropout", &native_dropout);
  implement("native_dropout_backward", &native_dropout_backward);
}

}  // namespace hologram::aten
