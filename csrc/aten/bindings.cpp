// The Python extension torch_hologram._C.
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>

#include "aten/alias.h"
#include "aten/autograd_threads.h"
#include "aten/block.h"
#include "aten/compat.h"
#include "aten/custom.h"
#include "aten/delegate.h"
#include "aten/delegate_target.h"
#include "aten/device_errors.h"
#include "aten/dlpack_api.h"
#include "aten/explain.h"
#include "aten/foreign.h"
#include "aten/generator.h"
#include "aten/hooks.h"
#include "aten/kernel_texts.h"
#include "aten/measure.h"
#include "aten/memory_trace.h"
#include "aten/pointwise.h"
#include "aten/process_group.h"
#include "aten/profile.h"
#include "aten/python_flush.h"
#include "aten/python_methods.h"
#include "aten/report.h"
#include "aten/runtime.h"
#include "aten/threads.h"
#include "aten/vendor_memory.h"
#include "aten/vendor_streams.h"
#include "atlas/allocation.h"
#include "atlas/boundary.h"
#include "atlas/config.h"
#include "atlas/device.h"
#include "atlas/error.h"
#include "atlas/exit.h"
#include "atlas/fork.h"
#include "atlas/memory_stats.h"
#include "atlas/stream.h"
#include "cpu/system.h"

namespace py = pybind11;

namespace hologram::aten {
namespace {

using PackedStream = std::tuple<int64_t, int64_t, int64_t>;  // (id, device index, device type)

PackedStream pack(StreamId id, c10::DeviceIndex index) {
  return {id, index, static_cast<int64_t>(kHologram)};
}

// Python has replaced "the current device" by its index before it calls.
c10::DeviceIndex checked(int64_t index) {
  check_device(c10::DeviceIndex(-1));  // without any device, that is what is wrong with the index
  TORCH_CHECK(index >= 0 && index < hologram::device_count(), "hologram device index ", index,
              " is out of range: ", hologram::device_count(), " device(s) available");
  return static_cast<c10::DeviceIndex>(index);
}

// Of ours, and the type and index of the vendor's, -1 without.
using PackedDevices = std::tuple<int64_t, int64_t, int64_t>;

PackedDevices pack(const CurrentDevices& devices) {
  if (!devices.vendors) return {devices.ours, -1, -1};
  return {devices.ours, static_cast<int64_t>(devices.vendors->type()), devices.vendors->index()};
}
CurrentDevices unpack(const PackedDevices& packed) {
  const auto [ours, type, index] = packed;
  CurrentDevices devices{.ours = checked(ours), .vendors = std::nullopt};
  if (type >= 0) {
    devices.vendors.emplace(static_cast<c10::DeviceType>(type),
                            static_cast<c10::DeviceIndex>(index));
  }
  return devices;
}

c10::Stream unpack_stream(int64_t id, int64_t index, int64_t type) {
  const auto device_type = static_cast<c10::DeviceType>(type);
  const auto device =
      device_type == kHologram ? checked(index) : static_cast<c10::DeviceIndex>(index);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(device_type, device), id);
}

// Gives a Python class the buffer protocol, which one cannot write in Python before 3.12. The class
// has a method _expose(), which says where its memory is and what keeps it there. From then on the
// object does, for that is all that views know.
struct HostView {
  static py::buffer_info buffer(HostView& self) {
    const py::object exposed =
        py::cast(&self, py::return_value_policy::reference).attr("_expose")();
    const py::tuple parts = exposed;  // owner, address, format, bytes of an element, elements
    self.owner = parts[0];
    const auto itemsize = parts[3].cast<py::ssize_t>();
    return {reinterpret_cast<void*>(parts[1].cast<uintptr_t>()),
            itemsize,
            parts[2].cast<std::string>(),
            1,
            {parts[4].cast<py::ssize_t>()},
            {itemsize}};
  }
  py::object owner;
};

// torch.cuda's names, "<counter>.<pool>.<field>", with pools of our own: all, boundary, linear.
// What torch's own allocator holds of the same device.
void put_vendors(py::dict& out, int64_t index) {
  const auto stats = vendor_stats(hologram::device(static_cast<int>(index)).properties());
  if (!stats) return;
  const auto put = [&](const char* name, const auto& list) {
    const auto& all = list[0];  // of all its pools
    const std::string key = std::string("vendor_") + name + ".all.";
    out[py::str(key + "current")] = all.current;
    out[py::str(key + "peak")] = all.peak;
    out[py::str(key + "allocated")] = all.allocated;
    out[py::str(key + "freed")] = all.freed;
  };
  put("allocated_bytes", stats->allocated_bytes);
  put("reserved_bytes", stats->reserved_bytes);
}

py::dict memory_stats(int64_t index) {
  const auto stats = device_memory(checked(index)).stats();
  py::dict out;
  const auto put = [&](const std::string& name, const Counter& counter, const char* pool = "all") {
    const auto field = [&](const char* suffix, int64_t value) {
      out[py::str(name + "." + pool + "." + suffix)] = value;
    };
    field("current", counter.current);
    field("peak", counter.peak);
    field("allocated", counter.allocated);
    field("freed", counter.freed);
  };
  const auto put_pool = [&](const char* pool, const PoolStats& part) {
    put("allocation", part.allocation, pool);
    put("segment", part.segment, pool);
    put("active", part.allocation, pool);
    put("allocated_bytes", part.allocated_bytes, pool);
    put("active_bytes", part.allocated_bytes, pool);
    put("reserved_bytes", part.reserved_bytes, pool);
  };
  put_pool("boundary", stats.boundary);
  put_pool("linear", stats.linear);
  put("allocation", stats.allocation);
  put("segment", stats.segment);
  put("active", stats.active);
  put("allocated_bytes", stats.allocated_bytes);
  put("active_bytes", stats.allocated_bytes);
  put("reserved_bytes", stats.reserved_bytes);
  put("requested_bytes", stats.requested_bytes);
  put("foreign_bytes", stats.foreign_bytes);
  out["num_alloc_retries"] = stats.num_alloc_retries;
  out["num_ooms"] = stats.num_ooms;
  out["num_device_alloc"] = stats.num_device_alloc;
  out["num_device_free"] = stats.num_device_free;
  out["limit_bytes"] = stats.limit;
  put_vendors(out, index);
  return out;
}

py::list memory_snapshot(int64_t index) {
  constexpr size_t kSmallSegment = 2 << 20;  // torch.cuda's
  py::list segments;
  std::vector<py::dict> in_use;
  for (const auto& segment : device_memory(checked(index)).snapshot()) {
    py::list blocks;
    size_t requested = 0, active = 0;
    for (const auto& block : segment.blocks) {
      py::dict row;
      row["address"] = reinterpret_cast<uintptr_t>(block.address);
      row["size"] = block.size;
      row["requested_size"] = block.requested;
      row["state"] = !block.active   ? "inactive"
                     : block.retired ? "active_pending_free"
                                     : "active_allocated";
      row["frames"] = py::list();
      if (block.active) {
        if (!block.retired) in_use.push_back(row);
        active += block.size;
      }
      requested += block.requested;
      blocks.append(row);
    }
    py::dict row;
    row["device"] = index;
    row["address"] = reinterpret_cast<uintptr_t>(segment.address);
    row["total_size"] = segment.total_size;
    row["allocated_size"] = segment.allocated_size;
    row["active_size"] = active;
    row["requested_size"] = requested;
    row["stream"] = 0;  // any stream may use it
    row["segment_type"] = segment.total_size > kSmallSegment ? "large" : "small";
    row["segment_pool_id"] = py::make_tuple(0, 0);
    row["is_expandable"] = false;
    row["frames"] = py::list();
    row["pool"] = segment.pool;
    row["blocks"] = blocks;
    segments.append(row);
  }
  if (memory_history_on.load(std::memory_order_relaxed)) {
    add_frames(in_use);
  }
  return segments;
}

py::dict device_properties(int64_t index) {
  Device& device = hologram::device(checked(index));
  const auto& properties = device.properties();
  py::dict out;
  out["name"] = properties.name;
  out["backend"] = properties.backend;
  out["total_memory"] = properties.total_memory;
  out["multi_processor_count"] = properties.multi_processor_count;
  out["isa"] = properties.isa;
  out["l2_cache_size"] = properties.l2_cache_size;
  out["host_addressable"] = properties.host_addressable;
  out["asynchronous"] = properties.asynchronous;
  out["major"] = properties.major;
  out["minor"] = properties.minor;
  out["products"] = device.backend().products().description;
  return out;
}

// Called after every operation by who measures one: pybind11 would take longer than the rest of it.
PyObject* synchronize_current(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS {
    const py::gil_scoped_release release;
    hologram::device(check_device(-1)).synchronize();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

void bind(py::module_& m) {
  m.attr("torch_minor") = HOLOGRAM_TORCH_MINOR;

  m.def("init", [] { check_device(c10::DeviceIndex(-1)); });
  m.def("answer_whether_pinned", &answer_whether_pinned);
  m.def("is_initialized", [] { return is_initialized(); });
  m.def("has_forked", [] { return in_forked_child(); });
  m.def("device_count", [] { return hologram::device_count(); });
  m.def("environment_error", [] { return config().error; });
  m.def("environment_warning", [] { return config().warning; });
  m.def("absent_backends", [] { return config().absent; });
  m.def("current_device", [] { return hologram::current_device(); });
  // With the vendor's device. What was current before is opaque there, from set_stream, too.
  m.def("exchange_current_devices",
        [](int64_t index) { return pack(exchange_current_devices(checked(index))); });
  m.def("set_current_devices",
        [](const PackedDevices& devices) { set_current_devices(unpack(devices)); });
  m.def("maybe_exchange_device",
        [](int64_t index) { return index < 0 ? -1 : exchange_current_device(checked(index)); });
  m.def("device_properties", &device_properties);
  m.def("is_host_addressable", [](int64_t index) { return is_host_addressable(checked(index)); });
  // What calls are delegated to: how, and the device of the kernels' tensors.
  m.def("delegate_target", [](int64_t index) {
    constexpr const char* kinds[] = {"shared", "launched", "copied"};
    const DelegateTarget& target = target_of(checked(index));
    return std::pair(kinds[static_cast<size_t>(target.kind)], target.device.str());
  });
  // Whether code of others works on its memory in the order of the current stream, which is that of
  // the device that its kernels are on.
  m.def("is_in_stream_order",
        [](int64_t index) { return target_of(checked(index)).in_stream_order; });
  // Without making the device, which device_properties() does.
  m.def("device_backend", [](int64_t index) { return config().devices[checked(index)].backend; });
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const cpu::Isa isa : cpu::processor_isas()) names.emplace_back(cpu::isa_name(isa));
    return names;
  });
  m.def(
      "synchronize", [](int64_t index) { hologram::device(checked(index)).synchronize(); },
      py::call_guard<py::gil_scoped_release>());
  static PyMethodDef quick_methods[] = {
      {"synchronize_current", synchronize_current, METH_NOARGS, nullptr}, {}};
  if (PyModule_AddFunctions(m.ptr(), quick_methods) != 0) throw py::error_already_set();

  m.def("current_stream", [](int64_t index) {
    const auto device = checked(index);
    return pack(hologram::current_stream(device), device);
  });
  // Of the vendor's; and the stream that has a handle, or for other devices its id.
  m.def("stream_handle", [](int64_t index, int64_t id) {
    const auto device = checked(index);
    check_stream(c10::Stream(c10::Stream::UNSAFE, c10::Device(kHologram, device), id));
    return reinterpret_cast<uintptr_t>(vendor_handle(device, id));
  });
  m.def("stream_of_handle", [](int64_t index, int64_t handle) {
    const auto device = checked(index);
    Device& its = hologram::device(device);
    if (!its.properties().queues_are_streams) return pack(handle, device);
    return pack(its.channels().of_vendor(reinterpret_cast<void*>(handle)), device);
  });
  m.def("is_stream_capturing", [](int64_t index) {
    const auto device = checked(index);
    Channels& channels = hologram::device(device).channels();
    return channels.several() && !channels.of(hologram::current_stream(device)).queue->takes_work();
  });
  m.def("default_stream", [](int64_t index) { return pack(0, checked(index)); });
  // -1 where there is none.
  m.def("device_of_streams", [](int64_t index, int64_t type) -> int64_t {
    return device_of_streams(unpack_stream(0, index, type).device()).value_or(-1);
  });
  m.def("set_stream", [](int64_t id, int64_t index, int64_t type) {
    return pack(exchange_stream(unpack_stream(id, index, type)));
  });
  // Takes event handles (torch.Event.event_id), because torch's own elapsed_time() refuses
  // subclasses of torch.Event.
  m.def("event_elapsed_time", [](uintptr_t start, uintptr_t end) {
    return c10::impl::getDeviceGuardImpl(kHologram)->elapsedTime(reinterpret_cast<void*>(start),
                                                                 reinterpret_cast<void*>(end), -1);
  });
  m.def("default_generator", [](int64_t index) { return default_generator(checked(index)); });

  m.def("memory_stats", &memory_stats);
  m.def("memory_snapshot", &memory_snapshot);
  m.def("reset_peak_memory_stats",
        [](int64_t index) { device_memory(checked(index)).reset_peak(); });
  m.def("reset_accumulated_memory_stats",
        [](int64_t index) { device_memory(checked(index)).reset_accumulated(); });
  m.def("empty_cache", &empty_caches);
  m.def("mem_get_info", [](int64_t index) { return device_memory(checked(index)).info(); });
  m.def("set_memory_fraction", [](int64_t index, double fraction) {
    TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "Invalid fraction value: ", fraction,
                      ". Allowed range is 0 to 1");
    device_memory(checked(index)).set_fraction(fraction);
  });

  m.def("fallback_report", [] {
    std::vector<std::tuple<std::string, std::string, uint64_t>> rows;
    for (const auto& row : fallback_report()) {
      rows.emplace_back(row.name, served_name(row.kind), row.count);
    }
    return rows;
  });
  m.def("reset_fallback_report", &reset_fallback_report);
  m.def("set_fallback_mode", &set_fallback_mode);
  m.def("fallback_mode", &fallback_mode);
  m.def("operator_table", [] {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const auto& [name, kind] : operator_table()) {
      rows.emplace_back(name, served_name(kind));
    }
    return rows;
  });

  m.def("quick_operators", &quick_operators);

  m.def(
      "flush",
      [](int64_t index) { hologram::device(checked(index)).channels().flush(FlushReason::user); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "end_step",
      [] {
        for (int index = 0; index < device_count(); ++index) {
          if (device_if_used(index) != nullptr) current_window(index).end_step();
        }
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("synchronize_tensor", &synchronize_tensor, py::call_guard<py::gil_scoped_release>());
  m.def("synchronize_storage", [](const py::object& untyped) {
    const at::Storage storage = torch::createStorage(untyped.ptr());
    const py::gil_scoped_release release;
    synchronize_storage(storage.unsafeGetStorageImpl());
  });
  m.def("export_tensor", [](const at::Tensor& tensor) {
    const py::gil_scoped_release release;
    if (tensor.unsafeGetTensorImpl()->has_storage()) {
      auto* const storage = tensor.storage().unsafeGetStorageImpl();
      check_has_memory(storage);
      export_storage(storage);
    }
  });
  m.def("flush_before", &flush_before, py::call_guard<py::gil_scoped_release>());
  m.def("guarded_operators", &guarded_operators, py::call_guard<py::gil_scoped_release>());
  m.def("start_capture", [](int64_t index, std::vector<std::string> skipped) {
    start_capture(checked(index), std::move(skipped));
  });
  m.def("end_capture", [](int64_t index) { return end_capture(checked(index)); });
  bind_flush(m);
  m.def("recording", &Window::recording);
  m.def("set_recording", &Window::set_recording);
  m.def("contracting", &Window::contracting);
  m.def("set_contracting", &Window::set_contracting);
  m.def("reset_stream_stats",
        [](int64_t index) { hologram::device(checked(index)).channels().reset_stats(); });
  m.def("stream_stats", [](int64_t index) {
    const WindowStats stats = hologram::device(checked(index)).channels().stats();
    std::vector<std::pair<std::string, uint64_t>> rows{{"recorded", stats.recorded},
                                                       {"executed", stats.executed},
                                                       {"failed", stats.failed},
                                                       {"passes", stats.passes},
                                                       {"calls", stats.calls},
                                                       {"stores_elided", stats.stores_elided},
                                                       {"plan_hits", stats.plan_hits},
                                                       {"plan_misses", stats.plan_misses},
                                                       {"plan_evictions", stats.plan_evictions},
                                                       {"plan_bytes", stats.plan_bytes},
                                                       {"bytes_moved", stats.bytes_moved}};
    for (int i = 0; i < kFlushReasons; ++i) {
      rows.emplace_back(std::string("flushes.") + flush_reason_name(static_cast<FlushReason>(i)),
                        stats.flushes[static_cast<size_t>(i)]);
    }
    for (auto& row : hologram::device(checked(index)).backend().counters()) {
      rows.push_back(std::move(row));
    }
    return rows;
  });
  m.def("alias_as_cpu", [](const at::Tensor& tensor) {
    TORCH_CHECK_TYPE(tensor.device().type() == kHologram, "expected a hologram tensor, got one on ",
                     tensor.device());
    return shared_alias(tensor);
  });
  m.def("alias_as_vendor", [](const at::Tensor& tensor) {
    TORCH_CHECK_TYPE(tensor.device().type() == kHologram, "expected a hologram tensor, got one on ",
                     tensor.device());
    return vendor_alias(tensor);
  });
  m.def("alias_from_vendor", [](const at::Tensor& tensor, int64_t index) {
    return alias_of_vendor(tensor, checked(index));
  });
  m.def("values_on_cpu", [](const at::Tensor& tensor) { return values_on_cpu(tensor); });
  m.def("alias_from_cpu", [](const at::Tensor& tensor, int64_t index) {
    TORCH_CHECK_TYPE(tensor.device().is_cpu(), "expected a CPU tensor, got one on ",
                     tensor.device());
    return hologram_alias(tensor, checked(index));
  });

  m.def("dlpack_exchange_api", [] {
    auto* capsule = dlpack_exchange_api();
    if (capsule == nullptr) {
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(capsule);
  });
  m.def("rebind_storage_", [](const at::Tensor& tensor, const at::Tensor& theirs) {
    TORCH_CHECK_TYPE(
        tensor.device().type() == kHologram &&
            theirs.device() == target_of(tensor.device().index()).device,
        "expected a hologram tensor and one of the device that its kernels are on, got ",
        tensor.device(), " and ", theirs.device());
    TORCH_CHECK(tensor.storage().nbytes() == theirs.storage().nbytes(),
                "expected storages of one size, got ", tensor.storage().nbytes(), " and ",
                theirs.storage().nbytes(), " bytes");
    rebind_storage(tensor.storage().unsafeGetStorageImpl(),
                   c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                       theirs.storage().unsafeGetStorageImpl()));
  });
  // Whether another allocator than the device's owns the memory.
  m.def("is_foreign", [](const at::Tensor& tensor) {
    const Block* const block = settled_block(tensor.storage().unsafeGetStorageImpl());
    return block != nullptr && block->foreign;
  });
  cover_data_ptr(m);
  run_backward_on_calling_thread(m);
  m.def("run_before_exit", &run_before_exit, py::call_guard<py::gil_scoped_release>());
  m.def("stop_autograd_threads", &stop_autograd_threads, py::call_guard<py::gil_scoped_release>());
}

// Runs a call of the core and turns its errors into torch's and Python's.
template <class F>
auto or_python_error(F&& call) {
  try {
    return call();
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  } catch (const Error& error) {
    throw py::value_error(error.what());
  }
}

// What is read of an operation that could not be executed.
[[noreturn]] void raise_failure(const Failure& failure) {
  TORCH_CHECK_WITH(OutOfMemoryError, !failure.out_of_memory, failure.what);
  TORCH_CHECK_INDEX(!failure.out_of_range, failure.what);
  if (failure.of_device) raise_device_error_again(failure.what);
  TORCH_CHECK(false, failure.what);
}

// The address of a block that nobody uses any more.
void* address_of(MemoryPool& memory, const Allocation& taken) {
  try {
    taken.fence.wait();
  } catch (...) {
    memory.deallocate(taken);
    throw;
  }
  return taken.data;
}

// Memory without a tensor around it, and the addresses of the boundary pool.
void bind_memory(py::module_& m) {
  m.def("memory_allocate", [](int64_t index, size_t nbytes) {
    auto& memory = device_memory(checked(index));
    return or_python_error([&] {
      void* data = address_of(memory, memory.allocate(nbytes));
      if (memory_traced()) trace_allocation(static_cast<c10::DeviceIndex>(index), data);
      return reinterpret_cast<uintptr_t>(data);
    });
  });
  m.def("memory_release", [](uintptr_t address) {
    auto* const data = reinterpret_cast<void*>(address);
    auto* const owner = device_owning(data);
    TORCH_CHECK(owner != nullptr, "hologram: freed a pointer that is of no device: ", data);
    if (memory_traced() && owner->memory().block_capacity(data) != 0) {
      trace_free(static_cast<c10::DeviceIndex>(owner->index()), data);
    }
    owner->memory().release(data);
  });
  m.def("byte_to_class", [](uint8_t byte) { return byte_to_class(byte); });
  m.def("class_to_byte", [](int class_index) {
    return or_python_error([&] { return class_to_byte(class_index); });
  });
  m.def("boundary_offset", [](int64_t class_index, int64_t page, int64_t byte) {
    return or_python_error([&] { return boundary_offset(class_index, page, byte); });
  });
  m.def("boundary_address", [](size_t offset) {
    const auto address = or_python_error([&] { return boundary_address(offset); });
    return std::make_tuple(address.class_index, address.page, address.byte);
  });
  m.def("boundary_base", [](int64_t index) {
    return reinterpret_cast<uintptr_t>(device_memory(checked(index)).boundary_base());
  });
  m.def("boundary_classes", [](int64_t index) {
    std::vector<std::pair<int, int>> classes;
    for (const auto& usage : device_memory(checked(index)).boundary_classes()) {
      classes.emplace_back(usage.free_pages, usage.longest_free_run);
    }
    return classes;
  });
  m.def("boundary_allocate", [](int64_t index, int class_index, size_t nbytes) {
    auto& memory = device_memory(checked(index));
    return or_python_error([&] {
      const Allocation taken = memory.allocate_in_class(class_index, nbytes);
      return reinterpret_cast<uintptr_t>(address_of(memory, taken));
    });
  });
  m.def("boundary_tensor", [](int64_t index, int class_index, size_t nbytes) {
    const auto device = checked(index);
    auto storage =
        or_python_error([&] { return make_boundary_storage(class_index, nbytes, device); });
    return at::empty({0}, at::TensorOptions(c10::Device(kHologram, device)).dtype(at::kByte))
        .set_(std::move(storage), 0, {static_cast<int64_t>(nbytes)});
  });
  py::class_<HostView>(m, "HostView", py::buffer_protocol())
      .def(py::init<>())
      .def_buffer(&HostView::buffer);
  // Nanoseconds of making and dropping a storage and its twin, for the benchmark.
  m.def("storage_pair_nanoseconds", [](int64_t index, size_t nbytes, int64_t pairs) {
    const auto device = checked(index);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < pairs; ++i) {
      const auto storage = make_storage(nbytes, device);
      if (is_host_addressable(device)) twin(storage);
    }
    const std::chrono::duration<double, std::nano> elapsed =
        std::chrono::steady_clock::now() - start;
    return elapsed.count() / static_cast<double>(pairs);
  });
}

}  // namespace
}  // namespace hologram::aten

PYBIND11_MODULE(_C, m) {
  m.attr("graphs_take_events") = static_cast<bool>(HOLOGRAM_GRAPHS_TAKE_EVENTS);
  m.attr("clamp_shares_ties") = static_cast<bool>(HOLOGRAM_CLAMP_SHARES_TIES);
  hologram::install_fork_guard();
  hologram::Window::set_raise(&hologram::aten::raise_failure);
  hologram::set_raise(&hologram::aten::raise_device_error);
  hologram::MemoryPool::set_ask_others(&hologram::aten::empty_vendor_cache);
  hologram::aten::offer_idle_memory();
  hologram::aten::register_pointwise();
  hologram::aten::register_delegates();
  hologram::aten::guard_foreign_operators();
  hologram::aten::use_torch_threads();
  hologram::aten::register_profiler();
  hologram::aten::follow_vendor_streams();
  hologram::aten::bind(m);
  hologram::aten::bind_kernel_texts(m);
  hologram::aten::bind_memory(m);
  hologram::aten::bind_custom(m);
  hologram::aten::bind_measure(m);
  hologram::aten::bind_process_group(m);
}
