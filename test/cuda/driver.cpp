// A CUDA driver without a GPU, for tests of csrc/cuda: libcuda.so.1 with the functions that
// cuda/driver.h names, and no others. See docs/testing.md.
//
// Memory of a device faults where the host touches it, streams are threads that run late, and
// kernels run on the emulator of test/gpu. A call without what it has to have - a context of the
// right device, a handle that lives, memory that is allocated - ends the process, also where
// NVIDIA's driver would let it pass.
//
// HOLOGRAM_TEST_CUDA_DEVICES: how many there are (2). HOLOGRAM_TEST_CUDA_MEGABYTES: memory of each
// (8192). HOLOGRAM_TEST_CUDA_OFFSET: so many bytes behind a page it begins (0).
// HOLOGRAM_TEST_CUDA_CAPABILITY: their compute capability (90). HOLOGRAM_TEST_CUDA_DELAY: most
// microseconds that a stream waits before each task (50). HOLOGRAM_TEST_CUDA_SEED: of those delays.
// Faults: HOLOGRAM_TEST_CUDA_INIT, the status of cuInit; HOLOGRAM_TEST_CUDA_VERSION, that the
// driver says it has (13000); and the numbers, from 1, of what fails, HOLOGRAM_TEST_CUDA_NO_LAUNCH
// of launches that are refused, HOLOGRAM_TEST_CUDA_ILLEGAL_LAUNCH of those that go to an illegal
// address, after which the context is lost, HOLOGRAM_TEST_CUDA_NO_MEMORY of allocations on devices,
// HOLOGRAM_TEST_CUDA_NO_HOST_MEMORY of those of page-locked memory,
// HOLOGRAM_TEST_CUDA_NO_CAPTURE of captures that come to nothing, HOLOGRAM_TEST_CUDA_NO_INSTANCE of
// graphs for which there is no memory, HOLOGRAM_TEST_CUDA_NO_UPDATE of kernels that are not set,
// HOLOGRAM_TEST_CUDA_NO_REPLAY of launches of graphs for which there is no memory.
#include "cuda/driver.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../sim/environment.h"
#include "../sim/memory.h"
#include "device.h"
#include "hooks.h"
#include "host_memory.h"
#include "module.h"
#include "status.h"
#include "stream.h"

using namespace hologram::cuda;
using simulated_cuda::Device;
using simulated_cuda::Events;
using simulated_cuda::HostMemory;
using simulated_cuda::Place;

extern "C" {
#define HOLOGRAM_CUDA_DECLARE(symbol, name, arguments) \
  [[gnu::visibility("default")]] Status symbol arguments;
HOLOGRAM_CUDA_FUNCTIONS(HOLOGRAM_CUDA_DECLARE)
#undef HOLOGRAM_CUDA_DECLARE
}

// What a graph does, in this order: a kernel, or a task of another library's.
struct hologram::cuda::CUgraphNode_st {
  simulated_cuda::LaunchPointer launch;
  std::function<void()> task;
};

struct hologram::cuda::CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct hologram::cuda::CUgraphExec_st {
  Graph graph;
  std::vector<CUgraphNode_st> steps;
};

namespace {

// All that the backend looks for is defined, or the library cannot be linked.
[[gnu::used]] const void* const kAll[] = {
#define HOLOGRAM_CUDA_SYMBOL(symbol, name, arguments) reinterpret_cast<const void*>(&symbol),
    HOLOGRAM_CUDA_FUNCTIONS(HOLOGRAM_CUDA_SYMBOL)
#undef HOLOGRAM_CUDA_SYMBOL
};

// The process that initialised the driver. Its threads are not there in a child.
std::atomic<pid_t> owner{0};

// What the backend ought not to have called so. It may look away, as destructors do.
Status checked(Status status, const char* function) {
  if (status == kInvalidValue || status == kInvalidContext || status == kInvalidHandle) {
    std::fprintf(stderr, "simulated CUDA driver: %s: %s\n", function, text_of(status)->text);
    std::abort();
  }
  return status;
}

// How often each function has been called.
class Calls {
 public:
  void add(const char* function) {
    const std::lock_guard guard(mutex_);
    ++all_[function];
  }
  uint64_t of(const char* function) {
    const std::lock_guard guard(mutex_);
    return all_[function];
  }

 private:
  std::mutex mutex_;
  std::map<std::string, uint64_t> all_;
};
Calls& calls() {
  static auto& its = *new Calls;
  return its;
}

// `function` is the one of the driver that calls this.
Status with_driver(auto&& call, const char* function = __builtin_FUNCTION()) {
  if (owner.load() != ::getpid()) return kNotInitialized;
  calls().add(function);
  return checked(call(), function);
}

// A call that needs a context: with its device. What a kernel has done to it every call says.
Status in_context(auto&& call, const char* function = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        Device* const device = simulated_cuda::current_device();
        if (device == nullptr) return kInvalidContext;
        if (device->lost() != kSuccess) return device->lost();
        return call(*device);
      },
      function);
}

// Of the calling thread.
thread_local CaptureMode capture_mode = CaptureMode::global;

// A call that NVIDIA's driver refuses, and that ruins the graph, where somebody captures one.
Status aside_of_captures(auto&& call, const char* function = __builtin_FUNCTION()) {
  return in_context(
      [&](Device& device) {
        return capture_mode == CaptureMode::relaxed ? call(device) : kInvalidValue;
      },
      function);
}

// The same with a stream of the context.
Status on_stream(Stream handle, auto&& call, const char* function = __builtin_FUNCTION()) {
  return in_context(
      [&](Device& device) {
        const auto stream = device.find(handle);
        return stream != nullptr ? call(device, *stream) : kInvalidHandle;
      },
      function);
}

// The same with an event of the context.
Status with_event(Event handle, auto&& call, const char* function = __builtin_FUNCTION()) {
  return in_context(
      [&](Device& device) {
        const simulated_cuda::Event event = Events::instance().find(handle);
        if (event.device == nullptr) return kInvalidHandle;
        if (event.device != &device) return kInvalidContext;
        return call(device, event);
      },
      function);
}

Status of_device(DeviceNumber number, auto&& call, const char* function = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        Device* const device = simulated_cuda::device(number);
        return device != nullptr ? call(*device) : kInvalidValue;
      },
      function);
}

char* bytes_of(Address address) {
  return static_cast<char*>(sim::Memory::bytes_of(reinterpret_cast<void*>(address)));
}

bool is_host(const void* memory) {
  return !sim::Memory::instance().contains(memory);
}

// Those that there are, of all devices.
template <class T>
class Living {
 public:
  template <class... Parts>
  T* make(Parts... parts) {
    const std::lock_guard guard(mutex_);
    return all_.emplace_back(new T{std::move(parts)...}).get();
  }
  bool holds(const T* one) {
    const std::lock_guard guard(mutex_);
    return std::ranges::any_of(all_, [&](const auto& its) { return its.get() == one; });
  }
  bool remove(const T* one) {
    const std::lock_guard guard(mutex_);
    return std::erase_if(all_, [&](const auto& its) { return its.get() == one; }) != 0;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> all_;
};
auto& graphs() {
  static auto& its = *new Living<CUgraph_st>;
  return its;
}
auto& executables() {
  static auto& its = *new Living<CUgraphExec_st>;
  return its;
}

Status make_launch(Device& device, const KernelNode& its, simulated_cuda::LaunchPointer& launch) {
  if (its.shared_bytes != 0 || its.extra != nullptr) return kInvalidValue;
  const simulated_cuda::LaunchShape shape{{its.blocks, its.blocks_y, its.blocks_z},
                                          {its.threads, its.threads_y, its.threads_z}};
  return simulated_cuda::make_launch(device, its.function, shape, its.parameters, launch);
}

GraphNode add_node(CUgraph_st& graph, CUgraphNode_st node) {
  return graph.nodes.emplace_back(std::make_unique<CUgraphNode_st>(std::move(node))).get();
}

bool is_one_of(const char* faults, int number) {
  return sim::numbers(faults).contains(number);
}

template <class T>
Status fill(Device& device, simulated_cuda::Stream& stream, Address to, T value, size_t count) {
  if (count == 0) return kSuccess;
  if (to % sizeof(T) != 0 || !device.holds(to, count * sizeof(T))) return kInvalidValue;
  device.push(stream, [=] {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(bytes_of(to) + i * sizeof(T), &value, sizeof(T));
    }
  });
  return kSuccess;
}

Status copy(Device& device, simulated_cuda::Stream& stream, void* to, const void* from,
            size_t bytes) {
  device.push(stream, [=] { std::memcpy(to, from, bytes); });
  return kSuccess;
}

}  // namespace

// For tests: of a function of the driver, or "pageable", copies to devices from memory that is not
// page-locked.
extern "C" [[gnu::visibility("default")]] uint64_t simulated_cuda_calls(const char* function) {
  return calls().of(function);
}

// The driver and its devices.

Status cuInit(unsigned) {
  const Status status = sim::number("HOLOGRAM_TEST_CUDA_INIT", kSuccess);
  if (status == kSuccess) owner.store(::getpid());
  return status;
}

Status cuDriverGetVersion(int* version) {
  *version = sim::number("HOLOGRAM_TEST_CUDA_VERSION", 13000);
  return kSuccess;
}

Status cuGetErrorName(Status status, const char** name) {
  const StatusText* const its = text_of(status);
  *name = its != nullptr ? its->name : nullptr;
  return its != nullptr ? kSuccess : kInvalidValue;
}

Status cuGetErrorString(Status status, const char** text) {
  const StatusText* const its = text_of(status);
  *text = its != nullptr ? its->text : nullptr;
  return its != nullptr ? kSuccess : kInvalidValue;
}

Status cuDeviceGetCount(int* count) {
  return with_driver([&] {
    *count = simulated_cuda::device_count();
    return kSuccess;
  });
}

Status cuDeviceGet(DeviceNumber* number, int ordinal) {
  return of_device(ordinal, [&](Device&) {
    *number = ordinal;
    return kSuccess;
  });
}

Status cuDeviceGetName(char* name, int length, DeviceNumber number) {
  return of_device(number, [&](Device&) {
    const std::string its = "simulated GPU " + std::to_string(number);
    std::strncpy(name, its.c_str(), static_cast<size_t>(length));
    return kSuccess;
  });
}

Status cuDeviceTotalMem_v2(size_t* bytes, DeviceNumber number) {
  return of_device(number, [&](Device& device) {
    *bytes = device.total_memory();
    return kSuccess;
  });
}

Status cuDeviceGetAttribute(int* value, Attribute which, DeviceNumber number) {
  return of_device(number, [&](Device&) {
    const int capability = sim::number("HOLOGRAM_TEST_CUDA_CAPABILITY", 90);
    switch (which) {
      case Attribute::multiprocessors: *value = 4; return kSuccess;
      case Attribute::l2_cache_bytes: *value = 1 << 20; return kSuccess;
      case Attribute::major: *value = capability / 10; return kSuccess;
      case Attribute::minor: *value = capability % 10; return kSuccess;
    }
    return kInvalidValue;
  });
}

// Contexts.

Status cuDevicePrimaryCtxRetain(Context* context, DeviceNumber number) {
  return of_device(number, [&](Device& device) {
    *context = &device;
    return device.lost();
  });
}

Status cuCtxGetCurrent(Context* context) {
  return with_driver([&] {
    *context = simulated_cuda::current_device();
    return kSuccess;
  });
}

Status cuCtxSetCurrent(Context context) {
  return with_driver([&] {
    if (context == nullptr) return kInvalidContext;
    auto& contexts = simulated_cuda::contexts();
    if (!contexts.empty()) contexts.pop_back();
    contexts.push_back(context);
    return kSuccess;
  });
}

Status cuCtxPushCurrent_v2(Context context) {
  return with_driver([&] {
    if (context == nullptr) return kInvalidContext;
    simulated_cuda::contexts().push_back(context);
    return kSuccess;
  });
}

Status cuCtxPopCurrent_v2(Context* context) {
  return with_driver([&] {
    auto& contexts = simulated_cuda::contexts();
    if (contexts.empty()) return kInvalidContext;
    *context = contexts.back();
    contexts.pop_back();
    return kSuccess;
  });
}

Status cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return in_context([&](Device&) {
    *least = 0;
    *greatest = -5;
    return kSuccess;
  });
}

// Memory.

Status cuMemGetInfo_v2(size_t* free, size_t* total) {
  return in_context([&](Device& device) {
    *free = device.free_memory();
    *total = device.total_memory();
    return kSuccess;
  });
}

Status cuMemAlloc_v2(Address* memory, size_t bytes) {
  return aside_of_captures([&](Device& device) { return device.allocate(memory, bytes); });
}

Status cuMemFree_v2(Address memory) {
  return aside_of_captures([&](Device& device) { return device.free(memory); });
}

Status cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  return aside_of_captures([&](Device&) {
    if (flags != kHostMemoryPortable) return kInvalidValue;
    static std::atomic<int> number{0};
    if (is_one_of("HOLOGRAM_TEST_CUDA_NO_HOST_MEMORY", ++number)) return kOutOfMemory;
    return HostMemory::instance().allocate(memory, bytes);
  });
}

Status cuMemFreeHost(void* memory) {
  return aside_of_captures([&](Device&) { return HostMemory::instance().free(memory); });
}

Status cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    if (bytes == 0) return kSuccess;
    if (!device.holds(to, bytes) || !is_host(from)) return kInvalidValue;
    if (HostMemory::instance().holds(from)) {
      device.push(its, [&device, to, from, bytes] {
        std::memcpy(bytes_of(to), from, bytes);
        device.note_copy(to, bytes);
      });
      return kSuccess;
    }
    // What is not page-locked has been read on return, and the stream has come that far.
    calls().add("pageable");
    its.thread.wait(its.thread.last());
    const auto* const start = static_cast<const char*>(from);
    device.push(its, [&device, to, kept = std::vector<char>(start, start + bytes)] {
      std::memcpy(bytes_of(to), kept.data(), kept.size());
      device.note_copy(to, kept.size());
    });
    return kSuccess;
  });
}

Status cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    if (bytes == 0) return kSuccess;
    if (!device.holds(from, bytes) || !is_host(to)) return kInvalidValue;
    return copy(device, its, to, bytes_of(from), bytes);
  });
}

Status cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    if (bytes == 0) return kSuccess;
    if (!device.holds(from, bytes) || !device.holds(to, bytes)) return kInvalidValue;
    if (from < to + bytes && to < from + bytes) return kInvalidValue;  // they overlap
    return copy(device, its, bytes_of(to), bytes_of(from), bytes);
  });
}

Status cuMemcpyPeerAsync(Address to, Context to_context, Address from, Context from_context,
                         size_t bytes, Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    auto* const target = static_cast<Device*>(to_context);
    auto* const source = static_cast<Device*>(from_context);
    if (target == nullptr || source == nullptr) return kInvalidContext;
    if (source->lost() != kSuccess) return source->lost();
    if (bytes == 0) return kSuccess;
    if (!source->holds(from, bytes) || !target->holds(to, bytes)) return kInvalidValue;
    return copy(device, its, bytes_of(to), bytes_of(from), bytes);
  });
}

Status cuDeviceCanAccessPeer(int* can, DeviceNumber number, DeviceNumber peer) {
  return of_device(number, [&](Device&) {
    if (simulated_cuda::device(peer) == nullptr) return kInvalidValue;
    *can = number != peer;
    return kSuccess;
  });
}

Status cuCtxEnablePeerAccess(Context peer, unsigned flags) {
  return in_context([&](Device& device) {
    if (peer == nullptr || flags != 0) return kInvalidValue;
    return device.enable(static_cast<Device*>(peer)->ordinal) ? kSuccess : kPeerAccessIsEnabled;
  });
}

Status cuMemsetD8Async(Address to, unsigned char value, size_t count, Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    return fill(device, its, to, value, count);
  });
}

Status cuMemsetD16Async(Address to, unsigned short value, size_t count, Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    return fill(device, its, to, value, count);
  });
}

Status cuMemsetD32Async(Address to, unsigned value, size_t count, Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    return fill(device, its, to, value, count);
  });
}

// Streams and events.

Status cuStreamCreateWithPriority(Stream* stream, unsigned flags, int) {
  return in_context([&](Device& device) {
    // The default stream waits for no other one here.
    if (flags != kStreamNonBlocking) return kInvalidValue;
    *stream = device.create_stream();
    return kSuccess;
  });
}

Status cuStreamDestroy_v2(Stream stream) {
  return in_context([&](Device& device) { return device.destroy_stream(stream); });
}

Status cuStreamSynchronize(Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    its.thread.wait(its.thread.last());
    return device.lost();
  });
}

// The event may be another device's.
Status cuStreamWaitEvent(Stream stream, Event handle, unsigned) {
  return on_stream(stream, [&](Device&, simulated_cuda::Stream& its) {
    const simulated_cuda::Event event = Events::instance().find(handle);
    if (event.device == nullptr) return kInvalidHandle;
    if (event.place != nullptr) its.thread.push([place = event.place] { place->wait(); });
    return kSuccess;
  });
}

Status cuStreamIsCapturing(Stream stream, CaptureStatus* status) {
  return on_stream(stream, [&](Device&, simulated_cuda::Stream& its) {
    *status = its.captured || its.graph != nullptr ? CaptureStatus::active : CaptureStatus::none;
    return kSuccess;
  });
}

Status cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  return with_driver([&] {
    std::swap(*mode, capture_mode);
    return kSuccess;
  });
}

Status cuEventCreate(Event* event, unsigned flags) {
  return in_context([&](Device& device) {
    if (flags != kEventWithTiming && flags != kEventWithoutTiming) return kInvalidValue;
    *event = Events::instance().create(&device, flags == kEventWithTiming);
    return kSuccess;
  });
}

Status cuEventDestroy_v2(Event handle) {
  return with_event(handle, [&](Device&, const simulated_cuda::Event&) {
    Events::instance().destroy(handle);
    return kSuccess;
  });
}

Status cuEventRecord(Event handle, Stream stream) {
  return with_event(handle, [&](Device& device, const simulated_cuda::Event&) {
    const auto its = device.find(stream);
    if (its == nullptr) return kInvalidHandle;
    const auto place = std::make_shared<Place>();
    Events::instance().set_place(handle, place);
    its->thread.push([place] { place->reach(); });
    return kSuccess;
  });
}

Status cuEventQuery(Event handle) {
  return with_event(handle, [&](Device&, const simulated_cuda::Event& event) {
    if (capture_mode != CaptureMode::relaxed) return kInvalidValue;
    return event.place == nullptr || event.place->reached() ? kSuccess : kNotReady;
  });
}

Status cuEventSynchronize(Event handle) {
  return with_event(handle, [&](Device& device, const simulated_cuda::Event& event) {
    if (event.place != nullptr) event.place->wait();
    return device.lost();
  });
}

Status cuEventElapsedTime(float* milliseconds, Event from, Event to) {
  return with_event(from, [&](Device&, const simulated_cuda::Event& before) {
    return with_event(to, [&](Device&, const simulated_cuda::Event& after) {
      if (!before.takes_time || !after.takes_time) return kInvalidHandle;
      if (before.place == nullptr || after.place == nullptr) return kInvalidHandle;
      if (!before.place->reached() || !after.place->reached()) return kNotReady;
      *milliseconds = after.place->milliseconds_since(*before.place);
      return kSuccess;
    });
  });
}

// Kernels.

Status cuModuleLoadData(Module* module, const void* image) {
  return aside_of_captures([&](Device& device) {
    return simulated_cuda::load_module(device, static_cast<const char*>(image), module);
  });
}

Status cuModuleGetFunction(Function* function, Module module, const char* name) {
  return in_context([&](Device& device) {
    return simulated_cuda::module_function(device, module, name, function);
  });
}

Status cuLaunchKernel(Function function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                      unsigned threads, unsigned threads_y, unsigned threads_z,
                      unsigned shared_bytes, Stream stream, void** parameters, void** extra) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    simulated_cuda::LaunchPointer launch;
    const Status status = make_launch(device,
                                      {function, blocks, blocks_y, blocks_z, threads, threads_y,
                                       threads_z, shared_bytes, parameters, extra},
                                      launch);
    if (status != kSuccess) return status;
    if (its.graph == nullptr) return simulated_cuda::push_launch(device, launch, its);
    add_node(*its.graph, {launch, nullptr});
    return kSuccess;
  });
}

// Graphs, of which each node comes behind the one before.

Status cuStreamBeginCapture_v2(Stream stream, CaptureMode mode) {
  return on_stream(stream, [&](Device&, simulated_cuda::Stream& its) {
    if (stream == nullptr || its.graph != nullptr || mode != CaptureMode::relaxed) {
      return kInvalidValue;
    }
    its.graph = graphs().make();
    return kSuccess;
  });
}

Status cuStreamGetCaptureInfo_v2(Stream stream, CaptureStatus* status, uint64_t* id, Graph* graph,
                                 const GraphNode** last, size_t* count) {
  return on_stream(stream, [&](Device&, simulated_cuda::Stream& its) {
    if (its.graph == nullptr) return kInvalidValue;
    thread_local GraphNode node;
    *status = CaptureStatus::active;
    *id = 1;
    *graph = its.graph;
    *count = its.graph->nodes.empty() ? 0 : 1;
    if (*count != 0) node = its.graph->nodes.back().get();
    *last = &node;
    return kSuccess;
  });
}

Status cuStreamEndCapture(Stream stream, Graph* graph) {
  return on_stream(stream, [&](Device&, simulated_cuda::Stream& its) {
    if (its.graph == nullptr) return kInvalidValue;
    *graph = std::exchange(its.graph, nullptr);
    static std::atomic<int> captures{0};
    if (!is_one_of("HOLOGRAM_TEST_CUDA_NO_CAPTURE", ++captures)) return kSuccess;
    graphs().remove(std::exchange(*graph, nullptr));
    return kCaptureInvalidated;
  });
}

Status cuGraphCreate(Graph* graph, unsigned flags) {
  return in_context([&](Device&) {
    if (flags != 0) return kInvalidValue;
    *graph = graphs().make();
    return kSuccess;
  });
}

Status cuGraphDestroy(Graph graph) {
  return with_driver([&] { return graphs().remove(graph) ? kSuccess : kInvalidHandle; });
}

Status cuGraphAddKernelNode(GraphNode* node, Graph graph, const GraphNode*, size_t count,
                            const KernelNode* kernel) {
  return in_context([&](Device& device) {
    if (count != 0 || !graphs().holds(graph)) return kInvalidValue;
    if (!graph->nodes.empty()) return kInvalidValue;  // it would come behind nothing
    simulated_cuda::LaunchPointer launch;
    const Status status = make_launch(device, *kernel, launch);
    if (status == kSuccess) *node = add_node(*graph, {launch, nullptr});
    return status;
  });
}

Status cuGraphInstantiate_v2(GraphExecutable* executable, Graph graph, GraphNode*, char*, size_t) {
  return aside_of_captures([&](Device&) {
    if (!graphs().holds(graph) || graph->nodes.empty()) return kInvalidValue;
    static std::atomic<int> instances{0};
    if (is_one_of("HOLOGRAM_TEST_CUDA_NO_INSTANCE", ++instances)) return kOutOfMemory;
    std::vector<CUgraphNode_st> steps;
    for (const auto& its : graph->nodes) steps.push_back(*its);
    *executable = executables().make(graph, std::move(steps));
    return kSuccess;
  });
}

Status cuGraphExecDestroy(GraphExecutable executable) {
  return with_driver([&] { return executables().remove(executable) ? kSuccess : kInvalidHandle; });
}

// The node is one of the graph that it was made of, which lives.
Status cuGraphExecKernelNodeSetParams(GraphExecutable executable, GraphNode node,
                                      const KernelNode* kernel) {
  return in_context([&](Device& device) {
    if (!executables().holds(executable)) return kInvalidHandle;
    if (!graphs().holds(executable->graph)) return kInvalidValue;
    const auto& nodes = executable->graph->nodes;
    const auto found = std::ranges::find(nodes, node, [](const auto& its) { return its.get(); });
    if (found == nodes.end() || (*found)->launch == nullptr) return kInvalidValue;
    static std::atomic<int> updates{0};
    if (is_one_of("HOLOGRAM_TEST_CUDA_NO_UPDATE", ++updates)) return kUpdateRefused;
    auto& step = executable->steps[static_cast<size_t>(found - nodes.begin())];
    return make_launch(device, *kernel, step.launch);
  });
}

Status cuGraphLaunch(GraphExecutable executable, Stream stream) {
  return on_stream(stream, [&](Device& device, simulated_cuda::Stream& its) {
    if (!executables().holds(executable)) return kInvalidHandle;
    static std::atomic<int> replays{0};
    if (is_one_of("HOLOGRAM_TEST_CUDA_NO_REPLAY", ++replays)) return kOutOfMemory;
    for (const CUgraphNode_st& step : executable->steps) {
      if (step.launch == nullptr) {
        its.thread.push(step.task);
      } else if (const Status status = simulated_cuda::push_launch(device, step.launch, its);
                 status != kSuccess) {
        return status;
      }
    }
    return kSuccess;
  });
}

// Nothing is captured, but the stream is said to be from now on, or not to be any more, for tests.
extern "C" [[gnu::visibility("default")]] int simulated_cuda_capture(Stream stream, bool on) {
  return on_stream(stream, [&](Device&, simulated_cuda::Stream& its) {
    its.captured = on;
    return kSuccess;
  });
}

// How many events there are, for tests.
extern "C" [[gnu::visibility("default")]] int simulated_cuda_events() {
  return Events::instance().count();
}

// For other libraries (hooks.h).

[[gnu::visibility("default")]] Status simulated_cuda_push(Stream stream, void (*task)(const void*),
                                                          const void* data,
                                                          void (*forget)(const void*)) {
  const std::shared_ptr<const void> kept(data, forget);
  return on_stream(stream, [&](Device&, simulated_cuda::Stream& its) {
    const auto run = [task, kept] { task(kept.get()); };
    if (its.graph != nullptr) {
      add_node(*its.graph, {nullptr, run});
    } else {
      its.thread.push(run);
    }
    return kSuccess;
  });
}

[[gnu::visibility("default")]] bool simulated_cuda_holds(const void* start, size_t bytes) {
  Device* const device = simulated_cuda::current_device();
  return device != nullptr && device->holds(reinterpret_cast<Address>(start), bytes);
}

[[gnu::visibility("default")]] void* simulated_cuda_bytes(const void* address) {
  return sim::Memory::bytes_of(address);
}
