#include "aten/memory_trace.h"

#include <pybind11/pybind11.h>

#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atlas/memory_stats.h"
#include "atlas/stream.h"

namespace py = pybind11;

namespace torch {
// Of torch/csrc/profiler/python/combined_traceback.h, which includes a library that torch does not
// ship.
std::vector<py::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
}  // namespace torch

namespace hologram::aten {
namespace {

using Frames = std::shared_ptr<torch::CapturedTraceback>;

enum class Context : uint8_t { none, state, alloc, all };

struct Event {
  const char* action;
  uintptr_t address;
  size_t size;
  StreamId stream;
  int64_t microseconds;  // since the epoch
  Frames frames;
  size_t free_bytes = 0;  // of the device, when memory ran out
};

// Leaked: memory is freed after static destruction, too.
struct History {
  std::mutex mutex;
  bool events_too = false;
  bool cpp = false;
  Context context = Context::none;
  size_t most_events = 0;
  std::map<c10::DeviceIndex, std::deque<Event>> events;
  std::unordered_map<uintptr_t, Frames> live;  // by address
};

History& history() {
  static auto* history = new History();
  return *history;
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void report_to_profiler(c10::DeviceIndex device, const void* data, int64_t bytes) {
  const MemoryStats stats = device_memory(device).stats();
  c10::reportMemoryUsageToProfiler(
      const_cast<void*>(data), bytes, static_cast<size_t>(stats.allocated_bytes.current),
      static_cast<size_t>(stats.reserved_bytes.current), c10::Device(kHologram, device));
}

// Takes the interpreter's lock, so it is called without ours.
Frames frames_for(Context least) {
  auto& kept = history();
  bool cpp;
  {
    const std::lock_guard lock(kept.mutex);
    if (kept.context < least) return nullptr;
    cpp = kept.cpp;
  }
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, cpp);
}

// With the lock of the history held.
void append(History& kept, c10::DeviceIndex device, Event event) {
  if (!kept.events_too) return;
  auto& events = kept.events[device];
  events.push_back(std::move(event));
  while (events.size() > kept.most_events) events.pop_front();
}

Context context_named(const std::optional<std::string>& name) {
  if (!name) return Context::none;
  if (*name == "state") return Context::state;
  if (*name == "alloc") return Context::alloc;
  TORCH_CHECK_VALUE(*name == "all", "expected context to be None, 'state', 'alloc' or 'all', got '",
                    *name, "'");
  return Context::all;
}

}  // namespace

void trace_allocation(c10::DeviceIndex device, const void* data) {
  if (data == nullptr) return;
  const size_t size = device_memory(device).block_capacity(data);
  report_to_profiler(device, data, static_cast<int64_t>(size));
  if (!memory_history_on.load(std::memory_order_relaxed)) return;
  Frames frames = frames_for(Context::state);
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto& kept = history();
  const std::lock_guard lock(kept.mutex);
  append(kept, device,
         {"alloc", address, size, current_stream(device), now(),
          kept.context >= Context::alloc ? frames : nullptr});
  if (frames) kept.live.insert_or_assign(address, std::move(frames));
}

void trace_free(c10::DeviceIndex device, const void* data) {
  if (data == nullptr) return;
  const size_t size = device_memory(device).block_capacity(data);
  report_to_profiler(device, data, -static_cast<int64_t>(size));
  if (!memory_history_on.load(std::memory_order_relaxed)) return;
  Frames frames = frames_for(Context::all);
  const auto address = reinterpret_cast<uintptr_t>(data);
  Frames dropped;  // after the lock is given back: frames are Python's
  auto& kept = history();
  const std::lock_guard lock(kept.mutex);
  const StreamId stream = current_stream(device);
  append(kept, device, {"free_requested", address, size, stream, now(), frames});
  append(kept, device, {"free_completed", address, size, stream, now(), std::move(frames)});
  if (const auto found = kept.live.find(address); found != kept.live.end()) {
    dropped = std::move(found->second);
    kept.live.erase(found);
  }
}

void trace_out_of_memory(c10::DeviceIndex device, size_t nbytes) {
  const MemoryStats stats = device_memory(device).stats();
  c10::reportOutOfMemoryToProfiler(
      static_cast<int64_t>(nbytes), static_cast<size_t>(stats.allocated_bytes.current),
      static_cast<size_t>(stats.reserved_bytes.current), c10::Device(kHologram, device));
  if (!memory_history_on.load(std::memory_order_relaxed)) return;
  Frames frames = frames_for(Context::alloc);
  const size_t free_bytes = device_memory(device).info().first;
  auto& kept = history();
  const std::lock_guard lock(kept.mutex);
  append(kept, device,
         {"oom", 0, nbytes, current_stream(device), now(), std::move(frames), free_bytes});
}

void record_memory_history(const std::optional<std::string>& enabled,
                           const std::optional<std::string>& context, bool cpp, size_t most_events,
                           bool clear) {
  TORCH_CHECK_VALUE(!enabled || *enabled == "state" || *enabled == "all",
                    "expected enabled to be None, 'state' or 'all', got '", *enabled, "'");
  const Context wanted = context_named(context);
  auto& kept = history();
  std::map<c10::DeviceIndex, std::deque<Event>> events;  // dropped without the lock
  std::unordered_map<uintptr_t, Frames> live;
  const std::lock_guard lock(kept.mutex);
  if (clear || !enabled) events.swap(kept.events);
  if (!enabled) live.swap(kept.live);
  kept.events_too = enabled == "all";
  kept.context = enabled ? wanted : Context::none;
  kept.cpp = cpp;
  kept.most_events = most_events;
  memory_history_on.store(enabled.has_value(), std::memory_order_relaxed);
}

namespace {

// The frames of many tracebacks as Python's dictionaries, each traceback once.
std::vector<py::object> symbolize(const std::vector<Frames>& all) {
  std::vector<torch::CapturedTraceback*> unique;
  std::unordered_map<torch::CapturedTraceback*, size_t> places;
  for (const Frames& frames : all) {
    if (frames && places.try_emplace(frames.get(), unique.size()).second) {
      unique.push_back(frames.get());
    }
  }
  const auto symbolized = torch::py_symbolize(unique);
  std::vector<py::object> result;
  for (const Frames& frames : all) {
    result.push_back(frames ? symbolized[places[frames.get()]] : py::list());
  }
  return result;
}

}  // namespace

py::list memory_history(c10::DeviceIndex device) {
  std::deque<Event> events;
  {
    const py::gil_scoped_release release;
    auto& kept = history();
    const std::lock_guard lock(kept.mutex);
    if (const auto found = kept.events.find(device); found != kept.events.end()) {
      events = found->second;
    }
  }
  std::vector<Frames> all;
  for (const Event& event : events) all.push_back(event.frames);
  const auto frames = symbolize(all);
  py::list rows;
  for (size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    py::dict row;
    row["action"] = event.action;
    if (event.address != 0) {
      row["addr"] = event.address;
    } else {
      row["device_free"] = event.free_bytes;
    }
    row["size"] = event.size;
    row["stream"] = event.stream;
    row["time_us"] = event.microseconds;
    row["compile_context"] = "";
    row["user_metadata"] = "";
    row["pool_id"] = py::make_tuple(0, 0);
    row["frames"] = frames[i];
    rows.append(row);
  }
  return rows;
}

void add_frames(const std::vector<py::dict>& blocks) {
  std::vector<uintptr_t> addresses;
  for (const py::dict& block : blocks) addresses.push_back(block["address"].cast<uintptr_t>());
  std::vector<Frames> all(blocks.size());
  {
    const py::gil_scoped_release release;
    auto& kept = history();
    const std::lock_guard lock(kept.mutex);
    for (size_t i = 0; i < all.size(); ++i) {
      if (const auto found = kept.live.find(addresses[i]); found != kept.live.end()) {
        all[i] = found->second;
      }
    }
  }
  const auto frames = symbolize(all);
  for (size_t i = 0; i < all.size(); ++i) blocks[i]["frames"] = frames[i];
}

}  // namespace hologram::aten
