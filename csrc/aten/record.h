// From ATen calls to recorded instructions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <c10/util/SmallVector.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "aten/block.h"
#include "atlas/op_table.h"
#include "atlas/window.h"

namespace hologram::aten {

// An operand of a pointwise operation.
struct Argument {
  Argument(const at::Tensor& t) : tensor(&t) {}            // NOLINT: converts on purpose
  Argument(const at::Scalar& number) : scalar(&number) {}  // NOLINT
  const at::Tensor* tensor = nullptr;
  const at::Scalar* scalar = nullptr;
};

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

// Puts together an operation that is several instructions. Values between them are computed in the
// operands' dtype, in float32 for half precision, as torch's kernels do.
class Builder {
 public:
  Builder(DType compute, int64_t count, std::span<const int64_t> sizes)
      : compute_(compute), count_(count), sizes_(sizes) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  View number(double value);
  View apply(Op op, std::span<const View> in);
  View apply(Op op, std::initializer_list<View> in) { return apply(op, {in.begin(), in.size()}); }

  bool integral() const { return class_of(compute_) == ComputeClass::i64; }

  // What follows is computed in another dtype, over another number of elements.
  void enter(DType compute, int64_t count) {
    compute_ = compute;
    count_ = count;
  }
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
  c10::SmallVector<Operands, 12> list_;
  uint16_t temporaries_ = 0;  // View::temporary of the last one
};

// How torch's kernel of a composite treats its operands.
enum CompositeTraits : uint8_t {
  kPlain = 0,
  kParameter = 1,      // the last operand is a number that has no say in the dtype, and is not bool
  kOneDtype = 2,       // tensors of different dtypes are refused
  kNoBool = 4,         // bool operands are refused
  kRoundsNumbers = 8,  // numbers are rounded to half precision
  kRoundsEach = 16,    // values in between too
  kCpuNumbers = 32,    // 0-dim CPU tensors are taken as numbers; else torch sees to them
};

// Whether a number has a value in the dtype. What becomes of others, an infinity or an error, is
// the business of torch's kernels.
bool has_value(const at::Scalar& number, DType dtype);

// An operation made of rows of the op table: builds the result out of its operands.
struct Composite {
  DTypeSet dtypes;
  void (*build)(Builder&, const View* in);
  uint8_t traits = kPlain;
  // Of one that is an operator by itself: its ATen name, and its operands, each 't' for a tensor or
  // 's' for a number.
  const char* name = nullptr;
  const char* operands = "";
};

bool record_composite(const Composite& composite, at::ArrayRef<Argument> in, const at::Tensor* out,
                      at::Tensor* fresh);

// The same, of real numbers, with steps that are data. Values are numbered: the operands, the
// numbers, the result of each step; the last one is the result.
struct CompositeProgram {
  struct Step {
    Op op;
    std::array<uint32_t, 3> in;
  };
  size_t operands = 0;
  std::vector<double> numbers;
  std::vector<Step> steps;
  std::vector<uint32_t> conditions;  // operands that have to be bool

  bool is_predicate() const { return op_info(steps.back().op).has(kPredicate); }
};

// A program that is longer than a window is recorded in parts: what one leaves for another has
// memory.
bool record_program(const CompositeProgram& program, at::ArrayRef<Argument> in, at::Tensor* fresh);

// Runs what has just been recorded on the views where it touches memory that somebody else may look
// at, so that he sees it, and it what he writes. The kernels, and with them the bits, are the same
// in any case. Asked after recording, see Window::fence().
void run_if_shared(Window& window, std::span<const View> views);

// The dtype in which a composite computes operands of `dtype`.
DType compute_dtype(DType dtype);

// Views of tensors of one size, dtype and device that lie in memory the same way and fill it, in
// the order of memory. Returns the window that instructions on them belong to; null where recording
// has to leave them to torch's kernel.
Window* views_alike(at::ArrayRef<const at::Tensor*> tensors, View* views);

// out = value, out = src, converted.
bool record_fill(const at::Tensor& out, const at::Scalar& value);
bool record_copy(const at::Tensor& out, const at::Tensor& src);

// A plain hologram tensor: strided, without conj or neg bit.
bool is_plain_strided(const c10::TensorImpl* tensor);

}  // namespace hologram::aten
