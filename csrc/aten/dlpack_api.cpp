#include "aten/dlpack_api.h"

#include <ATen/dlpack.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include "aten/alias.h"
#include "aten/compat.h"
#include "aten/delegate_target.h"
#include "aten/foreign.h"
#include "aten/runtime.h"

namespace py = pybind11;

namespace hologram::aten {
namespace {

constexpr const char* kCapsuleName = "dlpack_exchange_api";

const DLPackExchangeAPI* torch_api = nullptr;

// Says of memory of ours whose it is.
void set_owner(DLTensor& tensor) {
  if (tensor.device.device_type != kDLExtDev) return;
  const auto index = static_cast<c10::DeviceIndex>(tensor.device.device_id);
  const DelegateTarget& target = target_of(index);
  if (is_host_addressable(index)) {
    tensor.device = {kDLCPU, 0};
  } else if (target.in_stream_order && target.device.is_cuda()) {
    tensor.device = {kDLCUDA, target.device.index()};
  }
}

// Whether an object is a tensor of ours.
bool is_hologram(void* object) {
  return THPVariable_Check(static_cast<PyObject*>(object)) &&
         THPVariable_Unpack(static_cast<PyObject*>(object)).device().type() == kHologram;
}

// Calls the function; an exception becomes Python's, as the interface wants it.
template <class F>
int status_of(F&& function) {
  try {
    return function();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const c10::OutOfMemoryError& error) {
    const auto type = py::module_::import("torch").attr("OutOfMemoryError");
    PyErr_SetString(type.ptr(), error.what_without_backtrace());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return -1;
}

// The memory is looked at once, while the tensor lives.
int dltensor_from_py_object(void* object, DLTensor* out) {
  if (is_hologram(object)) {
    const int ready = status_of([&] {
      hand_out_tensor(THPVariable_Unpack(static_cast<PyObject*>(object)));
      return 0;
    });
    if (ready != 0) {
      return ready;
    }
  }
  const int status = torch_api->dltensor_from_py_object_no_sync(object, out);
  if (status == 0) {
    set_owner(*out);
  }
  return status;
}

// The memory is shared: a tensor over it of the device that it is of is exported, and while that
// lives instructions on it run at once.
int managed_tensor_from_py_object(void* object, DLManagedTensorVersioned** out) {
  if (!is_hologram(object)) return torch_api->managed_tensor_from_py_object_no_sync(object, out);
  return status_of([&] {
    const at::Tensor& tensor = THPVariable_Unpack(static_cast<PyObject*>(object));
    const auto index = tensor.device().index();
    py::object theirs = py::reinterpret_borrow<py::object>(static_cast<PyObject*>(object));
    if (is_host_addressable(index)) {
      theirs = py::reinterpret_steal<py::object>(THPVariable_Wrap(shared_alias(tensor)));
    } else if (target_of(index).in_stream_order) {
      theirs = py::reinterpret_steal<py::object>(THPVariable_Wrap(vendor_alias(tensor)));
    }
    return torch_api->managed_tensor_from_py_object_no_sync(theirs.ptr(), out);
  });
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
