#include "aten/explain.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "atlas/canonicalise.h"
#include "atlas/device.h"
#include "atlas/program.h"

namespace py = pybind11;

namespace hologram::aten {
namespace {

// Guarded by the interpreter's lock.
std::vector<std::string>& skipped_folders() {
  static auto* folders = new std::vector<std::string>();
  return *folders;
}

// "model.py:12", or the backward function that the autograd engine is running. Never empty.
std::string locate() {
  if (const auto node = torch::autograd::get_current_node()) {
    return node->name();
  }
  if (Py_IsInitialized() == 0) {
    return "?";
  }
  const py::gil_scoped_acquire gil;
  auto frame = py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(PyEval_GetFrame()));  // NOLINT: may be null
  while (frame) {
    auto* const raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const auto file = code.attr("co_filename").cast<std::string>();
    const auto& skipped = skipped_folders();
    if (std::none_of(skipped.begin(), skipped.end(),
                     [&](const auto& folder) { return file.starts_with(folder); })) {
      return file.substr(file.rfind('/') + 1) + ":" + std::to_string(PyFrame_GetLineNumber(raw));
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return "?";
}

}  // namespace

void start_capture(c10::DeviceIndex device, std::vector<std::string> skipped) {
  skipped_folders() = std::move(skipped);
  Window::set_locate(&locate);
  const py::gil_scoped_release release;
  hologram::device(device).channels().start_capture();
}

py::list end_capture(c10::DeviceIndex device) {
  std::vector<Flushed> flushed;
  uint64_t end = 0;  // the first one that only the end has flushed
  {
    const py::gil_scoped_release release;
    Channels& channels = hologram::device(device).channels();
    end = next_flush_number();
    try {
      channels.flush(FlushReason::user);
    } catch (const std::exception&) {
      // Raised where the values are read.
    }
    flushed = channels.end_capture();
  }
  py::list result;
  for (Flushed& flush : flushed) {
    py::list passes;
    for (const PassText& pass : describe(flush.plan, flush.program)) {
      py::dict row;
      row["space"] = pass.space;
      row["tensors"] = pass.tensors;
      row["loaded"] = pass.loaded;
      row["stored"] = pass.stored;
      row["code"] = pass.lines;
      passes.append(row);
    }
    const auto recorded = describe(flush.program);
    flush.origins.resize(recorded.size(), "?");
    py::dict row;
    row["reason"] = flush.number > end ? "end" : flush_reason_name(flush.reason);
    row["origin"] = flush.origin;
    row["recorded"] = recorded;
    row["origins"] = flush.origins;
    row["passes"] = passes;
    result.append(row);
  }
  return result;
}

}  // namespace hologram::aten
