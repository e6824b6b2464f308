#include "atlas/event.h"

#include <string>
#include <utility>

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
  Device& marked = hologram::device(device);
  Channel& channel = marked.channels().of(stream);
  channel.window.flush(FlushReason::event);
  Mark mark;
  if (enable_timing_) mark.moment = marked.backend().make_moment();
  mark.fence = {channel.queue.get(), channel.queue->record(mark.moment)};
  {
    const std::lock_guard guard(lock_);
    mark_ = std::move(mark);
  }
  epoch_.store(next_epoch(), std::memory_order_release);
}

Event::Mark Event::mark() const {
  const std::lock_guard guard(lock_);
  return mark_;
}

bool Event::query() const noexcept {
  return !mark().fence.outstanding();
}

void Event::synchronize() const {
  mark().fence.finish();
}

void Event::wait(int device, StreamId stream) const {
  check_stream(device, stream);
  const Fence fence = mark().fence;
  if (!fence.outstanding()) return;
  Channel& channel = hologram::device(device).channels().of(stream);
  if (fence.queue == channel.queue.get()) return;  // what comes later runs later
  channel.window.flush(FlushReason::event);        // what came before does not wait
  channel.queue->wait_for(fence);
}

double Event::elapsed_ms(const Event& end) const {
  if (!enable_timing_ || !end.enable_timing_) {
    throw Error("Both events must be created with argument 'enable_timing=True'.");
  }
  if (!recorded() || !end.recorded()) {
    throw Error("Both events must be recorded before calculating elapsed time.");
  }
  const Mark from = mark(), to = end.mark();
  if (from.fence.outstanding() || to.fence.outstanding()) {
    throw Error("Both events must be completed before calculating elapsed time.");
  }
  return to.moment->milliseconds_since(*from.moment);
}

}  // namespace hologram
