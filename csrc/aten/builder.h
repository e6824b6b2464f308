// Puts together operations that are several instructions.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "aten/prepare.h"
#include "atlas/canonicalise.h"
#include "atlas/dtype.h"
#include "atlas/group.h"
#include "atlas/op_info.h"
#include "atlas/random.h"
#include "atlas/window.h"

namespace hologram::aten {

// The instructions of an operation. Values between them are computed in the operands' dtype, in
// float32 for half precision, as torch's kernels do.
class Builder {
 public:
  Builder(DType compute, int64_t count, std::span<const int64_t> sizes, Dimensions dimensions = {})
      : compute_(compute), count_(count), sizes_(sizes), dimensions_(dimensions) {}
  Builder(DType compute, const Prepared& prepared)
      : Builder(compute, prepared.space.count, prepared.sizes(), prepared.dimensions) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  View number(double value);
  View apply(Op op, std::span<const View> in);
  View apply(Op op, std::initializer_list<View> in) { return apply(op, {in.begin(), in.size()}); }

  bool integral() const { return compute_type_of(compute_) == ComputeType::i64; }

  // What follows is computed in another dtype, over another number of elements.
  void enter(DType compute, int64_t count, Dimensions dimensions = {}) {
    compute_ = compute;
    count_ = count;
    dimensions_ = dimensions;
  }
  DType compute() const { return compute_; }

  // Folds a value with an element for each of a space's into one of smaller spread. What follows is
  // computed for each of the result's elements.
  View fold(Op op, View value, Dimensions dimensions, Spread spread);
  // Scans a value with an element for each of a space's; axis as of NodeKind::scan.
  View scan(Op op, View value, Dimensions dimensions, Spread axis);
  // Numbers of a draw (atlas/random.h) that a generator has reserved, of the digits that `dtype`
  // has; of integers those below `range`.
  View draw(Draw draw, DType dtype, const RandomState& from, uint64_t range = 0);
  // A value that is computed anew, in the dtype of the builder.
  View copy(const View& value);
  // A dense copy of a strided view, of which the sizes stay until it is recorded.
  View copy_strided(const View& from, std::span<const int64_t> sizes, int64_t count);
  // Writes a value, rounded to `dtype`, to where dimensions lie with strides in elements, which
  // stay until it is recorded.
  void store_permuted(View out, const View& value, DType dtype, std::span<const int64_t> sizes,
                      std::span<const int64_t> strides);
  // A place for a value that instructions over another space read. store() writes it.
  View temporary(DType dtype);

  // Makes `out` the result of what was applied last, rounded to `dtype`.
  void give(const View& out, DType dtype);
  // Writes a value, rounded to the dtype of `out`; the value itself stays as it is.
  void store(const View& out, const View& value);
  // The same of a value that nobody needs as it was. Returns what to go on with: what was written,
  // if that is not rounded, so that the operation itself writes it.
  View put(const View& out, const View& value);

  std::span<const Operands> list() const { return {list_.data(), list_.size()}; }
  size_t temporaries() const { return temporaries_; }
  // After they have been recorded, for more of them.
  void clear() {
    list_.clear();
    temporaries_ = 0;
  }
  void reserve(size_t instructions) { list_.reserve(instructions); }

 private:
  DType compute_;
  int64_t count_;
  std::span<const int64_t> sizes_;
  Dimensions dimensions_;
  c10::SmallVector<Operands, 12> list_;
  uint16_t temporaries_ = 0;       // View::temporary of the last one
  std::vector<int64_t> permuted_;  // strides in bytes
};

}  // namespace hologram::aten
