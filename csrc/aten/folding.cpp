// How dimensions are put in order, and folded one after the other.
#include "aten/precompiled.h"

#include "aten/folding.h"

#include <algorithm>
#include <utility>

#include "aten/block.h"
#include "aten/memory_overlap.h"
#include "atlas/op_table.h"

namespace hologram::aten {

std::optional<DType> foldable_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Byte: return DType::u8;
    case c10::ScalarType::Char: return DType::i8;
    case c10::ScalarType::Short: return DType::i16;
    default: return group_dtype(type);
  }
}

bool is_real(c10::ScalarType type) {
  const auto dtype = group_dtype(type);
  return dtype && (kReal & dtype_bit(*dtype)) != 0;
}

std::optional<DimSet> dim_set(const at::Tensor& tensor, c10::OptionalArrayRef<int64_t> dims) {
  const int64_t rank = tensor.dim();
  if (rank > 64) return std::nullopt;
  const DimSet all = rank == 64 ? ~DimSet{0} : (DimSet{1} << rank) - 1;
  if (!dims.has_value() || dims->empty()) return all;
  DimSet set = 0;
  for (int64_t dim : *dims) {
    const int64_t bound = std::max<int64_t>(rank, 1);
    if (dim < -bound || dim >= bound) return std::nullopt;
    if (dim < 0) dim += bound;
    if ((set >> dim & 1) != 0) return std::nullopt;
    set |= DimSet{1} << dim;
  }
  return set & all;
}

Sizes folded_sizes(const at::Tensor& tensor, DimSet dims, bool keepdim) {
  Sizes sizes;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    const bool folded = (dims >> d & 1) != 0;
    if (folded && keepdim) sizes.push_back(1);
    if (!folded) sizes.push_back(tensor.size(d));
  }
  return sizes;
}

Folding::Factors Folding::joined(const Factors& factors) {
  Factors result;
  for (const Factor& factor : factors) {
    if (!result.empty() && result.back().folded == factor.folded) {
      result.back().size *= factor.size;
    } else {
      result.push_back(factor);
    }
  }
  return result;
}

std::optional<Folding> Folding::of(const at::Tensor& tensor, DimSet dims, bool logical) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto dtype = foldable_dtype(tensor.scalar_type());
  if (!dtype || !is_plain_strided(impl) || impl->numel() == 0) return std::nullopt;
  Block* const block = operand_block(impl);
  if (block == nullptr) return std::nullopt;
  Folding result;
  result.view_ = dense_view(block, impl, *dtype);
  const auto item = static_cast<int64_t>(tensor.itemsize());
  c10::SmallVector<int64_t, 6> order;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) != 1) order.push_back(d);
  }
  const auto fills = [&] {
    int64_t next = 1;
    for (size_t i = order.size(); i-- > 0;) {
      if (tensor.stride(order[i]) != next) return false;
      next *= tensor.size(order[i]);
    }
    return true;
  };
  if (!fills()) {
    const auto logical_order = order;
    if (!logical) {
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
    }
    if (logical || !fills()) {
      order = logical_order;
      result.copies_ = true;
      for (const int64_t d : order) {
        result.sizes_.push_back(tensor.size(d));
        result.strides_.push_back(tensor.stride(d) * item);
      }
      result.view_.layout = Layout::strided;
    }
  }
  // Strides of the kept dimensions in a contiguous result, in elements.
  c10::SmallVector<int64_t, 6> kept_stride(static_cast<size_t>(tensor.dim()), 0);
  int64_t next = 1;
  for (int64_t d = tensor.dim(); d-- > 0;) {
    if ((dims >> d & 1) != 0) continue;
    kept_stride[static_cast<size_t>(d)] = next;
    next *= tensor.size(d);
  }
  Factors factors;
  int64_t expected = next;
  for (const int64_t d : order) {
    const bool folded = (dims >> d & 1) != 0;
    factors.push_back({tensor.size(d), folded});
    result.count_ *= tensor.size(d);
    if (folded) continue;
    result.kept_ *= tensor.size(d);
    result.kept_sizes_.push_back(tensor.size(d));
    result.kept_strides_.push_back(kept_stride[static_cast<size_t>(d)]);
    expected /= tensor.size(d);
    result.in_order_ = result.in_order_ && kept_stride[static_cast<size_t>(d)] == expected;
  }
  result.factors_ = joined(factors);
  result.find_space();
  return result;
}

void Folding::find_space() {
  const size_t n = factors_.size();
  if (n == 0 || n > 3) return;
  const int64_t last = factors_[n - 1].size;
  if (n == 1) {
    // Of one element it is folded, too.
    dimensions_ = {1, 1, last};
    spread_ = factors_[0].folded ? kRows : kEach;
  } else if (n == 2) {
    dimensions_ = {1, factors_[0].size, last};
    spread_ = factors_[0].folded ? kColumns : kRows;
  } else {
    dimensions_ = {factors_[0].size, factors_[1].size, last};
    spread_ = factors_[0].folded ? kMiddle : kPlanesAndColumns;
  }
}

std::optional<View> Folding::position() const {
  size_t folded = 0;
  for (const Factor& factor : factors_) folded += factor.folded;
  if (folded != 1 || !has_space()) return std::nullopt;
  View view{nullptr, 0, view_.dtype, Layout::dense};
  view.spread = factors_.back().folded ? kColumns : kRows;
  return view;
}

View Folding::source(Builder& b) const {
  if (!copies_) return view_;
  View from = view_;
  from.strides = strides_.data();
  return b.copy_strided(from, sizes_, count_);
}

View Folding::fold(Builder& b, Op op, const View& value) const {
  if (kept_ == count_) {
    b.enter(b.compute(), kept_);
    return b.copy(value);
  }
  Factors left = factors_;
  View result = value;
  const auto product = [&](size_t begin, size_t end) {
    int64_t size = 1;
    for (size_t i = begin; i < end; ++i) size *= left[i].size;
    return size;
  };
  while (true) {
    size_t last = left.size();
    while (last > 0 && !left[last - 1].folded) --last;
    if (last-- == 0) break;
    const int64_t before = product(0, last), after = product(last + 1, left.size());
    const int64_t size = left[last].size;
    if (last + 1 == left.size()) {
      result = b.fold(op, result, {1, before, size}, kRows);
    } else {
      result =
          b.fold(op, result, {before, size, after}, before == 1 ? kColumns : kPlanesAndColumns);
    }
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(last));
    left = joined(left);
  }
  return result;
}

void Folding::give_kept(Builder& b, const View& value, const at::Tensor& out, DType dtype) const {
  View to = contiguous_view(out);
  if (in_order_) {
    b.give(to, dtype);
    return;
  }
  b.store_permuted(to, value, dtype, kept_sizes_, kept_strides_);
}

bool takes_result(const at::Tensor& out, c10::IntArrayRef sizes, c10::ScalarType type,
                  std::initializer_list<const at::Tensor*> read) {
  const auto* impl = out.unsafeGetTensorImpl();
  if (!is_plain_strided(impl) || out.scalar_type() != type || out.sizes() != sizes ||
      !impl->is_contiguous() || impl->numel() == 0 || operand_block(impl) == nullptr) {
    return false;
  }
  for (const at::Tensor* tensor : read) {
    if (tensor->device() != out.device()) return false;
    if (is_same_view(impl, tensor->unsafeGetTensorImpl())) continue;  // row by row
    if (overlap_status(impl, tensor->unsafeGetTensorImpl()) != at::MemOverlapStatus::No) {
      return false;
    }
  }
  return true;
}

View contiguous_view(const at::Tensor& tensor) {
  return dense_view(block_of(tensor.storage().data_ptr()), tensor.unsafeGetTensorImpl(),
                    *foldable_dtype(tensor.scalar_type()));
}

void record_built(Window& window, const Builder& builder, Check* check) {
  window.record(builder.list(), builder.temporaries(), check);
  for (const Operands& operands : builder.list()) {
    run_if_shared(window, {&operands.out, 1});
    run_if_shared(window, operands.in);
  }
}

}  // namespace hologram::aten
