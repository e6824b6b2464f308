// Registration of operators that draw random numbers, as ATen kernels.
#pragma once

namespace hologram::aten {

// Called once, before register_delegates().
void register_random();

}  // namespace hologram::aten
