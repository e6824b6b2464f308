#include "device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "commands.h"
#include "event.h"
#include "foundation.h"
#include "settings.h"

uintptr_t vm_page_size = 16384;  // that of Apple's processors

namespace simulated_metal {
namespace {

// Of what MTL::ResourceOptions has: storage that the host shares, hazards tracked as by default.
constexpr unsigned long kShared = 0;
constexpr unsigned long kFirstAppleFamily = 1001;
constexpr uint64_t kWorkingSet = uint64_t{10} << 30;
constexpr unsigned long kThreadgroupMemory = 32 * 1024;

// Where buffers that live begin, and their bytes.
struct Wrapped {
  std::mutex mutex;
  std::map<const char*, size_t> all;
};
Wrapped& wrapped() {
  static auto& its = *new Wrapped;
  return its;
}

bool is_there(char* memory, size_t bytes) {
  return ::msync(memory, bytes, MS_ASYNC) == 0 || errno != ENOMEM;
}

Buffer* make_buffer(char* memory, unsigned long bytes, unsigned long options, void* deallocator) {
  if (options != kShared) misuse("a buffer of other options than shared storage");
  if (deallocator != nullptr) misuse("a buffer with a deallocator");
  if (bytes > settings().most_buffer_bytes) misuse("a buffer of more bytes than there may be");
  if (settings().no_buffer.next()) return nullptr;
  return new Buffer(memory, bytes);
}

}  // namespace

Device::Device() : Object(Kinds::instance().at("MTLDevice")) {}

Device& Device::instance() {
  static auto& its = *new Device;
  return its;
}

Buffer::Buffer(char* memory, size_t bytes)
    : Object(Kinds::instance().at("MTLBuffer")), memory_(memory), bytes_(bytes) {
  if (bytes == 0 || bytes % vm_page_size != 0) {
    misuse("a buffer of " + std::to_string(bytes) + " bytes, which are not whole pages");
  }
  if (reinterpret_cast<uintptr_t>(memory) % vm_page_size != 0) {
    misuse("a buffer of memory that does not begin with a page");
  }
  if (!is_there(memory, bytes)) misuse("a buffer of memory that is not there");
  // Metal lets kernels wait for others that write to the same buffer, not to the same memory.
  Wrapped& its = wrapped();
  const std::lock_guard guard(its.mutex);
  const auto behind = its.all.lower_bound(memory + bytes);
  if (behind != its.all.begin()) {
    const auto& [start, size] = *std::prev(behind);
    if (start + size > memory) misuse("a buffer of memory that is another buffer's");
  }
  its.all.emplace(memory, bytes);
  Device::instance().allocated += bytes;
}

void Buffer::begin_use() {
  ++uses_;
  check_use();
}

void Buffer::end_use() {
  --uses_;
}

void Buffer::released() {
  check_use();
}

void Buffer::check_use() {
  // Uses end before the references that they have: of the two the later number is the lower one.
  int64_t all = 0, uses = 0;
  do {
    all = references();
    uses = uses_;
  } while (all != references());
  if (uses > 0 && all <= uses) {
    misuse("a buffer is released before kernels that use it have ended");
  }
}

void Buffer::deallocate() {
  Wrapped& its = wrapped();
  const std::lock_guard guard(its.mutex);
  its.all.erase(memory_);
  Device::instance().allocated -= bytes_;
}

void define_device(Kinds& kinds) {
  Kind& device = kinds.define("MTLDevice");
  device.add("name", [](Device*, SEL) { return autoreleased(new String("simulated Metal GPU")); });
  device.add("hasUnifiedMemory", [](Device*, SEL) { return settings().family > 0; });
  device.add("supportsFamily:", [](Device*, SEL, unsigned long family) {
    return family >= kFirstAppleFamily &&
           family < kFirstAppleFamily + static_cast<unsigned long>(settings().family);
  });
  device.add("recommendedMaxWorkingSetSize", [](Device*, SEL) { return kWorkingSet; });
  device.add("maxBufferLength", [](Device*, SEL) { return settings().most_buffer_bytes; });
  device.add("maxThreadgroupMemoryLength", [](Device*, SEL) { return kThreadgroupMemory; });
  device.add("currentAllocatedSize", [](Device* self, SEL) { return self->allocated.load(); });
  device.add("newCommandQueue", [](Device*, SEL) { return new CommandQueue; });
  device.add("newSharedEvent", [](Device*, SEL) { return new SharedEvent; });
  device.add("newBufferWithBytesNoCopy:length:options:deallocator:",
             [](Device*, SEL, char* memory, unsigned long bytes, unsigned long options,
                void* deallocator) { return make_buffer(memory, bytes, options, deallocator); });
  kinds.define("MTLBuffer");
}

}  // namespace simulated_metal

extern "C" {

// A function whose name has `Create`: the caller has a reference.
simulated_metal::Device* MTLCreateSystemDefaultDevice() {
  if (simulated_metal::settings().no_device) return nullptr;
  simulated_metal::Device& its = simulated_metal::Device::instance();
  its.retain();
  return &its;
}

// metal-cpp calls these in functions that nobody calls.
#define SIMULATED_METAL_UNKNOWN(name) \
  void name() {                       \
    simulated_metal::misuse(#name);   \
  }
SIMULATED_METAL_UNKNOWN(MTLCopyAllDevices)
SIMULATED_METAL_UNKNOWN(MTLCopyAllDevicesWithObserver)
SIMULATED_METAL_UNKNOWN(MTLRemoveDeviceObserver)
#undef SIMULATED_METAL_UNKNOWN

}  // extern "C"
