// What all pointwise calls have in common: dtype, shape, result and views of the operands.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstddef>
#include <span>

#include "aten/iteration.h"
#include "aten/operand.h"
#include "atlas/dtype.h"
#include "atlas/window.h"

namespace hologram::aten {

// How an operation treats its operands.
struct OperandRules {
  DTypeSet dtypes;
  bool condition = false;        // the first operand is a bool of its own
  bool predicate = false;        // the result is bool
  bool promotes = false;         // integers are converted to the default dtype
  bool keeps_numbers = false;    // numbers are not rounded to half precision
  bool exact_out = false;        // the result is not converted to the dtype of `out`
  bool no_bool = false;          // bool operands are refused
  bool one_dtype = false;        // tensors of different dtypes are refused
  bool parameter = false;        // the last operand is a number that has no say in the dtype
  bool number_operands = false;  // numbers are operands like 0-dim tensors, in torch's eyes
  bool cpu_numbers = false;      // 0-dim CPU tensors are taken as numbers
  bool widens = false;           // half precision is computed in float32, operands unrounded
};

// A call that can be recorded.
struct Prepared {
  Window* window;
  DType dtype;
  IterationSpace space;
  Dimensions dimensions;  // where an operand has less than all of them
  View out;
  std::array<View, kMostArguments> in;

  std::span<const int64_t> sizes() const { return {space.sizes.data(), space.sizes.size()}; }

  void record(size_t operands, std::span<const Operands> list, size_t temporaries = 0) const {
    window->record(list, temporaries);
    run_if_shared(*window, {&out, 1});
    run_if_shared(*window, {in.data(), operands});
  }
};

// False, with nothing done, where torch's kernel has to do it. The result goes to `out`, or where
// that is null to a new tensor, `fresh`.
bool prepare(const OperandRules& rules, at::ArrayRef<Argument> in, const at::Tensor* out,
             at::Tensor* fresh, Prepared& prepared);

// A new tensor whose memory is written by an instruction first.
at::Tensor make_result(Window& window, c10::IntArrayRef sizes, c10::ScalarType type,
                       c10::DeviceIndex device);
// The same with strides, in a storage of so many bytes.
at::Tensor make_result(Window& window, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       caffe2::TypeMeta dtype, size_t nbytes, c10::DeviceIndex device);

}  // namespace hologram::aten
