#include "aten/python_flush.h"

#include <torch/csrc/Exceptions.h>

#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/fork.h"

namespace hologram::aten {
namespace {

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Of the current device, if any has been used.
PyObject* flush_current(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  if (is_initialized() && !in_forked_child()) {
    const WithoutGil released;
    hologram::device(check_device(-1)).channels().flush(FlushReason::user);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace

void bind_flush(pybind11::module_& m) {
  static PyMethodDef functions[] = {
      {"flush_current", &flush_current, METH_NOARGS, nullptr},
      {},
  };
  if (PyModule_AddFunctions(m.ptr(), functions) != 0) throw pybind11::error_already_set();
}

}  // namespace hologram::aten
