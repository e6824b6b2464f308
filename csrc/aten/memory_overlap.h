// Whether the memory of a result may be that of an operand too.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace hologram::aten {

// Results may share memory with an operand of their size only exactly, in torch's eyes with the
// same strides, also those of dimensions of size 1.
inline bool overlaps(const c10::TensorImpl* out, const c10::TensorImpl* in) {
  const auto o = reinterpret_cast<uintptr_t>(out->data());
  const auto i = reinterpret_cast<uintptr_t>(in->data());
  if (o == i) return out != in && out->strides() != in->strides();
  const auto count = static_cast<size_t>(in->numel());
  return o < i + count * in->itemsize() && i < o + count * out->itemsize();
}

// Whether elements share memory, to be on the safe side: true also for some that do not.
inline bool overlaps_itself(const c10::TensorImpl* tensor) {
  if (tensor->is_non_overlapping_and_dense()) return false;
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> dims;  // stride, size
  for (int64_t d = 0; d < tensor->dim(); ++d) {
    if (tensor->size(d) != 1) dims.emplace_back(tensor->stride(d), tensor->size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return true;
    extent += (size - 1) * stride;
  }
  return false;
}

// at::get_overlap_status, which sees no overlap between two storages over the same bytes. Of such
// tensors only those that lie apart are told apart; the rest is torch's to judge.
inline at::MemOverlapStatus overlap_status(const c10::TensorImpl* out, const c10::TensorImpl* in) {
  if (out->unsafe_storage().is_alias_of(in->unsafe_storage())) {
    return at::get_overlap_status(out, in);
  }
  const auto end = [](const c10::TensorImpl* tensor) {
    int64_t last = 0;
    for (int64_t d = 0; d < tensor->dim(); ++d) last += (tensor->size(d) - 1) * tensor->stride(d);
    return static_cast<const char*>(tensor->data()) +
           static_cast<size_t>(last + 1) * tensor->itemsize();
  };
  const bool apart = end(in) <= out->data() || end(out) <= in->data();
  return apart ? at::MemOverlapStatus::No : at::MemOverlapStatus::TooHard;
}

// Whether two tensors are the same elements in the same order.
inline bool is_same_view(const c10::TensorImpl* a, const c10::TensorImpl* b) {
  return a == b || (a->data() == b->data() && a->dtype() == b->dtype() &&
                    a->sizes() == b->sizes() && a->strides() == b->strides());
}

// Whether an operation may write one tensor while it reads the other, of any sizes.
inline bool may_write(const c10::TensorImpl* out, const c10::TensorImpl* in) {
  if (is_same_view(out, in)) return true;
  const auto status = overlap_status(out, in);
  if (status != at::MemOverlapStatus::No && status != at::MemOverlapStatus::Full) return false;
  // Element for element only where the dtypes are equal too.
  return status == at::MemOverlapStatus::No || in->dtype() == out->dtype();
}

}  // namespace hologram::aten
