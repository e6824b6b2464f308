// What a torch without CUDA lacks for streams of CUDA devices: a guard, with a current stream of
// each thread, an allocator, hooks, and a few kernels. For the driver of test/cuda. Built by
// cuda_streams.py.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

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

template <class F>
F* of_driver(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY);
  return reinterpret_cast<F*>(::dlsym(library, name));
}

void* current_stream() {
  static const Guard guard;
  return guard.getStreamNativeHandle(guard.getStream({kCuda, current}));
}

// As torch's asks the driver for memory, whoever captures what.
class Relaxed {
 public:
  Relaxed() { exchange(); }
  ~Relaxed() { exchange(); }

 private:
  void exchange() { of_driver<int(int*)>("cuThreadExchangeStreamCaptureMode")(&mode_); }
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED, then the one before
};

// As torch's caches memory: by stream, and tells a profiler of memory.
struct Allocator final : c10::Allocator {
  using Idle = std::pair<void*, size_t>;  // of a stream, of a size

  c10::DataPtr allocate(size_t bytes) override {
    if (failures_.load() > 0 && failures_-- > 0) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "there is no memory");
    }
    const Idle idle{current_stream(), (bytes + 511) / 512 * 512};
    void* memory = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (auto& its = idle_[idle]; !its.empty() && ++requests_ % reuses_every_ == 0) {
        memory = its.back();
        its.pop_back();
      }
    }
    if (memory == nullptr) {
      static auto* const allocate = of_driver<int(void**, size_t)>("cuMemAlloc_v2");
      const Relaxed mode;
      TORCH_CHECK(allocate(&memory, idle.second) == 0, "cuMemAlloc");
    }
    const std::lock_guard lock(mutex_);
    taken_[memory] = idle;
    c10::reportMemoryUsageToProfiler(memory, static_cast<int64_t>(idle.second), 0, 0,
                                     {kCuda, current});
    return {memory, memory, &give_back, {kCuda, current}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void*, const void*, size_t) const override {}

  static void give_back(void* memory);
  // Idle memory, to the driver.
  int64_t release() {
    static auto* const free = of_driver<int(void*)>("cuMemFree_v2");
    const Relaxed mode;
    const std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (auto& [idle, all] : idle_) {
      for (void* const memory : all) {
        free(memory);
        bytes += static_cast<int64_t>(idle.second);
      }
    }
    idle_.clear();
    return bytes;
  }

  std::atomic<int> failures_{0};                    // so many requests fail from now on
  std::atomic<int> reuses_every_{1}, requests_{0};  // others get new memory although some is idle
  std::mutex mutex_;
  std::map<Idle, std::vector<void*>> idle_;
  std::map<void*, Idle> taken_;
};
Allocator& allocator = *new Allocator;
REGISTER_ALLOCATOR(kCuda, &allocator)

void Allocator::give_back(void* memory) {
  const std::lock_guard lock(allocator.mutex_);
  const Idle idle = allocator.taken_.at(memory);
  allocator.taken_.erase(memory);
  allocator.idle_[idle].push_back(memory);
  c10::reportMemoryUsageToProfiler(memory, -static_cast<int64_t>(idle.second), 0, 0,
                                   {kCuda, current});
}

// ---- kernels ----

using at::Tensor;
std::atomic<int64_t> launches{0};

// Does it in the order of the current stream; where that is captured, whenever the graph is
// launched.
void launch(std::function<void()> task) {
  using Push = int(void*, void (*)(const void*), const void*, void (*)(const void*));
  static auto* const push = of_driver<Push>("simulated_cuda_push");
  ++launches;
  const auto* const its = new std::function<void()>(std::move(task));
  const auto run = [](const void* data) { (*static_cast<const std::function<void()>*>(data))(); };
  const auto forget = [](const void* data) {
    delete static_cast<const std::function<void()>*>(data);
  };
  TORCH_CHECK(push(current_stream(), run, its, forget) == 0, "simulated_cuda_push");
}

// A CPU tensor over the bytes, without keeping them.
std::function<Tensor()> on_host(const Tensor& tensor) {
  static auto* const bytes_of = of_driver<void*(const void*)>("simulated_cuda_bytes");
  return [data = tensor.data_ptr(), sizes = tensor.sizes().vec(), strides = tensor.strides().vec(),
          options = at::TensorOptions(tensor.scalar_type())] {
    return at::from_blob(bytes_of(data), sizes, strides, options);
  };
}

Tensor make(at::IntArrayRef sizes, at::ScalarType type) {
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   type, std::nullopt);
}

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<c10::Layout>,
             std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat>) {
  return make(sizes, type.value());
}
Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                     std::optional<at::ScalarType> type, std::optional<c10::Layout>,
                     std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      sizes, strides, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA), type.value());
}

// Whether index_select asks for its result past the dispatcher, as some of torch's kernels do.
std::atomic<bool> hides{false};

Tensor& copy_(Tensor& self, const Tensor& from, bool) {
  launch([to = on_host(self), from = on_host(from)] { to().copy_(from()); });
  return self;
}

// Whether index_select cannot be captured, as some of torch's kernels cannot.
std::atomic<bool> refuses{false};

// By way of a temporary.
Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.at(static_cast<size_t>(dim)) = index.numel();
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong && index.dim() <= 1,
                    "index_select: an index of ", index.scalar_type(), " and ", index.dim(),
                    " dimensions");
  static auto* const is_captured = of_driver<int(void*, int*)>("cuStreamIsCapturing");
  int status = 0;
  if (refuses && current_stream() != nullptr && is_captured(current_stream(), &status) == 0) {
    TORCH_CHECK(status == 0, "index_select is not captured");
  }
  const auto options = self.options();
  const Tensor between = at::empty(sizes, options);
  const Tensor out = hides ? make(sizes, self.scalar_type())
                           : at::empty_strided(sizes, between.strides(), options);
  launch([=, from = on_host(self), at = on_host(index), to = on_host(between)] {
    to().copy_(at::index_select(from(), dim, at()));
  });
  launch([from = on_host(between), to = on_host(out)] { to().copy_(from()); });
  return out;
}

// As torch's structured kernels are: one for a tensor that is given, and one around it. With memory
// that is as large, for no result.
Tensor& cat_out(const at::ITensorListRef& tensors, int64_t dim, Tensor& out) {
  std::vector<std::function<Tensor()>> from;
  for (const Tensor& tensor : tensors) from.push_back(on_host(tensor));
  const Tensor scratch = at::empty(out.sizes(), out.options());
  launch([=, to = on_host(out), scratch = on_host(scratch)] {
    std::vector<Tensor> all;
    for (const auto& tensor : from) all.push_back(tensor());
    to().copy_(at::cat(all, dim));
    scratch().fill_(-1);
  });
  return out;
}
Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  std::vector<int64_t> sizes = tensors.front().sizes().vec();
  sizes.at(static_cast<size_t>(dim)) = 0;
  for (const Tensor& tensor : tensors) sizes.at(static_cast<size_t>(dim)) += tensor.size(dim);
  Tensor out = make(sizes, tensors.front().scalar_type());
  return cat_out(tensors, dim, out);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("cat", &cat);
  m.impl("cat.out", &cat_out);
  m.impl("copy_", &copy_);
  m.impl("index_select", &index_select);
}

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
extern "C" void fail_allocations(int count) {
  allocator.failures_ = count;
}
extern "C" void reuse_every(int count) {
  allocator.reuses_every_ = count;
}
extern "C" void refuse_captures(bool on) {
  refuses = on;
}
extern "C" void hide_results(bool on) {
  hides = on;
}
// Kernels launched so far.
extern "C" int64_t kernel_launches() {
  return launches;
}
// Gives the allocator's idle memory back to the driver; bytes.
extern "C" int64_t release_memory() {
  return allocator.release();
}
