// The hooks torch's device-generic code calls: generators, pinned memory, storage resize.
#include "aten/precompiled.h"

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "aten/block.h"
#include "aten/generator.h"
#include "aten/hooks.h"
#include "aten/pinned.h"
#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/fork.h"

namespace hologram::aten {
namespace {

// Whether init() is called to be asked nothing more, see answer_whether_pinned().
bool is_marked_only = false;

struct HologramHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return hologram::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return is_initialized() && index >= 0 && index < hologram::device_count();
  }
  void init() const override {
    if (!is_marked_only) check_device(c10::DeviceIndex(-1));
  }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(hologram::device_count());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_current_device(check_device(index));
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(exchange_current_device(check_device(index)));
  }
  // A negative index leaves the current device alone, as on CUDA.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? c10::DeviceIndex(-1) : exchangeDevice(index);
  }

  // Factories with pin_memory=True take theirs of CUDA's allocator, where torch has it. Whoever has
  // used neither device pins nothing, and does not use one by asking.
  bool isPinnedPtr(const void* data) const override {
    return is_pinned_pointer(data) || at::globalContext().isPinnedPtr(data, c10::kCUDA);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    // Foreign memory is of no device in particular; torch asks only about pointers that it was told
    // are the device's.
    const auto* owner = device_owning(data);
    return {kHologram,
            owner != nullptr ? static_cast<c10::DeviceIndex>(owner->index()) : current_device()};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return make_generator(index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new HologramHooks());
  return true;
}();

}  // namespace

void answer_whether_pinned() {
  is_marked_only = true;
  at::globalContext().lazyInitDevice(kHologram);
  is_marked_only = false;
}

}  // namespace hologram::aten
