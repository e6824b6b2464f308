// The op table, and what else values are made by, as text of the kernel dialect (csrc/gpu/dialect).
#pragma once

#include <string>

#include "atlas/dtype.h"
#include "atlas/group.h"
#include "atlas/op_info.h"

namespace hologram::gpu {

// template <class T> HG_DEV T hg_op_<name>(T x, T y, T z) { return <expression>; }
std::string op_text(const OpInfo& info);
// Of every row, for kernels that are compiled before there are groups.
std::string op_table_text();

// The dialect's type of an element in memory, and of what a group computes in.
std::string type_text(DType dtype);
inline std::string type_text(ComputeType type) {
  return type_text(own_dtype(type));
}

// The value from which a fold by an operation starts, in a compute type.
std::string identity_text(const OpInfo& info, ComputeType type);

// An expression of the compute type, rounded to what a dtype holds.
std::string rounded_text(const std::string& expression, ComputeType type, DType dtype);

}  // namespace hologram::gpu
