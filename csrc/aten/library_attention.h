#pragma once

namespace hologram::aten {

// Registers the CPU's fused attention, and its gradients, by kernels of a device's queue
// (Queue::attention) where it has such.
void register_library_attention();

}  // namespace hologram::aten
