// Convolutions: matrix products where the kernel has one element, else calls of torch's.
#pragma once

namespace hologram::aten {

void register_convolutions();

}  // namespace hologram::aten
