// Where torch's kernels run for a device: what a delegated call is delegated to.
//
// The backend says what its memory is (atlas/backend.h); what becomes of it depends on this torch,
// too: its CUDA kernels serve a device of CUDA's only if it was built with them and sees the device
// itself. Decided here, once for each device.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/macros/Macros.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "atlas/device.h"

namespace hologram::aten {

struct DelegateTarget {
  enum class Kind : uint8_t {
    shared,    // CPU kernels on the device's memory, when what is queued on it has finished
    launched,  // a vendor's kernels on the device's memory, in the order of its queue
    copied     // CPU kernels on copies
  };
  Kind kind = Kind::shared;
  // What the kernels' tensors are on: that of the vendor, or the CPU.
  c10::Device device{c10::kCPU};
  c10::BackendComponent backend = c10::BackendComponent::CPUBit;
  c10::DispatchKey key = c10::DispatchKey::CPU;  // of its dense tensors
  c10::Allocator* allocator = nullptr;           // of its memory
  // Whether what other libraries do with an address runs in the order of the current stream, which
  // is that of both devices (vendor_streams.h): nobody waits before an address is given out.
  bool in_stream_order = false;

  // Whether the kernels are torch's for the CPU.
  bool is_cpu() const noexcept { return C10_LIKELY(device.is_cpu()); }
  // Whether they work on the device's memory, and on the host.
  bool is_on_host_memory() const noexcept { return is_cpu() && kind != Kind::copied; }
  // The calling thread's current stream on the vendor's device, for Queue::lend.
  void* stream() const { return is_cpu() ? nullptr : vendor_stream(); }
  // "CPU", "CUDA".
  std::string name() const { return c10::DeviceTypeName(device.type()); }
  // The key of its kernels for tensors like those of ours that have these keys.
  c10::DispatchKeySet keys_like(c10::DispatchKeySet ours) const {
    return ours.remove_backend(c10::BackendComponent::PrivateUse1Bit) |
           c10::DispatchKeySet(backend);
  }

 private:
  void* vendor_stream() const;
};

namespace detail {
inline constinit std::array<std::atomic<const DelegateTarget*>, kMaxDevices> targets{};
const DelegateTarget& find_target(c10::DeviceIndex device);
}  // namespace detail

// That of a device; no check of the index.
inline const DelegateTarget& target_of(c10::DeviceIndex device) {
  const auto* const found =
      detail::targets[static_cast<size_t>(device)].load(std::memory_order_acquire);
  return C10_LIKELY(found != nullptr) ? *found : detail::find_target(device);
}

// Of operators that only the CPU has a kernel for, on a device whose memory is not the host's.
const DelegateTarget& copying_target();

// While one of these lives, the target's device is the current one of its type.
class TargetGuard {
 public:
  TargetGuard() = default;
  explicit TargetGuard(const DelegateTarget& target) { set(target); }
  void set(const DelegateTarget& target) {
    if (C10_UNLIKELY(!target.is_cpu())) guard_.reset_device(target.device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

}  // namespace hologram::aten
