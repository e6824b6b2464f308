// What torch.hologram offers to those who measure and profile.
#pragma once

#include <pybind11/pybind11.h>

namespace hologram::aten {

void bind_measure(pybind11::module_& m);

}  // namespace hologram::aten
