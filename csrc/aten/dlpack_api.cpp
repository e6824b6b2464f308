#include "aten/dlpack_api.h"

#include <ATen/dlpack.h>
#include <torch/csrc/autograd/python_variable.h>

namespace hologram::aten {
namespace {

constexpr const char* kCapsuleName = "dlpack_exchange_api";

const DLPackExchangeAPI* torch_api = nullptr;

void as_host_memory(DLTensor& tensor) {
  if (tensor.device.device_type == kDLExtDev) {
    tensor.device = {kDLCPU, 0};
  }
}

int dltensor_from_py_object(void* object, DLTensor* out) {
  const int status = torch_api->dltensor_from_py_object_no_sync(object, out);
  if (status == 0) {
    as_host_memory(*out);
  }
  return status;
}

int managed_tensor_from_py_object(void* object, DLManagedTensorVersioned** out) {
  const int status = torch_api->managed_tensor_from_py_object_no_sync(object, out);
  if (status == 0) {
    as_host_memory((*out)->dl_tensor);
  }
  return status;
}

}  // namespace

PyObject* dlpack_exchange_api() {
  auto* capsule = PyObject_GetAttrString(THPVariableClass, "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  if (torch_api == nullptr) {
    torch_api = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  }
  Py_DECREF(capsule);
  if (torch_api == nullptr) {
    return nullptr;
  }
  static DLPackExchangeAPI ours = [] {
    auto copy = *torch_api;
    copy.header.prev_api = nullptr;  // older interfaces would export the device as it was
    copy.dltensor_from_py_object_no_sync = &dltensor_from_py_object;
    copy.managed_tensor_from_py_object_no_sync = &managed_tensor_from_py_object;
    return copy;
  }();
  return PyCapsule_New(&ours, kCapsuleName, nullptr);
}

}  // namespace hologram::aten
