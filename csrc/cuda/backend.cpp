#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <memory>
#include <string>

#include "atlas/backend_library.h"
#include "atlas/backends.h"
#include "atlas/error.h"
#include "cuda/context.h"
#include "cuda/kernel_cache.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/products.h"
#include "cuda/queue.h"
#include "gpu/code.h"
#include "gpu/compiler.h"

namespace hologram::cuda {
namespace {

constexpr gpu::Target kTarget{.counts = true};

class Backend final : public hologram::Backend {
 public:
  explicit Backend(int ordinal)
      : gpu_(ordinal), kernels_(gpu_), segments_(gpu_), host_(gpu_), products_(gpu_) {
    const Driver& d = driver();
    std::array<char, 256> name{};
    check(d.device_name(name.data(), static_cast<int>(name.size()), gpu_.device),
          "cuDeviceGetName");
    const auto attribute = [&](Attribute which) {
      int value = 0;
      check(d.device_attribute(&value, which, gpu_.device), "cuDeviceGetAttribute");
      return value;
    };
    properties_.name = name.data();
    properties_.backend = "cuda";
    check(d.device_memory(&properties_.total_memory, gpu_.device), "cuDeviceTotalMem");
    properties_.multi_processor_count = attribute(Attribute::multiprocessors);
    properties_.l2_cache_size = static_cast<size_t>(attribute(Attribute::l2_cache_bytes));
    properties_.isa = "sm_" + std::to_string(10 * gpu_.major + gpu_.minor);
    properties_.major = gpu_.major;
    properties_.minor = gpu_.minor;
    properties_.asynchronous = true;
    properties_.vendor = "cuda";
    properties_.vendor_ordinal = gpu_.ordinal;
    properties_.queues_are_streams = true;
  }

  const DeviceProperties& properties() const noexcept override { return properties_; }
  void* allocate_segment(size_t bytes) noexcept override { return segments_.allocate(bytes); }
  void free_segment(void* data, size_t) noexcept override { segments_.free(data); }

  void* allocate_host(size_t bytes) noexcept override { return host_.allocate(bytes); }
  void free_host(void* data, size_t) noexcept override { host_.free(data); }

  size_t available_memory() const noexcept override {
    try {
      const ContextGuard guard(gpu_);
      size_t free = 0, total = 0;
      return driver().memory_info(&free, &total) == kSuccess ? free : 0;
    } catch (const std::exception&) {
      return 0;
    }
  }

  std::string failure() const noexcept override {
    try {
      const ContextGuard guard(gpu_);
      size_t free = 0, total = 0;
      const Status status = driver().memory_info(&free, &total);
      if (status == kSuccess || status == kOutOfMemory) return {};
      return lost_fault(gpu_, status).what;
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  std::vector<std::pair<std::string, uint64_t>> counters() const override {
    const gpu::CompilerCounts counts = gpu::compiler_counts();
    std::vector<std::pair<std::string, uint64_t>> all{
        {"kernels.compiled", counts.compiled},
        {"kernels.failed", counts.failed},
        {"kernels.found", counts.found},
        {"kernels.discarded", KernelCache::discarded.load()},
        {"replays.made", Replays::made.load()},
        {"replays.launched", Replays::launched.load()},
        {"replays.updated", Replays::updated.load()},
        {"replays.failed", Replays::failed.load()}};
    std::ranges::move(Queue::runs.named(), std::back_inserter(all));
    return all;
  }

  std::unique_ptr<PlanCode> compile(const Plan& plan) override {
    return std::make_unique<gpu::Code>(plan, kernels_, kTarget);
  }
  // The first one is the default stream's, which is made first (atlas/channels.h).
  std::unique_ptr<hologram::Queue> make_queue(int priority) override {
    const bool is_first = !made_queue_.exchange(true);
    return std::make_unique<Queue>(gpu_, kernels_, products_, give_back_idle,
                                   is_first ? Queue::Which::default_stream : Queue::Which::own,
                                   priority);
  }
  std::unique_ptr<hologram::Queue> make_queue_on(void* vendors) override {
    return std::make_unique<Queue>(gpu_, kernels_, products_, give_back_idle,
                                   static_cast<Stream>(vendors));
  }
  std::shared_ptr<hologram::Moment> make_moment() override {
    return std::make_shared<Moment>(gpu_);
  }
  ProductLibrary products() override { return products_.describe(); }

 private:
  const Gpu gpu_;
  DeviceProperties properties_;
  Kernels kernels_;
  Segments segments_;
  HostMemory host_;
  ProductContext products_;
  std::atomic<bool> made_queue_{false};
};

constinit const BackendLibrary kLibrary{
    .device_count = [] { return static_cast<int>(usable_gpus().size()); },
    .make = [](int ordinal) -> hologram::Backend* {
      return new Backend(usable_gpus().at(static_cast<size_t>(ordinal)));
    },
};

}  // namespace
}  // namespace hologram::cuda

const hologram::BackendLibrary& hologram::cuda_library() {
  return cuda::kLibrary;
}
