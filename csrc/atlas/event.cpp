#include "atlas/event.h"

#include <chrono>
#include <string>

#include "atlas/device.h"

namespace hologram {
namespace {

constinit std::atomic<uint64_t> last_epoch{0};
constinit std::atomic<uint64_t> last_event{0};

}  // namespace

uint64_t next_epoch() noexcept {
  return last_epoch.fetch_add(1, std::memory_order_relaxed) + 1;
}

Event::Event(int device, bool enable_timing)
    : id_(last_event.fetch_add(1, std::memory_order_relaxed) + 1),
      device_(device),
      enable_timing_(enable_timing) {
  check_device_index(device);
}

void Event::record(int device, StreamId stream) {
  if (device != device_) {
    throw Error("Event device " + std::to_string(device_) +
                " does not match recording stream's device " + std::to_string(device));
  }
  check_stream(device, stream);
  hologram::device(device).window().flush(FlushReason::event);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  nanoseconds_.store(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
                     std::memory_order_relaxed);
  epoch_.store(next_epoch(), std::memory_order_release);
}

bool Event::query() const noexcept {
  // Execution is synchronous: what was queued before the mark was done before it was set.
  return true;
}

void Event::synchronize() const noexcept {}

void Event::wait(int device, StreamId stream) const {
  check_stream(device, stream);
}

double Event::elapsed_ms(const Event& end) const {
  if (!enable_timing_ || !end.enable_timing_) {
    throw Error("Both events must be created with argument 'enable_timing=True'.");
  }
  if (!recorded() || !end.recorded()) {
    throw Error("Both events must be recorded before calculating elapsed time.");
  }
  return static_cast<double>(end.nanoseconds_.load(std::memory_order_relaxed) -
                             nanoseconds_.load(std::memory_order_relaxed)) *
         1e-6;
}

}  // namespace hologram
