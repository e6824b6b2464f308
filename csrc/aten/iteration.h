// The iteration space of a call, and the strides with which its operands and its result step
// through it.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "aten/operand.h"

namespace hologram::aten {

using Sizes = c10::SmallVector<int64_t, 6>;

// Of an operation on its way to the window.
struct IterationSpace {
  Sizes sizes;
  int64_t count = 1;
  std::array<Sizes, 1 + kMostArguments> strides;  // bytes, of the result and the operands
};

// Broadcasts the sizes of a space and of an operand against each other. False, with nothing done,
// where they do not match: that is torch's to complain about.
bool broadcast(Sizes& sizes, c10::IntArrayRef other);

// Puts the dimensions in the order in which the result lies in memory. `operands`: with the result.
void order_by_result(IterationSpace& space, size_t operands);

// Joins neighbouring dimensions that every operand steps through in one stride. `operands`: with
// the result.
void coalesce(IterationSpace& space, size_t operands);

// Of a tensor that is broadcast to `sizes`.
Sizes byte_strides(const c10::TensorImpl* tensor, c10::IntArrayRef sizes);

// The strides that torch gives the result of an operation over `sizes`, in elements; empty for a
// contiguous one. `converted` says of each operand whether torch makes a copy of another dtype
// first, `with_number` whether one operand is a number, which counts as a 0-dim tensor. As
// TensorIterator does it: the result runs through memory as the operands do, the first one that has
// an opinion on a pair of dimensions deciding.
Sizes result_strides(c10::ArrayRef<const c10::TensorImpl*> tensors, c10::ArrayRef<bool> converted,
                     c10::IntArrayRef sizes, bool with_number);

// Whether strides are those of contiguous elements of `item`, their unit, but in dimensions of
// size 1.
inline bool is_dense(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t item) {
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != item) return false;
    item *= sizes[d];
  }
  return true;
}

// Whether a contiguous tensor has the strides of a new one, also in dimensions of size 1, and what
// torch computes from it and a number has them, too: without elements, that may have others.
inline bool has_default_strides(const c10::TensorImpl* tensor) {
  if (tensor->numel() == 0) return false;
  int64_t next = 1;
  for (int64_t d = tensor->dim(); d-- > 0;) {
    if (tensor->stride(d) != next) return false;
    next *= tensor->size(d);
  }
  return true;
}

}  // namespace hologram::aten
