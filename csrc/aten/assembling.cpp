// Tensors that are put together of others, and assignments under a mask, as recordings. What
// recording declines goes to torch's kernel.
#include "aten/precompiled.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/cat_ops.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <array>

#include "aten/builder.h"
#include "aten/folding.h"
#include "aten/memory_overlap.h"
#include "aten/operand.h"
#include "aten/prepare.h"
#include "aten/quick.h"
#include "aten/record.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using OptionalTensors = c10::List<std::optional<Tensor>>;

// Whether two tensors can follow each other in memory: alike but for the size of one dimension.
bool fit_together(const Tensor& a, const Tensor& b, int64_t dim) {
  if (a.dim() != b.dim() || a.scalar_type() != b.scalar_type() || a.device() != b.device()) {
    return false;
  }
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (d != dim && a.size(d) != b.size(d)) return false;
  }
  return true;
}

// A copy of each tensor to its place, where they follow each other in memory.
bool record_cat(const at::ITensorListRef& tensors, int64_t dim, Tensor* fresh) {
  if (tensors.size() == 0) {
    return false;
  }
  const Tensor& first = *tensors.begin();
  const auto dtype = first.defined() ? group_dtype(first.scalar_type()) : std::nullopt;
  if (!dtype || dim < -first.dim() || dim >= first.dim()) {
    return false;
  }
  if (dim < 0) dim += first.dim();
  for (int64_t d = 0; d < dim; ++d) {
    if (first.size(d) != 1) return false;
  }
  c10::SmallVector<View, 16> views;
  Sizes sizes(first.sizes().begin(), first.sizes().end());
  sizes[static_cast<size_t>(dim)] = 0;
  for (const Tensor& tensor : tensors) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || !is_plain_strided(impl) || !impl->is_contiguous() ||
        impl->numel() == 0 || !fit_together(first, tensor, dim)) {
      return false;
    }
    Block* const block = operand_block(impl);
    if (block == nullptr) {
      return false;
    }
    views.push_back(dense_view(block, impl, *dtype));
    sizes[static_cast<size_t>(dim)] += tensor.size(dim);
  }
  // In the format of the operands, if that is one.
  if (first.suggest_memory_format() != c10::MemoryFormat::Contiguous) {
    return false;
  }
  Window& window = current_window(first.device().index());
  *fresh = make_result(window, sizes, first.scalar_type(), first.device().index());
  View place = contiguous_view(*fresh);
  size_t i = 0;
  for (const Tensor& tensor : tensors) {
    window.record({kCopy, *dtype, 1, tensor.numel(), {}, place, {views[i++], {}, {}}});
    place.offset += tensor.numel() * static_cast<int64_t>(tensor.itemsize());
  }
  run_if_shared(window, views);
  return true;
}

Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim) {
  static auto& torchs = quick_kernel<at::_ops::cat>();
  Tensor fresh;
  if (!record_cat(tensors, dim, &fresh)) {
    return torchs(keys, tensors, dim);
  }
  note_native(torchs.op().counter());
  return fresh;
}

// x[mask] = number. The number is a tensor with one element.
bool record_masked(const Tensor& self, const OptionalTensors& indices, const Tensor& number,
                   bool accumulate) {
  if (accumulate || indices.size() != 1) {
    return false;
  }
  const std::optional<Tensor> mask = indices.get(0);
  if (!mask || !mask->defined() || mask->scalar_type() != at::kBool ||
      mask->sizes() != self.sizes() || number.numel() != 1 || number.dim() > 1 ||
      number.scalar_type() != self.scalar_type()) {
    return false;
  }
  // torch refuses a number that is an element of the tensor.
  if (number.has_storage() && self.has_storage() && number.is_alias_of(self)) {
    return false;
  }
  const std::array<Argument, 3> arguments{Argument(*mask), Argument(number), Argument(self)};
  return record_any(Op::where, arguments, &self, nullptr);
}

Tensor& index_put(c10::DispatchKeySet keys, Tensor& self, const OptionalTensors& indices,
                  const Tensor& values, bool accumulate, bool unsafe) {
  static auto& torchs = quick_kernel<at::_ops::_index_put_impl_>();
  if (!record_masked(self, indices, values, accumulate)) {
    return torchs(keys, self, indices, values, accumulate, unsafe);
  }
  note_native(torchs.op().counter());
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cat", &cat);
  m.impl("_index_put_impl_", &index_put);
}

}  // namespace hologram::aten
