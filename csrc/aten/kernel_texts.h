// For who compiles the kernels that the package brings (tools/build_kernels.py): their texts.
#pragma once

#include <pybind11/pybind11.h>

namespace hologram::aten {

void bind_kernel_texts(pybind11::module_& m);

}  // namespace hologram::aten
