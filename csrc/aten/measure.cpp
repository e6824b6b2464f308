#include "aten/measure.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "aten/memory_trace.h"
#include "aten/pinned.h"
#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/fork.h"
#include "atlas/window.h"

namespace py = pybind11;

namespace hologram::aten {
namespace {

constexpr const char* kSynchronizes =
    "a recorded program is executed here, because its result is needed "
    "(torch.hologram.set_sync_debug_mode)";

void warn_before_read() {
  TORCH_WARN(kSynchronizes);
}
void refuse_read() {
  TORCH_CHECK(false, kSynchronizes);
}

// 0: nothing, 1: warns, 2: raises where something other than the stream touches what is recorded.
void set_sync_debug_mode(int mode) {
  constexpr Window::Hook hooks[] = {nullptr, &warn_before_read, &refuse_read};
  Window::set_before_read(hooks[mode]);
}

void flush_all() {
  if (!is_initialized() || in_forked_child()) return;
  for (int index = 0; index < device_count(); ++index) {
    if (Device* device = device_if_used(index)) device->channels().flush(FlushReason::user);
  }
}

py::dict host_memory_stats() {
  const at::HostStats stats = pinned_allocator().get_stats();
  py::dict out;
  const auto put = [&](const char* name, const auto& stat) {
    py::dict row;
    row["current"] = stat.current;
    row["peak"] = stat.peak;
    row["allocated"] = stat.allocated;
    row["freed"] = stat.freed;
    out[name] = row;
  };
  const auto put_time = [&](const char* name, const auto& stat) {
    py::dict row;
    row["total"] = stat.total;
    row["max"] = stat.max;
    row["min"] = stat.min;
    row["count"] = stat.count;
    row["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
    out[name] = row;
  };
  put("allocations", stats.allocations);
  put("allocated_bytes", stats.allocated_bytes);
  put("active_requests", stats.active_requests);
  put("active_bytes", stats.active_bytes);
  put_time("host_alloc_time", stats.host_alloc_time);
  put_time("host_free_time", stats.host_free_time);
  out["num_host_alloc"] = stats.num_host_alloc;
  out["num_host_free"] = stats.num_host_free;
  return out;
}

}  // namespace

void bind_measure(py::module_& m) {
  m.def("keeping", &Window::keeping);
  m.def("set_keeping", &Window::set_keeping);
  m.def("flush_all", &flush_all, py::call_guard<py::gil_scoped_release>());
  m.def("set_sync_debug_mode", &set_sync_debug_mode);

  m.def("record_memory_history", &record_memory_history);
  m.def("memory_history",
        [](int64_t index) { return memory_history(static_cast<c10::DeviceIndex>(index)); });
  m.def("host_memory_stats", &host_memory_stats);
  m.def("reset_accumulated_host_memory_stats",
        [] { pinned_allocator().reset_accumulated_stats(); });
  m.def("reset_peak_host_memory_stats", [] { pinned_allocator().reset_peak_stats(); });
  m.def("stream_priority", [](int64_t index, int64_t id) {
    return hologram::device(static_cast<int>(index)).streams().priority(id);
  });
  m.def("memory_fraction", [](int64_t index) {
    auto& device = hologram::device(static_cast<int>(index));
    return static_cast<double>(device.memory().limit()) /
           static_cast<double>(device.properties().total_memory);
  });
}

}  // namespace hologram::aten
