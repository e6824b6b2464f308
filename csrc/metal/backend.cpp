#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atlas/backend_library.h"
#include "atlas/backends.h"
#include "atlas/error.h"
#include "gpu/code.h"
#include "gpu/compiler.h"
#include "metal/kernels.h"
#include "metal/memory.h"
#include "metal/queue.h"
#include "metal/runtime.h"

namespace hologram::metal {
namespace {

// Addresses in a table of tensors would need memory that Metal is told of beforehand, and the last
// block of a fold a fence that version 3.1 of its language does not have.
constexpr gpu::Target kTarget{.has_f64 = false, .counts = false, .tables = false};

constexpr size_t kLargeAlignment = size_t{2} << 20;

class Backend final : public hologram::Backend {
 public:
  explicit Backend(Device device)
      : device_(std::move(device)), memory_(device_), kernels_(device_, memory_) {
    const DeviceInfo info = device_.info();
    properties_.name = info.name;
    properties_.backend = "metal";
    properties_.total_memory = info.memory;
    properties_.isa = "msl3.1";
    properties_.host_addressable = true;
    properties_.asynchronous = true;
  }

  const DeviceProperties& properties() const noexcept override { return properties_; }
  void* allocate_segment(size_t bytes) noexcept override {
    return memory_.allocate(bytes, bytes >= kLargeAlignment ? kLargeAlignment : kSegmentAlignment);
  }
  void free_segment(void* data, size_t) noexcept override { memory_.free(data); }

  // Copies of it are kernels, as of the device's own.
  void* allocate_host(size_t bytes) noexcept override { return memory_.allocate(bytes, 0); }
  void free_host(void* data, size_t) noexcept override { memory_.free(data); }

  size_t available_memory() const noexcept override { return memory_.available(); }

  std::vector<std::pair<std::string, uint64_t>> counters() const override {
    const gpu::CompilerCounts counts = gpu::compiler_counts();
    std::vector<std::pair<std::string, uint64_t>> all{
        {"kernels.compiled", counts.compiled},
        {"kernels.failed", counts.failed},
        {"buffers.committed", Queue::committed_buffers.load()},
        {"buffers.failed", Queue::failed_buffers.load()}};
    std::ranges::move(Queue::runs.named(), std::back_inserter(all));
    return all;
  }

  std::unique_ptr<PlanCode> compile(const Plan& plan) override {
    return std::make_unique<gpu::Code>(plan, kernels_, kTarget);
  }
  // Metal has no priorities of command queues.
  std::unique_ptr<hologram::Queue> make_queue(int) override {
    return std::make_unique<Queue>(device_, memory_, kernels_, give_back_idle);
  }
  ProductLibrary products() override { return {true, "matrices of simdgroups"}; }
  std::shared_ptr<hologram::Moment> make_moment() override { return std::make_shared<Moment>(); }

 private:
  const Device device_;
  DeviceProperties properties_;
  Memory memory_;
  Kernels kernels_;
};

// The system's default one: a Mac with a processor of Apple's has no other.
constinit const BackendLibrary kLibrary{
    .device_count =
        [] {
          try {
            Device::system_default();
          } catch (const std::exception& error) {
            throw Error(std::string("which cannot be used: ") + error.what());
          }
          return 1;
        },
    .make = [](int) -> hologram::Backend* { return new Backend(Device::system_default()); },
};

}  // namespace
}  // namespace hologram::metal

#if defined(__APPLE__)
const hologram::BackendLibrary& hologram::metal_library() {
  return metal::kLibrary;
}
#else
// Elsewhere it is a library beside the package, linked with a runtime for tests.
const hologram::BackendLibrary* hologram_backend() {
  return &hologram::metal::kLibrary;
}
#endif
