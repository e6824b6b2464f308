// torch's C interface for exchanging tensors without Python calls.
#pragma once

#include <Python.h>

namespace hologram::aten {

// A capsule with a copy of torch's DLPackExchangeAPI that exports hologram tensors as what they
// are, memory of the host or of CUDA: (kDLCPU, 0), like Tensor.__dlpack_device__. None where torch
// has no such interface. New reference; nullptr with a Python error set on failure.
PyObject* dlpack_exchange_api();

}  // namespace hologram::aten
