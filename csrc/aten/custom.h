// Pointwise operators that are defined at run time: the C++ side of torch_hologram/custom.py.
#pragma once

#include <pybind11/pybind11.h>

namespace hologram::aten {

// Adds define_pointwise() to the extension.
void bind_custom(pybind11::module_& m);

}  // namespace hologram::aten
