// How sizes are broadcast, dimensions joined, and strides of a result chosen.
#include "aten/precompiled.h"

#include "aten/iteration.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <utility>

namespace hologram::aten {

bool broadcast(Sizes& sizes, c10::IntArrayRef other) {
  if (other == c10::IntArrayRef(sizes)) return true;
  for (size_t d = 1; d <= std::min(other.size(), sizes.size()); ++d) {
    const int64_t mine = sizes[sizes.size() - d];
    const int64_t theirs = other[other.size() - d];
    if (mine != theirs && mine != 1 && theirs != 1) return false;
  }
  const auto wider = at::infer_size_dimvector(sizes, other);
  sizes.assign(wider.begin(), wider.end());
  return true;
}

void order_by_result(IterationSpace& space, size_t operands) {
  const size_t rank = space.sizes.size();
  const auto outer = [&](size_t a, size_t b) { return space.strides[0][a] > space.strides[0][b]; };
  c10::SmallVector<size_t, 6> order;
  for (size_t d = 0; d < rank; ++d) {
    // One element is anywhere.
    if (space.sizes[d] != 1) order.push_back(d);
  }
  const bool in_order = std::is_sorted(order.begin(), order.end(), outer);
  if (in_order && order.size() == rank) return;
  if (!in_order) std::stable_sort(order.begin(), order.end(), outer);
  const auto apply = [&](Sizes& numbers) {
    Sizes moved;
    for (const size_t d : order) moved.push_back(numbers[d]);
    numbers = std::move(moved);
  };
  for (size_t i = 0; i < operands; ++i) apply(space.strides[i]);
  apply(space.sizes);
}

void coalesce(IterationSpace& space, size_t operands) {
  size_t last = 0;
  for (size_t d = 1; d < space.sizes.size(); ++d) {
    bool joins = space.sizes[d] == 1 || space.sizes[last] == 1;
    if (!joins) {
      joins = true;
      for (size_t i = 0; i < operands; ++i) {
        joins = joins && space.strides[i][last] == space.strides[i][d] * space.sizes[d];
      }
    }
    if (joins) {
      for (size_t i = 0; i < operands; ++i) {
        if (space.sizes[d] != 1) space.strides[i][last] = space.strides[i][d];
      }
      space.sizes[last] *= space.sizes[d];
    } else {
      ++last;
      space.sizes[last] = space.sizes[d];
      for (size_t i = 0; i < operands; ++i) space.strides[i][last] = space.strides[i][d];
    }
  }
  if (!space.sizes.empty()) {
    space.sizes.resize(last + 1);
    for (size_t i = 0; i < operands; ++i) space.strides[i].resize(last + 1);
  }
}

Sizes byte_strides(const c10::TensorImpl* tensor, c10::IntArrayRef sizes) {
  Sizes strides(sizes.size(), 0);
  const auto missing = sizes.size() - static_cast<size_t>(tensor->dim());
  for (size_t d = missing; d < sizes.size(); ++d) {
    const auto from = static_cast<int64_t>(d - missing);
    if (tensor->size(from) != 1) {  // or its stride is anything
      strides[d] = tensor->stride(from) * static_cast<int64_t>(tensor->itemsize());
    }
  }
  return strides;
}

Sizes result_strides(c10::ArrayRef<const c10::TensorImpl*> tensors, c10::ArrayRef<bool> converted,
                     c10::IntArrayRef sizes, bool with_number) {
  // The first one decides on every pair of dimensions where each has more than one element.
  if (!tensors.empty() && tensors[0] != nullptr && tensors[0]->sizes() == sizes &&
      tensors[0]->is_contiguous() && std::ranges::none_of(sizes, [](int64_t n) { return n < 2; })) {
    return {};
  }
  const auto rank = sizes.size();
  bool one_shape = !(with_number && rank != 0), contiguous = true, channels_last = true;
  bool alike = true;
  Sizes last;
  c10::SmallVector<Sizes, 4> steps;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* tensor = tensors[i];
    if (tensor == nullptr) continue;
    Sizes strides(tensor->strides().begin(), tensor->strides().end());
    if (tensor->is_non_overlapping_and_dense() || !converted[i]) {
      contiguous = contiguous && tensor->is_contiguous();
      channels_last = channels_last && tensor->is_contiguous(c10::MemoryFormat::ChannelsLast);
      alike = alike && tensor->is_non_overlapping_and_dense();
    } else {
      const auto dense = at::infer_dense_strides(tensor->sizes(), tensor->strides());
      strides.assign(dense.begin(), dense.end());
      contiguous = contiguous && is_dense(tensor->sizes(), strides, 1);
      channels_last = false;
    }
    one_shape = one_shape && tensor->sizes() == sizes;
    alike = alike && (steps.empty() || strides == last);
    last = strides;
    Sizes wide(rank, 0);  // 0 where the tensor is broadcast
    const auto missing = rank - strides.size();
    for (size_t d = missing; d < rank; ++d) {
      const auto size = tensor->size(static_cast<int64_t>(d - missing));
      if (size != 1 || sizes[d] == 1) wide[d] = strides[d - missing] * tensor->itemsize();
    }
    steps.push_back(std::move(wide));
  }
  if (one_shape) {
    if (contiguous) return {};
    if (channels_last) {
      const auto strides = c10::get_channels_last_strides_2d(sizes);
      return {strides.begin(), strides.end()};
    }
    if (alike) return last;
  }
  // Whether dimension a comes after b, counted from the fastest: 1; before: -1; 0: no opinion.
  const auto compare = [&](size_t a, size_t b) {
    for (const Sizes& strides : steps) {
      if (strides[a] == 0 || strides[b] == 0) continue;
      if (strides[a] != strides[b]) return strides[a] < strides[b] ? -1 : 1;
      if (sizes[a] > sizes[b]) return 1;
    }
    return 0;
  };
  c10::SmallVector<size_t, 6> order;  // of the dimensions, the fastest first
  for (size_t d = rank; d-- > 0;) order.push_back(d);
  for (size_t i = 1; i < rank; ++i) {
    for (size_t a = i, b = i; a-- > 0;) {
      const int comparison = compare(order[a], order[b]);
      if (comparison < 0) break;
      if (comparison == 0) continue;
      std::swap(order[a], order[b]);
      b = a;
    }
  }
  bool inverted = true;
  Sizes strides(rank, 1);
  int64_t next = 1;
  for (size_t i = 0; i < rank; ++i) {
    inverted = inverted && order[i] == rank - 1 - i;
    strides[order[i]] = next;
    next *= sizes[order[i]];
  }
  return inverted ? Sizes{} : strides;
}

}  // namespace hologram::aten
