// Recording of composites: operations made of rows of the op table.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "aten/builder.h"
#include "aten/operand.h"
#include "atlas/dtype.h"
#include "atlas/op_info.h"
#include "atlas/window.h"

namespace hologram::aten {

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

  bool is_predicate() const;
};

// A program that is longer than a window is recorded in parts: what one leaves for another has
// memory.
bool record_program(const CompositeProgram& program, at::ArrayRef<Argument> in, at::Tensor* fresh);

}  // namespace hologram::aten
