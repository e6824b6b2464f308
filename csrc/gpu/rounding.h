// Which values of a step are to be rounded to their dtype: those that it may not hold as they are
// made. To round one that it holds is no loss of time only: a NaN would lose its payload.
#pragma once

#include <cstddef>
#include <vector>

#include "atlas/group.h"

namespace hologram::gpu {

// Whether `to` holds every value that `from` has.
bool holds(DType to, DType from);

// Of node i, which is a load, a cast, a compute node or a draw.
bool is_rounded(const std::vector<Node>& nodes, size_t i, const std::vector<Operand>& operands,
                ComputeType type);

}  // namespace hologram::gpu
