#include "aten/python_methods.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>

#include "aten/foreign.h"
#include "aten/runtime.h"

namespace py = pybind11;

namespace hologram::aten {
namespace {

PyMethodDef& method_of(const py::object& type, const char* name) {
  const auto found = py::reinterpret_borrow<py::object>(
      PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_dict, name));
  if (!found || !Py_IS_TYPE(found.ptr(), &PyMethodDescr_Type)) {
    throw py::import_error("torch_hologram: this torch has no method " +
                           py::str(type).cast<std::string>() + "." + name);
  }
  return *reinterpret_cast<PyMethodDescrObject*>(found.ptr())->d_method;
}

// One function for each method, because a function does not learn as which one it was called.
template <int which>
struct Address {
  inline static PyCFunction theirs = nullptr;
  static PyObject* get(PyObject* self, PyObject* nothing) {
    HANDLE_TH_ERRORS
    if (THPVariable_Check(self)) {
      const at::Tensor& tensor = THPVariable_Unpack(self);
      if (tensor.device().type() == kHologram) {
        const py::gil_scoped_release release;
        hand_out_tensor(tensor);
      }
    }
    return theirs(self, nothing);
    END_HANDLE_TH_ERRORS
  }
};

}  // namespace

PyCFunction replace_method(const py::object& type, const char* name, int flags, PyCFunction ours) {
  PyMethodDef& method = method_of(type, name);
  if (method.ml_flags != flags) {
    throw py::import_error("torch_hologram: this torch calls " + py::str(type).cast<std::string>() +
                           "." + name + " in another way");
  }
  return std::exchange(method.ml_meth, ours);
}

void cover_data_ptr(py::module_& m) {
  const py::object type = py::module_::import("torch._C").attr("TensorBase");
  static PyMethodDef address_of = method_of(type, "data_ptr");
  address_of.ml_name = "address_of";
  m.attr("address_of") = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &address_of));
  Address<0>::theirs = replace_method(type, "data_ptr", METH_NOARGS, &Address<0>::get);
  if (py::hasattr(type, "const_data_ptr")) {  // from torch 2.13 on
    Address<1>::theirs = replace_method(type, "const_data_ptr", METH_NOARGS, &Address<1>::get);
  }
}

}  // namespace hologram::aten
