// Programs that are measured: what nobody reads is computed as well, as often as it was asked for.
//
// Outside a measurement a value that nobody reads is not computed, and equal values are computed
// once. A loop that measures, and drops or overwrites its result, is full of both.
#pragma once

#include "atlas/program.h"

namespace hologram {

// Sets Instruction::kept where no other instruction reads the result, and numbers the turns. A turn
// ends, and nothing after it is joined with anything in it, before an instruction
//   - that computes again what one of the turn has computed, if a kept result lies in between:
//     without one, an expression uses a value twice, and that is computed once as always; or
//   - that overwrites a kept result of the turn.
void mark_kept(Program& program);

}  // namespace hologram
