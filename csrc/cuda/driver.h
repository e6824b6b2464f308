// The functions of NVIDIA's driver that the backend calls, found in its library when a device is
// first asked for: a machine without it loads the package all the same, and no header of CUDA's is
// needed to build it.
//
// Types, values and versions of functions are those of cuda.h, whose interface is binary
// compatible from driver to driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hologram::cuda {

using Status = int;  // CUresult
inline constexpr Status kSuccess = 0;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kNoDevice = 100;
inline constexpr Status kNotFound = 500;
inline constexpr Status kNotReady = 600;
inline constexpr Status kPeerAccessIsEnabled = 704;
inline constexpr Status kTooManyPeers = 711;
inline constexpr Status kCannotBeCaptured = 900;

using DeviceNumber = int;          // CUdevice
using Address = uint64_t;          // CUdeviceptr
using Context = struct CUctx_st*;  // CUcontext and so on
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Graph = struct CUgraph_st*;
using GraphNode = struct CUgraphNode_st*;
using GraphExecutable = struct CUgraphExec_st*;

enum class Attribute : int {
  multiprocessors = 16,
  l2_cache_bytes = 38,
  major = 75,
  minor = 76,
};
// Of cuStreamCreate, cuEventCreate and cuMemHostAlloc.
inline constexpr unsigned kEventWithoutTiming = 2;
inline constexpr unsigned kEventWithTiming = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostMemoryPortable = 1;

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v1
  Function function;
  unsigned blocks, blocks_y, blocks_z, threads, threads_y, threads_z, shared_bytes;
  void** parameters;
  void** extra;
};

enum class CaptureMode : int { global = 0, thread_local_ = 1, relaxed = 2 };
enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };

// name in the library, name here, arguments
#define HOLOGRAM_CUDA_FUNCTIONS(_)                                                                 \
  _(cuInit, init, (unsigned flags))                                                                \
  _(cuDriverGetVersion, driver_version, (int* version))                                            \
  _(cuGetErrorName, error_name, (Status status, const char** name))                                \
  _(cuGetErrorString, error_string, (Status status, const char** text))                            \
  _(cuDeviceGetCount, device_count, (int* count))                                                  \
  _(cuDeviceGet, device_get, (DeviceNumber * device, int ordinal))                                 \
  _(cuDeviceGetName, device_name, (char* name, int length, DeviceNumber device))                   \
  _(cuDeviceTotalMem_v2, device_memory, (size_t * bytes, DeviceNumber device))                     \
  _(cuDeviceGetAttribute, device_attribute, (int* value, Attribute which, DeviceNumber device))    \
  _(cuDevicePrimaryCtxRetain, retain_context, (Context * context, DeviceNumber device))            \
  _(cuCtxGetCurrent, current_context, (Context * context))                                         \
  _(cuCtxSetCurrent, set_context, (Context context))                                               \
  _(cuCtxPushCurrent_v2, push_context, (Context context))                                          \
  _(cuCtxPopCurrent_v2, pop_context, (Context * context))                                          \
  _(cuCtxGetStreamPriorityRange, stream_priorities, (int* least, int* greatest))                   \
  _(cuMemGetInfo_v2, memory_info, (size_t * free, size_t * total))                                 \
  _(cuMemAlloc_v2, allocate, (Address * memory, size_t bytes))                                     \
  _(cuMemFree_v2, free, (Address memory))                                                          \
  _(cuMemHostAlloc, allocate_host, (void** memory, size_t bytes, unsigned flags))                  \
  _(cuMemFreeHost, free_host, (void* memory))                                                      \
  _(cuMemcpyHtoDAsync_v2, copy_to_device,                                                          \
    (Address to, const void* from, size_t bytes, Stream stream))                                   \
  _(cuMemcpyDtoHAsync_v2, copy_to_host, (void* to, Address from, size_t bytes, Stream stream))     \
  _(cuMemcpyDtoDAsync_v2, copy_on_device, (Address to, Address from, size_t bytes, Stream stream)) \
  _(cuMemcpyPeerAsync, copy_from_peer,                                                             \
    (Address to, Context to_context, Address from, Context from_context, size_t bytes,             \
     Stream stream))                                                                               \
  _(cuDeviceCanAccessPeer, can_access_peer, (int* can, DeviceNumber device, DeviceNumber peer))    \
  _(cuCtxEnablePeerAccess, enable_peer_access, (Context peer, unsigned flags))                     \
  _(cuMemsetD8Async, fill_8, (Address to, unsigned char value, size_t count, Stream stream))       \
  _(cuMemsetD16Async, fill_16, (Address to, unsigned short value, size_t count, Stream stream))    \
  _(cuMemsetD32Async, fill_32, (Address to, unsigned value, size_t count, Stream stream))          \
  _(cuStreamCreateWithPriority, create_stream, (Stream * stream, unsigned flags, int priority))    \
  _(cuStreamDestroy_v2, destroy_stream, (Stream stream))                                           \
  _(cuStreamSynchronize, synchronize_stream, (Stream stream))                                      \
  _(cuStreamWaitEvent, wait_for_event, (Stream stream, Event event, unsigned flags))               \
  _(cuStreamIsCapturing, stream_capturing, (Stream stream, CaptureStatus * status))                \
  _(cuStreamBeginCapture_v2, begin_capture, (Stream stream, CaptureMode mode))                     \
  _(cuStreamEndCapture, end_capture, (Stream stream, Graph * graph))                               \
  _(cuStreamGetCaptureInfo_v2, capture_info,                                                       \
    (Stream stream, CaptureStatus * status, uint64_t * id, Graph * graph, const GraphNode** last,  \
     size_t* count))                                                                               \
  _(cuThreadExchangeStreamCaptureMode, exchange_capture_mode, (CaptureMode * mode))                \
  _(cuEventCreate, create_event, (Event * event, unsigned flags))                                  \
  _(cuEventDestroy_v2, destroy_event, (Event event))                                               \
  _(cuEventRecord, record_event, (Event event, Stream stream))                                     \
  _(cuEventQuery, query_event, (Event event))                                                      \
  _(cuEventSynchronize, synchronize_event, (Event event))                                          \
  _(cuEventElapsedTime, elapsed_time, (float* milliseconds, Event from, Event to))                 \
  _(cuModuleLoadData, load_module, (Module * module, const void* image))                           \
  _(cuModuleGetFunction, module_function, (Function * function, Module module, const char* name))  \
  _(cuLaunchKernel, launch,                                                                        \
    (Function function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads,   \
     unsigned threads_y, unsigned threads_z, unsigned shared_bytes, Stream stream,                 \
     void** parameters, void** extra))                                                             \
  _(cuGraphCreate, create_graph, (Graph * graph, unsigned flags))                                  \
  _(cuGraphDestroy, destroy_graph, (Graph graph))                                                  \
  _(cuGraphAddKernelNode, add_kernel_node,                                                         \
    (GraphNode * node, Graph graph, const GraphNode* after, size_t count,                          \
     const KernelNode* kernel))                                                                    \
  _(cuGraphInstantiate_v2, instantiate_graph,                                                      \
    (GraphExecutable * executable, Graph graph, GraphNode * wrong, char* log, size_t bytes))       \
  _(cuGraphExecDestroy, destroy_executable, (GraphExecutable executable))                          \
  _(cuGraphExecKernelNodeSetParams, set_kernel_node,                                               \
    (GraphExecutable executable, GraphNode node, const KernelNode* kernel))                        \
  _(cuGraphLaunch, launch_graph, (GraphExecutable executable, Stream stream))

struct Driver {
#define HOLOGRAM_CUDA_MEMBER(symbol, name, arguments) Status(*name) arguments;
  HOLOGRAM_CUDA_FUNCTIONS(HOLOGRAM_CUDA_MEMBER)
#undef HOLOGRAM_CUDA_MEMBER
};

// Opens the library and initialises the driver at the first call. Throws Error with what is
// missing, each time.
const Driver& driver();

// Throws Error in a child of the process that has opened it: the driver does nothing there.
void check_process();

// "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"
std::string describe(Status status);

// Whether the context takes no more work after it.
bool loses_context(Status status) noexcept;

// Raises a DeviceFault: "<what> failed: <status>".
[[noreturn]] void fail(Status status, const char* what);
inline void check(Status status, const char* what) {
  if (status != kSuccess) [[unlikely]]
    fail(status, what);
}

}  // namespace hologram::cuda
