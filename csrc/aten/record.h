// From ATen calls to recorded instructions: rows of the op table, fills and copies, which are one
// instruction each. Those that are several: aten/record_composite.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include "aten/operand.h"
#include "atlas/op_info.h"
#include "atlas/window.h"

namespace hologram::aten {

// Whether the operands are the ones the fast path knows: contiguous, of one size and dtype (or a
// number). Records the operation then.
bool record_plain(Op op, const at::Tensor& x, const at::Tensor* y, const at::Tensor* out,
                  at::Tensor* fresh);

// The same, or record_any().
bool record_row(Op op, const at::Tensor& x, const at::Tensor* y, const at::Tensor* out,
                at::Tensor* fresh);

// The same with type promotion, broadcasting and any strides. False, with nothing done, where
// torch's own kernel has to do it or to complain.
bool record_any(Op op, at::ArrayRef<Argument> in, const at::Tensor* out, at::Tensor* fresh);

// Views of tensors of one size, dtype and device that lie in memory the same way and fill it, in
// the order of memory. Returns the window that instructions on them belong to; null where recording
// has to leave them to torch's kernel.
Window* views_alike(at::ArrayRef<const at::Tensor*> tensors, View* views);

// The element of a tensor that has one, of one of the dtypes and of this window's device. False for
// others.
bool view_of_one(const at::Tensor& tensor, DTypeSet dtypes, const Window* window, View& view);

// out = value, out = src, converted.
bool record_fill(const at::Tensor& out, const at::Scalar& value);
bool record_copy(const at::Tensor& out, const at::Tensor& src);

}  // namespace hologram::aten
