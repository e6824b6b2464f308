// Tensors as reductions see them: dimensions that are folded and such that are kept, in turns.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "aten/builder.h"
#include "aten/iteration.h"
#include "aten/operand.h"
#include "atlas/operands.h"

namespace hologram::aten {

// The dtypes that folds read: those of groups, and narrow integers.
std::optional<DType> foldable_dtype(c10::ScalarType type);
// Whether groups compute numbers of a type that has fractions.
bool is_real(c10::ScalarType type);

// A set of dimensions, one bit each.
using DimSet = uint64_t;
// None where torch has to complain. No dimension, or none given, stands for all.
std::optional<DimSet> dim_set(const at::Tensor& tensor, c10::OptionalArrayRef<int64_t> dims);

// The sizes of a result of which dimensions are gone, or 1.
Sizes folded_sizes(const at::Tensor& tensor, DimSet dims, bool keepdim);

// A tensor whose memory is filled, in the order of memory, or a copy of it.
class Folding {
 public:
  // Null where recording has to leave the tensor to torch's kernel. `logical`: in the order of the
  // dimensions, for results that have an element for each of the tensor's.
  static std::optional<Folding> of(const at::Tensor& tensor, DimSet dims, bool logical);

  // First of all: the operand, dense; of what does not fill its memory a copy is made.
  View source(Builder& b) const;

  // The fold over all folded dimensions of a value that has an element for each of the tensor's.
  View fold(Builder& b, Op op, const View& value) const;
  // Writes a value that has an element for each of the result's.
  void give_kept(Builder& b, const View& value, const at::Tensor& out, DType dtype) const;

  // What follows is computed for each element, or for each of the result's. Of elements only where
  // at most three factors are left.
  bool has_space() const { return factors_.size() <= 3; }
  void enter_elements(Builder& b, DType compute) const { b.enter(compute, count_, dimensions_); }
  void enter_kept(Builder& b, DType compute) const { b.enter(compute, kept_); }
  // A value of the result's beside elements.
  View beside_elements(View value) const {
    value.spread = spread_;
    return value;
  }

  // Of each element, which it is of those that are folded with it, as an operand beside elements;
  // none where they are not neighbours in the space.
  std::optional<View> position() const;

  int64_t count() const { return count_; }
  int64_t kept() const { return kept_; }             // elements of the result
  int64_t folded() const { return count_ / kept_; }  // elements of each of them

 private:
  struct Factor {
    int64_t size;
    bool folded;
  };
  using Factors = c10::SmallVector<Factor, 6>;
  static Factors joined(const Factors& factors);
  void find_space();

  View view_{};
  bool copies_ = false;
  Sizes sizes_, strides_;  // of what is copied; bytes
  Factors factors_;        // in the order of memory, neighbours of one kind joined
  Dimensions dimensions_;
  Spread spread_ = kEach;  // of what is kept, in these
  int64_t count_ = 1, kept_ = 1;
  Sizes kept_sizes_, kept_strides_;  // in the order of memory; where they lie in a result
  bool in_order_ = true;             // the result lies in memory as its elements are made
};

// A new tensor for a result.
inline at::Tensor make_folded(Window& window, const at::Tensor& like, c10::IntArrayRef sizes,
                              c10::ScalarType type) {
  return make_result(window, sizes, type, like.device().index());
}

// Whether a tensor that is given for a result can take it as it is: of its sizes, contiguous, and
// apart from what is read, or that itself.
bool takes_result(const at::Tensor& out, c10::IntArrayRef sizes, c10::ScalarType type,
                  std::initializer_list<const at::Tensor*> read);

View contiguous_view(const at::Tensor& tensor);

// Records what was built.
void record_built(Window& window, const Builder& builder, Check* check = nullptr);

}  // namespace hologram::aten
