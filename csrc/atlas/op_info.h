// What the columns of the op table say about an operation. Of the rows themselves, and of their
// numbers, only those know who include atlas/op_table.h: a new row recompiles no others.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "atlas/dtype.h"
#include "atlas/export.h"

namespace hologram {

// The number of a row. The enumerators are in atlas/op_table.h.
enum class Op : uint16_t;

// Algebraic facts, each exact in bits (NaN payloads excepted) for every dtype of the row.
enum OpFlags : uint16_t {
  kNone = 0,
  kCommutative = 1,  // f(x, y) = f(y, x)
  kIdempotent = 2,   // f(f(x)) = f(x); binary: f(x, x) = x
  kInvolution = 4,   // f(f(x)) = x
  kPredicate = 8,    // the result is b8: T(1) or T(0) in the compute type of the operands
  kCondition = 16,   // the first operand is b8, T(1) or T(0) in that of the others
  kQuotient = 32,    // x / y, rounded
  kForBf16 = 64,     // csrc/gpu/dialect/functions.h has a form for numbers that bf16 has
  kForPairs = 128,   // csrc/gpu/dialect/pairs.h has one for two of these at a time
  kAnyOrder = 256,   // folds have the same bits in any order but where they are 0 or NaN:
                     // functions.h has a form without an order
  kEpilogue = 512,   // libraries of products have it as an epilogue (Product::Function)
};

// Dtypes a group computes in f32, rounding each result; and all that order has a meaning for.
inline constexpr DTypeSet kHalves = dtype_bit(DType::bf16) | dtype_bit(DType::f16);
inline constexpr DTypeSet kReal = kFloating | kHalves;
inline constexpr DTypeSet kOrdered = kReal | kIntegral | dtype_bit(DType::b8) |
                                     dtype_bit(DType::u8) | dtype_bit(DType::i8) |
                                     dtype_bit(DType::i16);
inline constexpr DTypeSet kTruth = dtype_bit(DType::b8);

// What becomes of integers and truth values.
enum class Integers : uint8_t {
  keep,  // computed as such if among the dtypes; else torch's kernel computes or refuses them
  but_no_bool,  // the same, and truth values are refused
  promote,  // computed in torch's default dtype, as torch's kernel does (sqrt of int64 is float32)
};

// What becomes of a number among the operands.
enum class Numbers : uint8_t {
  rounded,    // converted to the dtype of the operation
  kept,       // the same, but not rounded to half precision, nor is a second operand without
              // dimensions
  parameter,  // rounded, and no operand in torch's eyes: the strides of the result do not see it
};

// Which results need no rounding to a dtype that their operands have.
enum class Exact : uint8_t {
  no,
  real,    // of real dtypes, none (negation makes -0, which no integer is)
  always,  // none: the result is one of the operands, or a whole number no larger
};

// What a block of elements costs on a CPU, for the choice of its instructions.
enum class Cost : uint8_t {
  arithmetic,      // an instruction of the machine: worth forms with two operands from memory
  light,           // a few of them
  fused,           // one where the machine has it, a function where it has not
  short_function,  // a function whose constants stay in registers where there are 32
  function,        // a function: a loop around one copy of it
};

// Value e with f(x, e) = x for all x; converted to an integer dtype with saturation.
inline constexpr double kNoIdentity = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The columns of a row beside name, arity and expression; what a row does not say has the value
// here.
struct OpColumns {
  DTypeSet dtypes = kReal;
  Integers integers = Integers::keep;
  Numbers numbers = Numbers::rounded;
  uint16_t flags = kNone;  // OpFlags
  double identity = kNoIdentity;
  Exact exact = Exact::no;
  Cost cost = Cost::light;
  Cost integer_cost = Cost::light;
  // The reduction that joins elements by this operation, from the identity on; null for none.
  const char* fold = nullptr;
  // The scan by this operation, of an associative one with an identity; null for none.
  const char* scan = nullptr;
  // Of each operand, the gradient: an expression of the operands x, y and z, the result r and its
  // gradient g in the language of torch_hologram.pointwise (docs/custom-operators.md), in the order
  // of torch's derivatives.yaml and FunctionsManual.cpp. "0": there is none; null: the row has no
  // derivative. is_number(x) says whether an operand is a number, is_tensor(x) whether it is none;
  // where() of what is known takes its branch.
  const char* derivative[3] = {nullptr, nullptr, nullptr};
};

struct OpInfo : OpColumns {
  const char* name;
  int arity;               // number of operands, 1 to 3
  const char* expression;  // in x, y, z and T, for messages and generated kernels

  constexpr bool supports(DType dtype) const { return (dtypes & dtype_bit(dtype)) != 0; }
  // The same for a compute node of a group (atlas/group.h): narrow dtypes are rounded after the
  // operation. `dtype` is the operands' (the second and third's of a kCondition row).
  constexpr bool supports_in_group(DType dtype) const {
    DTypeSet all = dtypes;
    if (supports(DType::f32)) all |= kHalves;
    if (supports(DType::i32)) {
      all |= dtype_bit(DType::u8) | dtype_bit(DType::i8) | dtype_bit(DType::i16);
    }
    return (all & dtype_bit(dtype)) != 0;
  }
  constexpr bool has(OpFlags flag) const { return (flags & flag) != 0; }
  bool has_identity() const { return !std::isnan(identity); }
  // Operands and result are truth values.
  constexpr bool is_logical() const { return dtypes == kTruth; }
};

// All rows, by their numbers.
HOLOGRAM_EXPORT extern const std::span<const OpInfo> kOpInfos;

inline const OpInfo& op_info(Op op) noexcept {
  return kOpInfos[static_cast<size_t>(op)];
}

}  // namespace hologram
