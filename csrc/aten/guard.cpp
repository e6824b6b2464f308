// The device guard: current device, streams and events for torch.Stream, torch.Event, autograd.
#include "aten/precompiled.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "aten/block.h"
#include "aten/compat.h"
#include "aten/runtime.h"
#include "aten/vendor_streams.h"
#include "atlas/device.h"
#include "atlas/error.h"
#include "atlas/event.h"
#include "atlas/stream.h"

namespace hologram::aten {
namespace {

c10::Stream make_stream(c10::DeviceIndex index, StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kHologram, index), id);
}

// Runs a core call and turns its error into torch's.
template <class F>
auto checked(F&& call) {
  try {
    return call();
  } catch (const Error& error) {
    TORCH_CHECK(false, error.what());
  }
}

struct HologramGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kHologram; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const auto index = check_device(device);
    return {kHologram, static_cast<c10::DeviceIndex>(exchange_current_device(index))};
  }
  c10::Device getDevice() const override { return {kHologram, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(check_device(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < hologram::device_count()) {
      exchange_current_device(device.index());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(hologram::device_count());
  }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    check_device(device);
    return c10::DeviceCapability();
  }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = check_device(device);
    return make_stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return make_stream(check_device(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const auto index = check_device(device);
    return make_stream(index, hologram::device(index).streams().from_pool(high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const auto index = check_device(device);
    return make_stream(index, hologram::device(index).streams().create(priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    check_stream(stream);
    return make_stream(stream.device_index(),
                       exchange_current_stream(stream.device_index(), stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    check_stream(stream);
    if (hologram::device(stream.device_index()).properties().queues_are_streams) {
      return vendor_handle(stream.device_index(), stream.id());
    }
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    check_stream(stream);
    return hologram::device(stream.device_index()).channels().idle(stream.id());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    check_stream(stream);
    hologram::device(stream.device_index()).channels().synchronize(stream.id());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    hologram::device(check_device(index)).synchronize();
  }
#if HOLOGRAM_GUARD_HAS_STREAM_CAPTURE
  bool isStreamCapturing(const c10::Stream& stream) const override {
    check_stream(stream);
    Channel* const channel =
        hologram::device(stream.device_index()).channels().if_used(stream.id());
    return channel != nullptr && !channel->queue->takes_work();
  }
#endif

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device_index,
              const c10::EventFlag flag) const override {
    check_stream(stream);
    TORCH_CHECK(device_index == -1 || device_index == stream.device_index(), "Event device index ",
                static_cast<int>(device_index), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) {
      const bool timing = flag == c10::EventFlag::BACKEND_DEFAULT;
      *event = new hologram::Event(stream.device_index(), timing);
    }
    static_cast<hologram::Event*>(*event)->record(stream.device_index(), stream.id());
  }
  // The stream may be another device's than the event's.
  void block(void* event, const c10::Stream& stream) const override {
    check_stream(stream);
    if (event != nullptr) {
      static_cast<hologram::Event*>(event)->wait(stream.device_index(), stream.id());
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<hologram::Event*>(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      static_cast<hologram::Event*>(event)->synchronize();
    }
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<hologram::Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    return checked([&] {
      return static_cast<hologram::Event*>(start)->elapsed_ms(*static_cast<hologram::Event*>(end));
    });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_use(block_of(data), stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, HologramGuard)

}  // namespace
}  // namespace hologram::aten
