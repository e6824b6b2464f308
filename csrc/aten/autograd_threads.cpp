#include "aten/autograd_threads.h"

#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "aten/python_methods.h"
#include "aten/runtime.h"
#include "aten/system_threads.h"
#include "atlas/device.h"
#include "atlas/fork.h"

namespace py = pybind11;

namespace hologram::aten {
namespace {

// The engine counts a thread as finished before it has deleted its Python state, so its count
// cannot be waited for; the system's list of threads can. torch names them "pt_autograd_<n>".
std::set<SystemThread> threads_named_by_autograd() {
  return threads_named("pt_autograd_");
}

// Among those of one name the first is torch's, the others were started by what ran there, a
// device's libraries for one.
std::set<SystemThread> threads_started_by_autograd() {
  std::set<SystemThread> started;
  std::string name;
  for (const SystemThread& its : threads_named_by_autograd()) {
    if (its.name == name) started.insert(its);
    name = its.name;
  }
  return started;
}

bool computes_on_host(const c10::Device& device) {
  return device.type() == kHologram &&
         hologram::device(device.index()).properties().computes_on_host;
}

// Whether a graph is of a device, as far as the nodes next to its root say: `loss.cpu()` is.
bool is_of_device(torch::autograd::Node* root) {
  std::array<torch::autograd::Node*, 16> nodes{root};
  size_t known = 1;
  for (size_t i = 0; i < known; ++i) {
    for (uint32_t input = 0; input < nodes[i]->num_inputs(); ++input) {
      if (computes_on_host(nodes[i]->input_metadata(input).device())) return true;
    }
    for (const auto& edge : nodes[i]->next_edges()) {
      if (edge.function && known < nodes.size()) nodes[known++] = edge.function.get();
    }
  }
  return false;
}

// Of one of the outputs that a pass starts from.
bool is_of_device(PyObject* output) {
  if (!THPVariable_Check(output)) return true;  // an edge: a node without its tensor
  const at::Tensor& tensor = THPVariable_Unpack(output);
  if (computes_on_host(tensor.device())) return true;
  const auto& node = tensor.grad_fn();
  return node && is_of_device(node.get());
}

bool starts_on_device(PyObject* arguments) noexcept {
  try {
    PyObject* outputs = PyTuple_GET_SIZE(arguments) > 0 ? PyTuple_GET_ITEM(arguments, 0) : nullptr;
    if (outputs == nullptr || !PyTuple_Check(outputs)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
      if (is_of_device(PyTuple_GET_ITEM(outputs, i))) return true;
    }
  } catch (const std::exception&) {
    // What is wrong with the outputs the engine says.
  }
  return false;
}

thread_local bool asked_for_device_threads = false;
PyCFunctionWithKeywords torch_run_backward = nullptr;

PyObject* run_backward(PyObject* self, PyObject* arguments, PyObject* keywords) {
  auto& state = c10::AutogradState::get_tls_state();
  if (!is_initialized() || !state.get_multithreading_enabled() || asked_for_device_threads ||
      !starts_on_device(arguments)) {
    return torch_run_backward(self, arguments, keywords);
  }
  state.set_multithreading_enabled(false);
  PyObject* const result = torch_run_backward(self, arguments, keywords);
  state.set_multithreading_enabled(true);
  return result;
}

}  // namespace

void run_backward_on_calling_thread(py::module_& m) {
  const auto erased = [](auto function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  };
  torch_run_backward = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(
      replace_method(py::module_::import("torch._C").attr("_ImperativeEngine"), "run_backward",
                     METH_VARARGS | METH_KEYWORDS, erased(&run_backward))));
  m.def("exchange_device_threads",
        [](bool on) { return std::exchange(asked_for_device_threads, on); });
}

void stop_autograd_threads() {
  const std::set<SystemThread> others = threads_started_by_autograd();
  // Even where no thread is to be seen: one may just be starting, and in a forked child, which has
  // none, asking for the engine is what makes torch forget the parent's.
  torch::autograd::Engine::get_default_engine().stop();
  wait_at_exit([&] { return std::ranges::includes(others, threads_named_by_autograd()); });
}

}  // namespace hologram::aten
