// Rows of the op table, fills and copies, each as one instruction.
#include "aten/precompiled.h"

#include "aten/record.h"

#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "aten/block.h"
#include "aten/builder.h"
#include "aten/iteration.h"
#include "aten/memory_overlap.h"
#include "aten/numbers.h"
#include "aten/operand.h"
#include "aten/prepare.h"
#include "atlas/device.h"
#include "atlas/op_info.h"
#include "atlas/program.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// Operations whose result has to have the dtype of `out`; the others convert it.
bool wants_exact_out(Op op) {
  const OpInfo& info = op_info(op);
  return info.has(kCondition) ||
         (info.arity == 1 && info.integers == Integers::keep && !info.has(kPredicate));
}

// The number in `b`, beside `a`; none where record_any() is to look at it.
std::optional<View> plain_number(Op op, const c10::TensorImpl* a, const c10::TensorImpl* b,
                                 DType dtype) {
  const OpInfo& info = op_info(op);
  const bool kept = info.numbers == Numbers::kept;
  const bool promoted = info.integers == Integers::promote && (kReal & dtype_bit(dtype)) == 0;
  if (a->dim() == 0 || promoted || (kept && is_half(dtype))) {
    return std::nullopt;
  }
  return number_beside(number_of(b), dtype, kept);
}

}  // namespace

bool record_plain(Op op, const Tensor& x, const Tensor* y, const Tensor* out, Tensor* fresh) {
  const auto* a = x.unsafeGetTensorImpl();
  const auto dtype = group_dtype(x.scalar_type());
  if (!dtype || !is_plain_strided(a) || !a->is_contiguous() ||
      !op_info(op).supports_in_group(*dtype) || op_info(op).has(kPredicate)) {
    return false;
  }
  Block* const block = operand_block(a);
  if (block == nullptr) {
    return false;
  }
  const auto side_by_side = [&](const c10::TensorImpl* b) {
    return is_plain_strided(b) && b->is_contiguous() && b->dtype() == a->dtype() &&
           b->sizes() == a->sizes() && b->device() == a->device();
  };
  Operands operands{static_cast<Code>(op), *dtype, 1, a->numel(), {}, {}, {}};
  operands.in[0] = dense_view(block, a, *dtype);
  if (y != nullptr) {
    operands.arity = 2;
    const auto* b = y->unsafeGetTensorImpl();
    if (is_cpu_number(b)) {
      const auto number = plain_number(op, a, b, *dtype);
      if (!number || (out == nullptr && !has_default_strides(a))) {
        return false;
      }
      operands.in[1] = *number;
    } else {
      Block* const other = side_by_side(b) ? operand_block(b) : nullptr;
      if (other == nullptr || (out != nullptr && overlaps(out->unsafeGetTensorImpl(), b))) {
        return false;
      }
      operands.in[1] = dense_view(other, b, *dtype);
    }
  }
  Window& window = current_window(a->device().index());
  if (out == nullptr) {
    *fresh = make_result(window, a->sizes(), x.scalar_type(), a->device().index());
    out = fresh;
  } else {
    const auto* o = out->unsafeGetTensorImpl();
    if (!side_by_side(o) || overlaps(o, a) || operand_block(o) == nullptr) {
      return false;
    }
  }
  const auto* o = out->unsafeGetTensorImpl();
  if (operands.count == 0) {
    return true;  // of views without elements: there is nothing to compute
  }
  operands.out = dense_view(block_of(o->storage().data_ptr()), o, *dtype);
  window.record(operands);
  run_if_shared(window, {&operands.out, 1});
  run_if_shared(window, {operands.in.data(), static_cast<size_t>(operands.arity)});
  return true;
}

bool record_any(Op op, at::ArrayRef<Argument> in, const Tensor* out, Tensor* fresh) {
  const OpInfo& info = op_info(op);
  const OperandRules rules{.dtypes = info.dtypes,
                           .condition = info.has(kCondition),
                           .predicate = info.has(kPredicate),
                           .promotes = info.integers == Integers::promote,
                           .keeps_numbers = info.numbers == Numbers::kept,
                           .exact_out = wants_exact_out(op),
                           .no_bool = info.integers == Integers::but_no_bool,
                           .number_operands = info.numbers != Numbers::parameter,
                           .cpu_numbers = true};
  Prepared prepared;
  if (!prepare(rules, in, out, fresh, prepared)) {
    return false;
  }
  // Nor is a second operand without dimensions rounded to half precision, where numbers are not.
  if (is_half(prepared.dtype) && info.numbers == Numbers::kept && in[1].tensor != nullptr &&
      in[1].tensor->dim() == 0 && group_dtype(in[1].tensor->scalar_type()) != prepared.dtype) {
    if (prepared.out.dtype != prepared.dtype) {
      // The result is rounded to half precision nevertheless.
      Builder builder(DType::f32, prepared);
      builder.apply(op, {prepared.in[0], prepared.in[1]});
      builder.give(prepared.out, prepared.dtype);
      prepared.record(in.size(), builder.list(), builder.temporaries());
      return true;
    }
    prepared.dtype = DType::f32;
  }
  Operands operands{static_cast<Code>(op),
                    prepared.dtype,
                    static_cast<int>(in.size()),
                    prepared.space.count,
                    prepared.sizes(),
                    prepared.out,
                    {},
                    prepared.dimensions};
  std::copy_n(prepared.in.begin(), in.size(), operands.in.begin());
  prepared.record(in.size(), {&operands, 1});
  return true;
}

bool record_row(Op op, const Tensor& x, const Tensor* y, const Tensor* out, Tensor* fresh) {
  if (record_plain(op, x, y, out, fresh)) {
    return true;
  }
  const std::array<Argument, 2> arguments{Argument(x), Argument(y != nullptr ? *y : x)};
  return record_any(op, {arguments.data(), y != nullptr ? size_t{2} : size_t{1}}, out, fresh);
}

Window* views_alike(at::ArrayRef<const Tensor*> tensors, View* views) {
  const auto* first = tensors.front()->unsafeGetTensorImpl();
  const auto dtype = group_dtype(tensors.front()->scalar_type());
  if (!dtype || first->numel() == 0) {
    return nullptr;
  }
  for (const auto* tensor : tensors) {
    const auto* impl = tensor->unsafeGetTensorImpl();
    if (!is_plain_strided(impl) || impl->device() != first->device() ||
        impl->dtype() != first->dtype() || !same_and_dense(impl, first)) {
      return nullptr;
    }
    Block* const block = operand_block(impl);
    if (block == nullptr) {
      return nullptr;
    }
    *views++ = dense_view(block, impl, *dtype);
  }
  return &current_window(first->device().index());
}

bool view_of_one(const Tensor& tensor, DTypeSet dtypes, const Window* window, View& view) {
  if (!tensor.defined() || tensor.numel() != 1) {
    return false;
  }
  const Tensor* const one[] = {&tensor};
  return views_alike(one, &view) == window && (dtype_bit(view.dtype) & dtypes) != 0;
}

bool record_fill(const Tensor& out, const at::Scalar& value) {
  const auto* o = out.unsafeGetTensorImpl();
  const auto dtype = group_dtype(out.scalar_type());
  if (!dtype || !is_plain_strided(o) || !o->is_non_overlapping_and_dense() || o->numel() == 0 ||
      !has_value(value, *dtype) || operand_block(o) == nullptr) {
    return false;
  }
  const Operands operands{kCopy,
                          *dtype,
                          1,
                          o->numel(),
                          {},
                          dense_view(block_of(o->storage().data_ptr()), o, *dtype),
                          {immediate(immediate_bits(value, *dtype, false), *dtype), {}, {}}};
  Window& window = current_window(o->device().index());
  window.record(operands);
  run_if_shared(window, {&operands.out, 1});
  return true;
}

bool record_copy(const Tensor& out, const Tensor& src) {
  const auto* o = out.unsafeGetTensorImpl();
  const auto* s = src.unsafeGetTensorImpl();
  const auto to = group_dtype(out.scalar_type()), from = group_dtype(src.scalar_type());
  if (!to || !from || !is_plain_strided(o) || !is_plain_strided(s) || o->device() != s->device() ||
      !same_and_dense(s, o) || o->numel() == 0 || overlaps(o, s) ||
      (o->data() == s->data() && *to != *from)) {
    return false;
  }
  Block* const written = operand_block(o);
  Block* const read = operand_block(s);
  if (written == nullptr || read == nullptr) {
    return false;
  }
  // The compute type of the source computes, and the store converts: as Tensor.to does.
  const Operands operands{kCopy,
                          *from == DType::b8 ? *to : *from,
                          1,
                          o->numel(),
                          {},
                          dense_view(written, o, *to),
                          {dense_view(read, s, *from), {}, {}}};
  Window& window = current_window(o->device().index());
  window.record(operands);
  run_if_shared(window, {&operands.out, 1});
  run_if_shared(window, {operands.in.data(), 1});
  return true;
}

}  // namespace hologram::aten
