// A device with no hardware: its queues are threads that run late. See docs/architecture.md.
//
// HOLOGRAM_TEST_SIM_DEVICES: how many there are (2). HOLOGRAM_TEST_SIM_MEMORY: "device", which the
// host cannot touch (the default), "host", or "vendor": the host's, with torch's CPU kernels for
// those of a vendor. HOLOGRAM_TEST_SIM_VENDOR: a device type of torch's that is said to have
// kernels for memory which the host cannot touch; with the memory "hidden" it can, without being
// told so, for the vendor of test/vendor.cpp. HOLOGRAM_TEST_SIM_DELAY: most microseconds that a
// queue waits before each task (50). HOLOGRAM_TEST_SIM_SEED: of those delays. Faults, each the
// numbers of what fails, from 1: HOLOGRAM_TEST_SIM_NO_SEGMENT; and of each queue
// HOLOGRAM_TEST_SIM_NO_LAUNCH, HOLOGRAM_TEST_SIM_FAILED_RUN, HOLOGRAM_TEST_SIM_FAILED_TRANSFER and
// HOLOGRAM_TEST_SIM_LOST_RECORD, an event that is never recorded.
//
// HOLOGRAM_TEST_SIM_KERNELS: "cuda" or "metal": groups are run by kernels of csrc/gpu in that
// language, on the emulator of test/gpu; by the cold ones, with HOLOGRAM_TEST_SIM_EMITTED=1 by
// emitted ones, which a plan waits for, and with HOLOGRAM_TEST_SIM_EMITTED=later by those that
// sim_compile_kernels() has made, many at once. What such a device cannot run the CPU's code does.
#include "atlas/backend_library.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <string_view>

#include "code.h"
#include "cpu/system.h"
#include "environment.h"
#include "memory.h"
#include "queue.h"

namespace sim {
namespace {

using namespace hologram;

constexpr size_t kMemory = size_t{8} << 30;
constexpr size_t kLargeAlignment = size_t{2} << 20;

std::atomic<int> urgent_queues{0};

class Backend final : public hologram::Backend {
 public:
  explicit Backend(int ordinal) : ordinal_(ordinal) {
    properties_.name = "simulated device " + std::to_string(ordinal);
    properties_.backend = "sim";
    properties_.total_memory = kMemory;
    properties_.multi_processor_count = 1;
    properties_.isa = cpu::isa_name(cpu::best_isa());  // whose kernels it runs
    properties_.asynchronous = true;
    const char* const memory = std::getenv("HOLOGRAM_TEST_SIM_MEMORY");
    const std::string_view kind = memory != nullptr ? memory : "device";
    properties_.host_addressable = kind == "host" || kind == "vendor";
    own_memory_ = kind == "device";
    const char* const vendor = std::getenv("HOLOGRAM_TEST_SIM_VENDOR");
    properties_.vendor = kind == "vendor" ? "cpu" : vendor != nullptr ? vendor : "";
    properties_.vendor_ordinal = ordinal;
  }

  const DeviceProperties& properties() const noexcept override { return properties_; }
  void* allocate_segment(size_t bytes) noexcept override {
    static const std::set<int> refused = numbers("HOLOGRAM_TEST_SIM_NO_SEGMENT");
    if (refused.contains(++segments_)) return nullptr;
    if (own_memory_) return Memory::instance().allocate(bytes);
    const size_t alignment = bytes >= kLargeAlignment ? kLargeAlignment : kSegmentAlignment;
    void* data = nullptr;
    return ::posix_memalign(&data, alignment, bytes) == 0 ? data : nullptr;
  }
  void free_segment(void* data, size_t bytes) noexcept override {
    if (own_memory_) {
      Memory::instance().free(data, bytes);
    } else {
      std::free(data);
    }
  }
  size_t available_memory() const noexcept override { return kMemory; }

  std::unique_ptr<PlanCode> compile(const Plan& plan) override {
    return std::make_unique<Code>(plan);
  }
  std::unique_ptr<hologram::Queue> make_queue(int priority) override {
    if (priority < 0) ++urgent_queues;
    const int seed = number("HOLOGRAM_TEST_SIM_SEED", 1) + ordinal_ + 100 * queues_++;
    return std::make_unique<Queue>(QueueOptions{
        .device = properties_.name,
        .own_memory = own_memory_,
        .on_copies = !properties_.host_addressable,
        .seed = static_cast<uint64_t>(seed),
        .most_delay = number("HOLOGRAM_TEST_SIM_DELAY", 50),
        .failing_launches = numbers("HOLOGRAM_TEST_SIM_NO_LAUNCH"),
        .failing_runs = numbers("HOLOGRAM_TEST_SIM_FAILED_RUN"),
        .failing_transfers = numbers("HOLOGRAM_TEST_SIM_FAILED_TRANSFER"),
        .lost_records = numbers("HOLOGRAM_TEST_SIM_LOST_RECORD"),
    });
  }
  std::shared_ptr<hologram::Moment> make_moment() override { return std::make_shared<Moment>(); }

 private:
  int ordinal_;
  bool own_memory_;
  std::atomic<int> segments_{0};
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

// How many queues of a priority below 0 there have been, for tests.
extern "C" [[gnu::visibility("default")]] int sim_urgent_queues() {
  return sim::urgent_queues.load();
}

// How often anybody has waited for a queue, for tests.
extern "C" [[gnu::visibility("default")]] uint64_t sim_waits() {
  return sim::Queue::waits.load(std::memory_order_relaxed);
}

// The stream that a queue was lent to last, or taken back from, for tests.
extern "C" [[gnu::visibility("default")]] void* sim_stream() {
  return sim::Queue::stream.load(std::memory_order_relaxed);
}

// How many runs of groups were those of emitted GPU kernels, of cold ones, and of the CPU's code in
// their place with its reasons, a line each, for tests.
extern "C" [[gnu::visibility("default")]] uint64_t sim_runs_by_emitted() {
  return sim::Code::runs_by_emitted.load();
}
extern "C" [[gnu::visibility("default")]] uint64_t sim_runs_by_cold() {
  return sim::Code::runs_by_cold.load();
}
extern "C" [[gnu::visibility("default")]] uint64_t sim_runs_by_cpu() {
  return sim::Code::runs_by_cpu.load();
}
extern "C" [[gnu::visibility("default")]] const char* sim_refusals() {
  static thread_local std::string text;
  text = sim::Code::refusals();
  return text.c_str();
}

// Compiles the kernels that wait for it; the queues are idle. How many they were, below 0 where
// they do not compile.
extern "C" [[gnu::visibility("default")]] int sim_compile_kernels() {
  try {
    return sim::Code::compile();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}
