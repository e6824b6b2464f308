// A group on the host: for what there are no kernels for.
#pragma once

#include "atlas/group.h"
#include "atlas/queue.h"
#include "cpu/compiled_group.h"

namespace hologram::cuda {

// Runs a group on copies of the device's memory, with the CPU's code, and waits for it. Throws what
// the queue and the code do.
void run_on_copies(hologram::Queue& queue, const Group& group, const cpu::CompiledGroup& code,
                   const Binding& binding);

}  // namespace hologram::cuda
