// Checks of programs and plans, for debug builds and tests: whatever a pass gets or makes wrong is
// found where it happens, not where a number is wrong.
#pragma once

#include "atlas/canonicalise.h"
#include "atlas/program.h"

namespace hologram {

// Throws std::logic_error, which says where, unless every index lies inside its array and every
// instruction has the operands that its row of the op table wants.
void validate(const Program& program);

// Throws std::logic_error unless
//   - every group is straight-line code over operands and immediates that its members have,
//   - members have the dtypes and layouts of their group, and one iteration space,
//   - nothing stored by a member of a batch is touched by another one, or partly by itself,
//   - what lives after the program is stored, in the order in which it was written,
//   - blocks without memory are given scratch.
void validate(const Plan& plan, const Program& program);

}  // namespace hologram
