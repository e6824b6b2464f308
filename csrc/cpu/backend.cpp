#include "cpu/backend.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "atlas/backends.h"
#include "atlas/config.h"
#include "atlas/error.h"
#include "atlas/float_mode.h"
#include "cpu/allocator.h"
#include "cpu/code.h"
#include "cpu/fill.h"
#include "cpu/system.h"

namespace hologram {
namespace cpu {
namespace {

constinit std::atomic<Parallel*> threads{nullptr};

class SteadyMoment final : public Moment {
 public:
  void take() noexcept { time_.store(Clock::now(), std::memory_order_relaxed); }
  double milliseconds_since(const Moment& other) const override {
    const auto from = static_cast<const SteadyMoment&>(other).time_.load(std::memory_order_relaxed);
    return std::chrono::duration<double, std::milli>(time_.load(std::memory_order_relaxed) - from)
        .count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::time_point> time_{};
};

// The calling thread: what is submitted is finished on return.
class CallingThread final : public Queue {
 public:
  Ticket submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) override {
    const FloatModeGuard mode(frame.program().float_mode);
    Parallel* const parallel = threads.load(std::memory_order_acquire);
    const auto& groups = static_cast<const Code&>(*compiled->code).groups;
    for (size_t i = 0; i < groups.size(); ++i) {
      Frame::Pass pass(frame, i);
      try {
        run(*groups[i], pass.bindings(), parallel != nullptr ? *parallel : serial());
      } catch (const std::exception& error) {
        pass.fail(error);
      }
    }
    return next();
  }
  Ticket copy(void* to, const void* from, size_t bytes, Direction) override {
    std::memcpy(to, from, bytes);
    return next();
  }
  Ticket fill(void* to, const void* element, size_t element_bytes, size_t count) override {
    cpu::fill(to, element, element_bytes, count);
    return next();
  }
  Ticket record(std::shared_ptr<Moment> moment) override {
    if (moment != nullptr) static_cast<SteadyMoment&>(*moment).take();
    return next();
  }
  void wait_for(const Fence& fence) override { fence.wait(); }
  Ticket last() noexcept override { return last_.load(std::memory_order_relaxed); }
  bool done(Ticket) noexcept override { return true; }
  void wait(Ticket) override {}

 private:
  Ticket next() noexcept { return last_.fetch_add(1, std::memory_order_relaxed) + 1; }
  std::atomic<Ticket> last_{0};
};

}  // namespace

void set_parallel(Parallel& parallel) noexcept {
  threads.store(&parallel, std::memory_order_release);
}

std::unique_ptr<PlanCode> CpuBackend::compile(const Plan& plan) {
  return std::make_unique<Code>(plan);
}

std::unique_ptr<Queue> CpuBackend::make_queue(int /*priority*/) {
  return std::make_unique<CallingThread>();
}

std::shared_ptr<Moment> CpuBackend::make_moment() {
  return std::make_shared<SteadyMoment>();
}

CpuBackend::CpuBackend(int ordinal, int count) {
  properties_.name = processor_name();
  if (count > 1) {
    properties_.name +=
        " (" + std::to_string(ordinal + 1) + " of " + std::to_string(count) + " parts)";
  }
  properties_.backend = "cpu";
  properties_.computes_on_host = true;
  properties_.host_addressable = true;
  properties_.total_memory = total_memory() / static_cast<size_t>(count);
  properties_.multi_processor_count = std::max(usable_cores() / count, 1);
  properties_.isa = isa_name(best_isa());
  properties_.l2_cache_size = l2_cache_size();
}

void* CpuBackend::allocate_segment(size_t bytes) noexcept {
  return map_memory(bytes);
}

void CpuBackend::free_segment(void* data, size_t bytes) noexcept {
  unmap_memory(data, bytes);
}

size_t CpuBackend::available_memory() const noexcept {
  return std::min(cpu::available_memory(), properties_.total_memory);
}

}  // namespace cpu

std::string cpu_backend_error() {
  try {
    cpu::best_isa();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Backend> make_cpu_backend(int ordinal, int count) {
  return std::make_unique<cpu::CpuBackend>(ordinal, count);
}

}  // namespace hologram
