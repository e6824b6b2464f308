// What a torch without CUDA lacks for streams of CUDA devices: a guard, with a current stream of
// each thread, an allocator and hooks. There are no kernels. For the driver of test/cuda. Built by
// cuda_streams.py.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <utility>

namespace {

constexpr auto kCuda = c10::DeviceType::CUDA;
constexpr c10::DeviceIndex kDevices = 2;
// Streams that torch has made have ids that are no handles.
constexpr c10::StreamId kFirstOwn = 1, kOwn = 4;

thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, kDevices> streams{};
std::array<int64_t, kOwn> own_handles{};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kCuda; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kCuda, std::exchange(current, device.index())};
  }
  c10::Device getDevice() const override { return {kCuda, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, streams[static_cast<size_t>(device.index())]);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& now = streams[static_cast<size_t>(stream.device_index())];
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(now, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    const bool own = stream.id() >= kFirstOwn && stream.id() < kFirstOwn + kOwn;
    return reinterpret_cast<void*>(own ? own_handles[stream.id() - kFirstOwn] : stream.id());
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t) override { TORCH_CHECK(false, "there is no memory"); }
  void copy_data(void*, const void*, size_t) const override {}
};
Allocator allocator;
REGISTER_ALLOCATOR(kCuda, &allocator)

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
};

}  // namespace

namespace at {
using CUDAHooks = ::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

// Of the calling thread and the first device: the stream with an id, which is the handle of one
// that torch has not made.
extern "C" void set_stream(int64_t id) {
  streams[0] = id;
}
extern "C" int64_t stream() {
  return streams[0];
}
extern "C" int64_t device() {
  return current;
}
extern "C" void set_device(int64_t index) {
  current = static_cast<c10::DeviceIndex>(index);
}
// The handle of a stream of torch's own.
extern "C" void set_own(int64_t id, int64_t handle) {
  own_handles.at(static_cast<size_t>(id - kFirstOwn)) = handle;
}
