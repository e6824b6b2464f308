// torch's profilers: what runs of recorded programs, and times of the device.
#pragma once

namespace hologram::aten {

// Makes flushes and passes events of their own, and answers torch.autograd.profiler with
// use_device="hologram". Called once.
void register_profiler();

}  // namespace hologram::aten
