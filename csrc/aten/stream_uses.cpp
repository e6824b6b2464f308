#include "aten/precompiled.h"

#include "aten/stream_uses.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include "aten/block.h"
#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/fork.h"

namespace hologram::aten {

void StreamUses::add(int device, StreamId stream) {
  const std::pair use(device, stream);
  if (std::ranges::find(streams_, use) == streams_.end()) streams_.push_back(use);
}

void StreamUses::end(int device) noexcept {
  if (hologram::device(device).channels().several()) {
    submit();
  } else {
    wait();
  }
}

void StreamUses::wait() noexcept {
  submit();
  for (const Fence& fence : fences_) {
    try {
      fence.wait();
    } catch (const std::exception&) {
      // Raised where values are read.
    }
  }
  streams_.clear();
  fences_.clear();
}

void StreamUses::submit() noexcept {
  if (in_forked_child()) return;  // nothing is enqueued there
  for (const auto& [index, stream] : streams_) {
    Channel* const channel = hologram::device(index).channels().if_used(stream);
    if (channel == nullptr) continue;
    try {
      channel->window.flush(FlushReason::stream);
    } catch (const std::exception&) {
      // Likewise.
    }
    fences_.add({channel->queue.get(), channel->queue->last()});
  }
}

Fences StreamUses::fences_with(const Fence& last_use) {
  fences_.add(last_use);
  return std::move(fences_);
}

void record_use(Block* block, const c10::Stream& stream) {
  check_stream(stream);
  const auto device = stream.device_index();
  // Where nothing runs after the call that enqueues it, nothing is to be waited for.
  if (block == nullptr || !hologram::device(device).channels().several()) return;
  static std::mutex mutex;  // of all blocks: uses are rare
  const std::lock_guard lock(mutex);
  if (block->uses == nullptr) block->uses = std::make_unique<StreamUses>();
  block->uses->add(device, stream.id());
}

}  // namespace hologram::aten
