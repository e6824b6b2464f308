// What has to be done about the hooks of hooks.cpp, which torch finds by itself.
#pragma once

namespace hologram::aten {

// Lets Tensor.is_pinned() ask the hooks although the device is not used yet: torch asks the
// accelerator's, and of one that it has not initialised nobody. Where torch has CUDA, its factories
// have pinned memory before the device is. Called once, while the package is loaded.
void answer_whether_pinned();

}  // namespace hologram::aten
