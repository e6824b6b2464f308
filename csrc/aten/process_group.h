// torch.distributed for the device: a backend of a process group, over the engines that torch has.
//
// Gloo gets the bytes of memory that the host can touch, and copies of other memory; an engine of
// the vendor's, which for CUDA devices is NCCL, works on the same memory in the order of the
// current stream. Nothing is communicated by us: a call's tensors are replaced by aliases
// (alias.h), and what its work object and its future show is replaced back.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hologram::aten {

void bind_process_group(pybind11::module_& m);

}  // namespace hologram::aten
