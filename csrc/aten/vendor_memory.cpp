#include "aten/precompiled.h"

#include "aten/vendor_memory.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Registry.h>
#include <dlfcn.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "atlas/device.h"

// As c10/cuda/CUDACachingAllocator.h has it, which includes CUDA's headers.
namespace c10 {
class FreeMemoryCallback {
 public:
  virtual ~FreeMemoryCallback() = default;
  virtual bool Execute() = 0;
};
}  // namespace c10

namespace hologram::aten {
namespace {

// Null where this torch has no kernels for the vendor's devices, or nobody has used them.
c10::DeviceAllocator* allocator_of(const DeviceProperties& properties) noexcept {
  try {
    if (properties.vendor.empty()) return nullptr;
    const c10::DeviceType type = c10::Device(properties.vendor).type();
    if (type == c10::kCPU || !c10::impl::hasDeviceGuardImpl(type)) return nullptr;
    auto* const its = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
    return its != nullptr && its->initialized() ? its : nullptr;
  } catch (const std::exception&) {  // a torch that does not know the vendor
    return nullptr;
  }
}

thread_local bool keeps_idle_memory = false;

// Idle memory is worth giving back from this share of what is free on.
constexpr size_t kShareOfFree = 4;

// torch's CUDA allocator calls them before it asks the driver for memory, whether or not the driver
// has it: what is idle here stays as long as there is far more that nobody holds.
class IdleMemory final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    if (keeps_idle_memory) return false;
    for (int index = 0; index < device_count(); ++index) {
      Device* const device = device_if_used(index);
      if (device == nullptr || device->properties().vendor != "cuda") continue;
      const size_t idle = device->memory().idle_bytes();
      if (idle == 0 || idle < device->backend().available_memory() / kShareOfFree) continue;
      // Not where another thread of ours is asking torch's for memory just now.
      device->memory().try_trim();
    }
    return false;  // it is the driver that has more
  }
};

using Callbacks = c10::Registry<std::string, std::unique_ptr<c10::FreeMemoryCallback>>;

// That of the allocator, in a library that only a torch with CUDA has; null without it.
Callbacks* callbacks() {
  void* const library = ::dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  // c10::FreeCudaMemoryCallbacksRegistry(), whose type has a std::string
  void* const found = ::dlsym(library, "_ZN3c1031FreeCudaMemoryCallbacksRegistryB5cxx11Ev");
  return found != nullptr ? reinterpret_cast<Callbacks* (*)()>(found)() : nullptr;
}

}  // namespace

bool empty_vendor_cache(const DeviceProperties& properties) noexcept {
  try {
    c10::DeviceAllocator* const its = allocator_of(properties);
    if (its == nullptr) return false;
    its->emptyCache();
    return true;
  } catch (const std::exception&) {  // a device that cannot be used any more
    return false;
  }
}

KeepIdleMemory::KeepIdleMemory() noexcept : before_(std::exchange(keeps_idle_memory, true)) {}

KeepIdleMemory::~KeepIdleMemory() {
  keeps_idle_memory = before_;
}

void offer_idle_memory() {
  if (Callbacks* const all = callbacks()) {
    all->Register("hologram", [] { return std::make_unique<IdleMemory>(); });
  }
}

std::optional<c10::CachingDeviceAllocator::DeviceStats> vendor_stats(
    const DeviceProperties& properties) {
  c10::DeviceAllocator* const its = allocator_of(properties);
  if (its == nullptr) return std::nullopt;
  return its->getDeviceStats(static_cast<c10::DeviceIndex>(properties.vendor_ordinal));
}

}  // namespace hologram::aten
