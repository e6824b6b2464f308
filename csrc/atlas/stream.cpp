#include "atlas/stream.h"

#include <array>
#include <string>
#include <utility>

#include "atlas/device.h"

namespace hologram {
namespace {

constinit thread_local std::array<StreamId, kMaxDevices> current_streams{};
constinit std::array<std::atomic<CurrentStream*>, kMaxDevices> followed{};

}  // namespace

StreamId StreamTable::create(int priority) noexcept {
  const int64_t kind = priority < 0 ? 1 : 0;
  return 2 * next_created_[kind].fetch_add(1, std::memory_order_relaxed) + kind;
}

StreamId StreamTable::from_pool(bool high_priority) noexcept {
  const int64_t kind = high_priority ? 1 : 0;
  const uint64_t turn = next_pooled_[kind].fetch_add(1, std::memory_order_relaxed);
  const int64_t first = high_priority ? 0 : 1;  // the default stream is not pooled
  return 2 * (first + static_cast<int64_t>(turn % kPoolSize)) + kind;
}

bool StreamTable::valid(StreamId stream) const noexcept {
  return stream >= 0 && stream / 2 < next_created_[stream & 1].load(std::memory_order_relaxed);
}

void check_stream(int device_index, StreamId stream) {
  if (!device(device_index).has_stream(stream)) {
    throw Error("hologram:" + std::to_string(device_index) + " has no stream with id " +
                std::to_string(stream));
  }
}

void follow_current_stream(int device, CurrentStream* its) noexcept {
  followed[static_cast<size_t>(device)].store(its, std::memory_order_release);
}

StreamId current_stream(int device) {
  if (device < 0 || device >= kMaxDevices) return kDefaultStream;
  const auto index = static_cast<size_t>(device);
  CurrentStream* const its = followed[index].load(std::memory_order_acquire);
  return its != nullptr ? its->get() : current_streams[index];
}

StreamId exchange_current_stream(int device, StreamId stream) {
  check_stream(device, stream);
  const auto index = static_cast<size_t>(device);
  if (CurrentStream* const its = followed[index].load(std::memory_order_acquire)) {
    const StreamId before = its->get();
    its->set(stream);
    return before;
  }
  return std::exchange(current_streams[index], stream);
}

}  // namespace hologram
