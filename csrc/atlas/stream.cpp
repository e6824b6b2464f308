#include "atlas/stream.h"

#include <array>
#include <string>
#include <utility>

#include "atlas/device.h"

namespace hologram {
namespace {

constinit thread_local std::array<StreamId, kMaxDevices> current_streams{};

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
  if (!device(device_index).streams().valid(stream)) {
    throw Error("hologram:" + std::to_string(device_index) + " has no stream with id " +
                std::to_string(stream));
  }
}

StreamId current_stream(int device) noexcept {
  if (device < 0 || device >= kMaxDevices) return kDefaultStream;
  return current_streams[static_cast<size_t>(device)];
}

StreamId exchange_current_stream(int device, StreamId stream) {
  check_stream(device, stream);
  return std::exchange(current_streams[static_cast<size_t>(device)], stream);
}

}  // namespace hologram
