// What the runtime of a device reports, in torch's type; and the calls of a vendor's kernels before
// it: their errors come later, and do not say whose they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "atlas/error.h"

namespace hologram::aten {

// Throws c10::AcceleratorError, the exception of torch's own devices.
[[noreturn]] void raise_device_error(DeviceFault&& fault);
// One that has been thrown already, in another thread or for another reader.
[[noreturn]] void raise_device_error_again(const std::string& what);

// Notes a tensor that a call of a vendor's kernel is given; the first one of it begins the call.
void note_vendor_argument(const at::Tensor& tensor, bool first);
// Notes the call itself, before the kernel runs. `name` lives as long as the process.
void note_vendor_call(const std::string& name);

}  // namespace hologram::aten
