// The threads that run groups: torch's own.
#pragma once

namespace hologram::aten {

// Makes the CPU backend share the work of a group among the threads of torch's intra-op pool, as
// many as torch.set_num_threads, OMP_NUM_THREADS and the affinity allow.
void use_torch_threads();

}  // namespace hologram::aten
