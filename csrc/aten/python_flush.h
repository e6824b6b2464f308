// The functions of Python's that hand over what is recorded, which programs may call after each
// operation: functions of the C API, since binding costs as much as recording an instruction.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hologram::aten {

void bind_flush(pybind11::module_& m);

}  // namespace hologram::aten
