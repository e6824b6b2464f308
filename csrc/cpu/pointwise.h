// Contiguous loops of the pointwise operations, one per (operation, dtype), generated from the op
// table.
//
// `n` counts elements. `out` may be exactly `x` or exactly `y`; any other overlap is not allowed.
// Pointers are aligned to the element size at least. Scalars point to one value of the loop's
// dtype. The result does not depend on the instruction set.
#pragma once

#include <cstddef>

#include "atlas/op_table.h"
#include "cpu/system.h"

namespace hologram::cpu {

using UnaryKernel = void (*)(const void* x, void* out, size_t n);
using BinaryKernel = void (*)(const void* x, const void* y, void* out, size_t n);
using ScalarKernel = void (*)(const void* x, const void* scalar, void* out, size_t n);

// Each returns nullptr where the table has no such row (arity or dtype). An `isa` other than the
// default must be one this processor has.
UnaryKernel unary(Op op, DType dtype, Isa isa = best_isa()) noexcept;           // f(x[i])
BinaryKernel binary(Op op, DType dtype, Isa isa = best_isa()) noexcept;         // f(x[i], y[i])
ScalarKernel binary_scalar(Op op, DType dtype, Isa isa = best_isa()) noexcept;  // f(x[i], scalar)
ScalarKernel scalar_binary(Op op, DType dtype, Isa isa = best_isa()) noexcept;  // f(scalar, x[i])

}  // namespace hologram::cpu
