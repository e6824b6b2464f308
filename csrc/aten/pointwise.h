// Registration of the op table's rows as ATen kernels.
#pragma once

namespace hologram::aten {

// Called once, before register_delegates().
void register_pointwise();

}  // namespace hologram::aten
