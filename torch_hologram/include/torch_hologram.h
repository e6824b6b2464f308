// For C++ code that reads or writes the memory of tensors on the hologram device.
//
// Operations on hologram tensors are recorded and executed later. Whoever asks a tensor for its
// data pointer says so before:
//
//   #include <torch_hologram.h>
//
//   void read(const at::Tensor& tensor) {
//     hologram::sync(tensor);
//     const float* data = tensor.const_data_ptr<float>();
//     ...
//
// Operators need this only if they record something themselves and then read it: what is recorded
// of their arguments has been executed when they are called. Functions bound with pybind11 need it.
//
// Header only: nothing has to be linked. The folder of this file is torch_hologram.include_path().
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace hologram {

// Executes what has been recorded of the tensor's memory, in any layout. Returns at once for
// tensors of other devices. Valid until the next operation on the tensor. Throws c10::Error, or
// c10::OutOfMemoryError, if an operation that the tensor comes from could not be executed.
inline void sync(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != c10::DeviceType::PrivateUse1) {
    return;
  }
  // Not there where the device is another package's.
  static const auto op = c10::Dispatcher::singleton().findSchema({"hologram::sync", ""});
  if (op) {
    op->typed<void(const at::Tensor&)>().call(tensor);
  }
}

}  // namespace hologram
