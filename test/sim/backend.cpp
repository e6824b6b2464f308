// A device with no hardware: its queues are threads that run late. See docs/architecture.md.
//
// HOLOGRAM_TEST_SIM_DEVICES: how many there are (2). HOLOGRAM_TEST_SIM_DELAY: most microseconds
// that a queue waits before each task (50). HOLOGRAM_TEST_SIM_SEED: of those delays.
#include "atlas/backend_library.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "cpu/code.h"
#include "queue.h"

namespace sim {
namespace {

using namespace hologram;

constexpr size_t kMemory = size_t{8} << 30;
constexpr size_t kLargeAlignment = size_t{2} << 20;

int number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

class Backend final : public hologram::Backend {
 public:
  explicit Backend(int ordinal) : ordinal_(ordinal) {
    properties_.name = "simulated device " + std::to_string(ordinal);
    properties_.backend = "sim";
    properties_.total_memory = kMemory;
    properties_.multi_processor_count = 1;
    properties_.isa = cpu::isa_name(cpu::best_isa());  // whose kernels it runs
    properties_.asynchronous = true;
    properties_.host_addressable = true;
  }

  const DeviceProperties& properties() const noexcept override { return properties_; }
  void* allocate_segment(size_t bytes) noexcept override {
    const size_t alignment = bytes >= kLargeAlignment ? kLargeAlignment : kSegmentAlignment;
    void* data = nullptr;
    return ::posix_memalign(&data, alignment, bytes) == 0 ? data : nullptr;
  }
  void free_segment(void* data, size_t) noexcept override { std::free(data); }
  size_t available_memory() const noexcept override { return kMemory; }

  std::unique_ptr<PlanCode> compile(const Plan& plan) override {
    return std::make_unique<cpu::Code>(plan);
  }
  std::unique_ptr<hologram::Queue> make_queue() override {
    const int seed = number("HOLOGRAM_TEST_SIM_SEED", 1) + ordinal_ + 100 * queues_++;
    return std::make_unique<Queue>(static_cast<uint64_t>(seed),
                                   number("HOLOGRAM_TEST_SIM_DELAY", 50));
  }
  std::shared_ptr<hologram::Moment> make_moment() override { return std::make_shared<Moment>(); }

 private:
  int ordinal_;
  std::atomic<int> queues_{0};
  DeviceProperties properties_;
};

constexpr BackendLibrary kLibrary{
    .device_count = [] { return number("HOLOGRAM_TEST_SIM_DEVICES", 2); },
    .make = [](int ordinal) -> hologram::Backend* { return new Backend(ordinal); },
};

}  // namespace
}  // namespace sim

const hologram::BackendLibrary* hologram_backend() {
  return &sim::kLibrary;
}
