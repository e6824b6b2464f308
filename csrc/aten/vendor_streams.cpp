#include "aten/precompiled.h"

#include "aten/vendor_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <array>
#include <map>
#include <mutex>

#include "aten/delegate_target.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

// What a thread has seen last of a device. Several ids of ours share a queue, so the id that was
// set is kept as long as the vendor's stream stays.
struct Seen {
  c10::StreamId vendors;
  StreamId ours;
};
constinit thread_local std::array<Seen, kMaxDevices> seen_streams{};

class VendorStreams final : public CurrentStream {
 public:
  VendorStreams(Device& ours, c10::Device vendors)
      : channels_(ours.channels()),
        vendors_(vendors),
        guard_(vendors.type()),
        index_(static_cast<size_t>(ours.index())) {}

  StreamId get() override {
    const c10::Stream now = guard_.getStream(vendors_);
    Seen& seen = seen_streams[index_];
    if (C10_UNLIKELY(now.id() != seen.vendors)) seen = {now.id(), ours_of(now)};
    return seen.ours;
  }

  void set(StreamId stream) override {
    const c10::Stream theirs = theirs_of(stream);
    guard_.exchangeStream(theirs);
    seen_streams[index_] = {guard_.getStream(vendors_).id(), stream};
  }

 private:
  StreamId ours_of(const c10::Stream& theirs) {
    const StreamId ours = channels_.of_vendor(guard_.getStreamNativeHandle(theirs));
    const std::lock_guard lock(mutex_);
    known_.emplace(ours, theirs.id());
    return ours;
  }
  // Under the id that torch knows it by; a stream that torch has not made has its handle as one.
  c10::Stream theirs_of(StreamId stream) {
    auto id = reinterpret_cast<c10::StreamId>(channels_.of(stream).queue->vendor_stream());
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(stream); found != known_.end()) id = found->second;
    return c10::Stream(c10::Stream::UNSAFE, vendors_, id);
  }

  Channels& channels_;
  const c10::Device vendors_;
  const c10::impl::VirtualGuardImpl guard_;
  const size_t index_;
  std::mutex mutex_;
  std::map<StreamId, c10::StreamId> known_;  // guarded by mutex_
};

void follow(Device& device) {
  if (!device.properties().queues_are_streams) return;
  const DelegateTarget& target = target_of(static_cast<c10::DeviceIndex>(device.index()));
  if (!target.in_stream_order) return;
  follow_current_stream(device.index(), new VendorStreams(device, target.device));
}

}  // namespace

void follow_vendor_streams() {
  set_device_made(&follow);
}

void* vendor_handle(int device, StreamId stream) {
  Device& its = hologram::device(device);
  TORCH_CHECK(its.properties().queues_are_streams, "streams of hologram:", device,
              " are known to its backend alone");
  return its.channels().of(stream).queue->vendor_stream();
}

}  // namespace hologram::aten
