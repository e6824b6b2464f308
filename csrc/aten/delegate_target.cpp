#include "aten/precompiled.h"

#include "aten/delegate_target.h"

#include <ATen/Context.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <optional>

#include "atlas/backend.h"

namespace hologram::aten {
namespace {

// The device of torch's that the backend names; none where this torch knows no such type.
std::optional<c10::Device> vendor_of(const DeviceProperties& properties) {
  if (properties.vendor.empty()) return std::nullopt;
  try {
    return c10::Device(c10::Device(properties.vendor).type(),
                       static_cast<c10::DeviceIndex>(properties.vendor_ordinal));
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// Whether torch has the device. One without kernels for it has no guard for its type, and one that
// finds no driver no device.
bool has(const c10::Device& device) {
  return device.type() != c10::DeviceType::PrivateUse1 &&
         c10::impl::hasDeviceGuardImpl(device.type()) &&
         c10::impl::getDeviceGuardImpl(device.type())->deviceCount() > device.index();
}

DelegateTarget make_target(const DeviceProperties& properties) {
  using Kind = DelegateTarget::Kind;
  DelegateTarget target;
  target.kind = properties.host_addressable ? Kind::shared : Kind::copied;
  target.allocator = c10::GetAllocator(c10::DeviceType::CPU);
  const auto vendor = vendor_of(properties);
  // A storage has one twin. Of memory that is the host's it is a CPU storage, of other memory
  // cannot be.
  if (!vendor || vendor->is_cpu() != properties.host_addressable) return target;
  if (vendor->is_cpu()) {
    target.kind = Kind::launched;
    return target;
  }
  if (!has(*vendor)) return target;
  at::globalContext().lazyInitDevice(vendor->type());
  target.kind = Kind::launched;
  target.device = *vendor;
  target.key = c10::computeDispatchKey(std::nullopt, c10::kStrided, *vendor);
  target.backend = c10::toBackendComponent(target.key);
  target.allocator = c10::GetAllocator(vendor->type());
  target.in_stream_order = properties.queues_are_streams;
  return target;
}

}  // namespace

void* DelegateTarget::vendor_stream() const {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamNativeHandle(guard.getStream(device));
}

const DelegateTarget& detail::find_target(c10::DeviceIndex device) {
  const DelegateTarget made = make_target(hologram::device(device).properties());
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& slot = targets[static_cast<size_t>(device)];
  if (slot.load(std::memory_order_relaxed) == nullptr) {
    slot.store(new DelegateTarget(made),
               std::memory_order_release);  // for as long as the process lives
  }
  return *slot.load(std::memory_order_relaxed);
}

const DelegateTarget& copying_target() {
  static const auto* const target = [] {
    auto* made = new DelegateTarget();
    made->kind = DelegateTarget::Kind::copied;
    made->allocator = c10::GetAllocator(c10::DeviceType::CPU);
    return made;
  }();
  return *target;
}

}  // namespace hologram::aten
