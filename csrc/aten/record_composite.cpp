// Operations that are several instructions: how they are put together (aten/builder.h), and
// recorded.
#include "aten/precompiled.h"

#include "aten/record_composite.h"

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "aten/block.h"
#include "aten/builder.h"
#include "aten/numbers.h"
#include "aten/operand.h"
#include "aten/prepare.h"
#include "atlas/op_info.h"
#include "atlas/program.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// So many steps are recorded at once: an instruction each, and one for the conversion of the
// result.
constexpr size_t kMostSteps = Window::kMostInstructions - 1;

// Of each step, the last one that uses its value.
std::vector<size_t> last_uses(const CompositeProgram& program) {
  const size_t first = program.operands + program.numbers.size();
  std::vector<size_t> last(program.steps.size(), 0);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const auto& [op, in] = program.steps[i];
    for (size_t k = 0; k < static_cast<size_t>(op_info(op).arity); ++k) {
      if (in[k] >= first) last[in[k] - first] = i;
    }
  }
  return last;
}

}  // namespace

View Builder::number(double value) {
  return immediate(immediate_bits(at::Scalar(value), compute_, true), compute_);
}

View Builder::temporary(DType dtype) {
  return {nullptr, 0, dtype, Layout::dense, ++temporaries_};
}

View Builder::apply(Op op, std::span<const View> in) {
  const auto& info = op_info(op);
  const DType dtype = info.has(kPredicate) ? DType::b8 : compute_;
  // Logical operations are of truth values only.
  const DType compute = info.is_logical() ? DType::b8 : compute_;
  const View result = temporary(dtype);
  // Written where it stays: it is four views long, and most instructions are recorded this way.
  Operands& operands = list_.emplace_back();
  operands.code = static_cast<Code>(op);
  operands.dtype = compute;
  operands.arity = static_cast<int>(in.size());
  operands.count = count_;
  operands.sizes = sizes_;
  operands.out = result;
  std::copy(in.begin(), in.end(), operands.in.begin());
  operands.dimensions = dimensions_;
  return result;
}

View Builder::fold(Op op, View value, Dimensions dimensions, Spread spread) {
  enter(compute_, dimensions.planes * dimensions.rows * dimensions.columns, dimensions);
  View result = temporary(compute_);
  result.spread = spread;
  value.spread = kEach;
  list_.push_back({fold_of(op), compute_, 1, count_, {}, result, {value, {}, {}}, dimensions_});
  enter(compute_, spread_count(spread, dimensions));
  result.spread = kEach;
  return result;
}

View Builder::scan(Op op, View value, Dimensions dimensions, Spread axis) {
  enter(compute_, dimensions.planes * dimensions.rows * dimensions.columns, dimensions);
  const View result = temporary(compute_);
  value.spread = kEach;
  list_.push_back(
      {scan_of(op, axis), compute_, 1, count_, {}, result, {value, {}, {}}, dimensions_});
  return result;
}

View Builder::draw(Draw draw, DType dtype, const RandomState& from, uint64_t range) {
  const View result = temporary(dtype);
  list_.push_back({code_of(draw),
                   dtype,
                   kDrawImmediates,
                   count_,
                   sizes_,
                   result,
                   {immediate(from.seed, DType::i64), immediate(from.offset, DType::i64),
                    immediate(range, DType::i64)},
                   dimensions_});
  return result;
}

View Builder::copy(const View& value) {
  const View result = temporary(compute_);
  list_.push_back({kCopy, compute_, 1, count_, {}, result, {value, {}, {}}, dimensions_});
  return result;
}

View Builder::copy_strided(const View& from, std::span<const int64_t> sizes, int64_t count) {
  const View result = temporary(from.dtype);
  list_.push_back({kCopy, from.dtype, 1, count, sizes, result, {from, {}, {}}});
  return result;
}

void Builder::store_permuted(View out, const View& value, DType dtype,
                             std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  if (dtype != compute_) list_.back().out.dtype = dtype;
  View from = value;
  from.dtype = list_.back().out.dtype;
  permuted_.assign(strides.begin(), strides.end());
  for (int64_t& stride : permuted_) stride *= static_cast<int64_t>(dtype_size(out.dtype));
  out.layout = Layout::strided;
  out.strides = permuted_.data();
  list_.push_back({kCopy, dtype, 1, count_, sizes, out, {from, {}, {}}});
}

void Builder::give(const View& out, DType dtype) {
  if (dtype != compute_ && dtype != out.dtype) {
    // `out` is wider than the result, which is rounded nevertheless.
    list_.back().out.dtype = dtype;
    const View result = list_.back().out;
    list_.push_back({kCopy, compute_, 1, count_, sizes_, out, {result, {}, {}}, dimensions_});
    return;
  }
  // The last operation writes the result itself, a fold as many elements as it leaves.
  const Spread spread = list_.back().out.spread;
  list_.back().out = out;
  list_.back().out.spread = spread;
  --temporaries_;
}

void Builder::store(const View& out, const View& value) {
  list_.push_back({kCopy, compute_, 1, count_, sizes_, out, {value, {}, {}}, dimensions_});
}

View Builder::put(const View& out, const View& value) {
  const bool is_last = temporaries_ != 0 && temporaries_ == value.temporary &&
                       list_.back().out.temporary == value.temporary;
  if (!is_last || out.dtype != compute_) {
    store(out, value);
    return value;
  }
  give(out, compute_);
  return out;
}

bool record_composite(const Composite& composite, at::ArrayRef<Argument> in, const Tensor* out,
                      Tensor* fresh) {
  // A fraction in an operation on integers is torch's to refuse, or to promote.
  const auto is_floating = [](const Argument& argument) {
    return argument.tensor != nullptr ? argument.tensor->is_floating_point()
                                      : argument.scalar->isFloatingPoint();
  };
  if (!is_floating(in.front()) && std::any_of(in.begin(), in.end(), is_floating)) {
    return false;
  }
  Prepared prepared;
  const auto has = [&](CompositeTraits trait) { return (composite.traits & trait) != 0; };
  const OperandRules rules{.dtypes = composite.dtypes,
                           .keeps_numbers = !has(kRoundsEach) && !has(kRoundsNumbers),
                           .no_bool = has(kNoBool),
                           .one_dtype = has(kOneDtype),
                           .parameter = has(kParameter),
                           .cpu_numbers = has(kCpuNumbers),
                           .widens = !has(kRoundsEach)};
  if (!prepare(rules, in, out, fresh, prepared)) {
    return false;
  }
  Builder builder(has(kRoundsEach) ? prepared.dtype : compute_dtype(prepared.dtype), prepared);
  composite.build(builder, prepared.in.data());
  builder.give(prepared.out, prepared.dtype);
  prepared.record(in.size(), builder.list(), builder.temporaries());
  return true;
}

bool CompositeProgram::is_predicate() const {
  return op_info(steps.back().op).has(kPredicate);
}

bool record_program(const CompositeProgram& program, at::ArrayRef<Argument> in, Tensor* fresh) {
  if (in.size() > kMostArguments) {
    return false;
  }
  for (const uint32_t i : program.conditions) {
    if (in[i].tensor->scalar_type() != c10::ScalarType::Bool || in[i].tensor->is_cpu()) {
      return false;
    }
  }
  Prepared prepared;
  const OperandRules rules{.dtypes = kReal,
                           .predicate = program.is_predicate(),
                           .keeps_numbers = true,
                           .cpu_numbers = true,
                           .widens = true};
  if (!prepare(rules, in, nullptr, fresh, prepared)) {
    return false;
  }
  const DType compute = compute_dtype(prepared.dtype);
  const size_t steps = program.steps.size();
  std::vector<size_t> uses;
  if (steps > kMostSteps) uses = last_uses(program);
  std::vector<Tensor> kept(uses.size());  // by step: values that later parts use
  c10::SmallVector<View, 24> values(prepared.in.begin(), prepared.in.begin() + in.size());
  for (size_t begin = 0; begin < steps; begin += kMostSteps) {
    const size_t end = std::min(begin + kMostSteps, steps);
    // First, because there may be no memory.
    for (size_t i = begin; end < steps && i < end; ++i) {
      if (uses[i] < end) continue;
      const bool truth = op_info(program.steps[i].op).has(kPredicate);
      kept[i] = make_result(*prepared.window, prepared.space.count,
                            truth                   ? c10::ScalarType::Bool
                            : compute == DType::f64 ? c10::ScalarType::Double
                                                    : c10::ScalarType::Float,
                            fresh->device().index());
    }
    Builder builder(compute, prepared);
    for (size_t i = 0; begin == 0 && i < program.numbers.size(); ++i) {
      values.push_back(builder.number(program.numbers[i]));
    }
    for (size_t i = begin; i < end; ++i) {
      const auto& step = program.steps[i];
      std::array<View, 3> operands;
      const auto arity = static_cast<size_t>(op_info(step.op).arity);
      for (size_t k = 0; k < arity; ++k) operands[k] = values[step.in[k]];
      View value = builder.apply(step.op, {operands.data(), arity});
      if (!kept.empty() && kept[i].defined()) {
        value = dense_view(block_of(kept[i].storage().data_ptr()), kept[i].unsafeGetTensorImpl(),
                           value.dtype);
        builder.give(value, value.dtype);
      }
      values.push_back(value);
    }
    if (end == steps) builder.give(prepared.out, prepared.out.dtype);
    prepared.record(in.size(), builder.list(), builder.temporaries());
  }
  return true;
}

}  // namespace hologram::aten
