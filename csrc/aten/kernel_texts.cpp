#include "aten/precompiled.h"

#include "aten/kernel_texts.h"

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "atlas/device.h"
#include "gpu/libraries.h"

namespace py = pybind11;

namespace hologram::aten {
namespace {

// The most dimensions that kernels of strided operands are made for, from 1.
constexpr uint8_t kMostRank = 3;

gpu::KernelSet& kernel_set() {
  static auto* set = new gpu::KernelSet();
  return *set;
}

bool has_strided(const Group& group) {
  for (const Operand& operand : group.operands) {
    if (operand.layout == Layout::strided) return true;
  }
  return false;
}

// Ends a capture of a device (explain.h), and keeps the kernels of what was flushed meanwhile.
void keep_kernels(int64_t index, bool of_many) {
  Channels& channels = device(static_cast<int>(index)).channels();
  channels.flush(FlushReason::user);
  for (const Flushed& flushed : channels.end_capture()) {
    for (const Batch& batch : flushed.plan.batches) {
      if (batch.is_call()) continue;
      const bool strided = has_strided(batch.group);
      for (uint8_t rank = 1; rank <= (strided ? kMostRank : 1); ++rank) {
        kernel_set().add(batch.group, rank, of_many);
      }
    }
  }
}

}  // namespace

void bind_kernel_texts(py::module_& m) {
  m.def("kernel_libraries", [] {
    std::map<std::string, std::string> texts;
    for (const gpu::Library& library : gpu::libraries()) texts[library.name] = library.text();
    return texts;
  });
  m.def("keep_kernels", &keep_kernels, py::call_guard<py::gil_scoped_release>());
  m.def("kept_kernels", [](size_t count) { return kernel_set().texts(count); });
}

}  // namespace hologram::aten
