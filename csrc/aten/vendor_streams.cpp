#include "aten/precompiled.h"

#include "aten/vendor_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <array>
#include <map>
#include <mutex>

#include "aten/delegate_target.h"
#include "aten/runtime.h"
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
    if (get() == stream) return;  // as autograd does before and after each of its functions
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

CurrentDevices exchange_current_devices(c10::DeviceIndex device) {
  CurrentDevices before;
  // Asked first, for it throws where there is no such device.
  const DelegateTarget& target = target_of(device);
  before.ours = static_cast<c10::DeviceIndex>(exchange_current_device(device));
  if (target.in_stream_order) {
    before.vendors =
        c10::impl::VirtualGuardImpl(target.device.type()).exchangeDevice(target.device);
  }
  return before;
}

void set_current_devices(const CurrentDevices& devices) {
  exchange_current_device(devices.ours);
  if (devices.vendors) {
    c10::impl::VirtualGuardImpl(devices.vendors->type()).setDevice(*devices.vendors);
  }
}

std::optional<c10::DeviceIndex> device_of_streams(c10::Device device) {
  if (device.type() == kHologram) return check_device(device);
  const auto is_it = [&](c10::DeviceIndex index) {
    const DelegateTarget& target = target_of(index);
    return target.in_stream_order && target.device == device;
  };
  // Where it most likely is, so that devices that nobody has used stay so.
  const auto count = static_cast<c10::DeviceIndex>(hologram::device_count());
  if (device.has_index() && device.index() < count && is_it(device.index())) return device.index();
  for (c10::DeviceIndex index = 0; index < count; ++index) {
    if (is_it(index)) return index;
  }
  return std::nullopt;
}

CurrentDevices exchange_stream(const c10::Stream& stream) {
  const auto device = device_of_streams(stream.device());
  TORCH_CHECK(device, "expected a hologram stream, got a ", c10::Device(stream.device_type()),
              " stream", stream.device().is_cpu() ? "" : ", whose device is none of hologram's");
  const bool is_ours = stream.device_type() == kHologram;
  if (is_ours) check_stream(stream);
  const CurrentDevices before = exchange_current_devices(*device);
  if (is_ours) {
    exchange_current_stream(*device, stream.id());
  } else {
    // Ours follows, and the stream keeps torch's id.
    c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  }
  return before;
}

void* vendor_handle(int device, StreamId stream) {
  Device& its = hologram::device(device);
  TORCH_CHECK(its.properties().queues_are_streams, "streams of hologram:", device,
              " are known to its backend alone");
  return its.channels().of(stream).queue->vendor_stream();
}

}  // namespace hologram::aten
