#include "aten/precompiled.h"

#include "aten/pinned.h"

#include <ATen/Context.h>
#include <c10/core/impl/alloc_cpu.h>

#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "aten/delegate_target.h"
#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/fork.h"

namespace hologram::aten {
namespace {

using HostBlock = at::HostBlock<c10::Stream>;

// Where pinned memory comes from; torch's allocator keeps what is freed.
class PinnedMemory {
 public:
  void* allocate(size_t bytes) {
    Memory memory{bytes, nullptr};
    void* data = nullptr;
    if (hologram::device_count() == 0 || in_forked_child()) {
      data = c10::alloc_cpu(bytes);  // any host memory is as good for no device
    } else {
      memory.backend = &backend();
      data = memory.backend->allocate_host(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr,
                       "hologram: no page-locked host memory of ", bytes, " bytes");
    }
    const std::lock_guard lock(mutex_);
    held_.emplace(reinterpret_cast<uintptr_t>(data), memory);
    return data;
  }
  void free(void* data) {
    Memory memory;
    {
      const std::lock_guard lock(mutex_);
      const auto found = held_.find(reinterpret_cast<uintptr_t>(data));
      memory = found->second;
      held_.erase(found);
    }
    if (memory.backend == nullptr) {
      c10::free_cpu(data);
    } else {
      memory.backend->free_host(data, memory.bytes);
    }
  }
  bool contains(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard lock(mutex_);
    auto next = held_.upper_bound(address);
    if (next == held_.begin()) return false;
    --next;
    return address < next->first + next->second.bytes;
  }

 private:
  // What is freed is handed out again for any device: so it is that of one that copies it while the
  // host goes on, where there is one.
  static Backend& backend() {
    const int current = aten::current_device();
    const int count = hologram::device_count();
    for (int i = 0; i < count; ++i) {
      Device& device = hologram::device((current + i) % count);
      if (device.properties().asynchronous) return device.backend();
    }
    return hologram::device(current).backend();
  }

  struct Memory {
    size_t bytes = 0;
    Backend* backend = nullptr;  // null: torch's
  };
  std::mutex mutex_;
  std::map<uintptr_t, Memory> held_;  // by base address
};

PinnedMemory& memory() {
  static auto* memory = new PinnedMemory();  // outlives every tensor
  return *memory;
}

struct PinnedImpl final : at::CachingHostAllocatorImpl<c10::Stream, Fence> {
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static int64_t microseconds_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
  }

  void allocate_host_memory(size_t size, void** data) override {
    const auto start = Clock::now();
    *data = memory().allocate(size);
    const std::lock_guard lock(stats_.timing_mutex_);
    stats_.host_alloc_time.increase(microseconds_since(start));
  }
  void free_block(HostBlock* block) override {
    const auto start = Clock::now();
    memory().free(block->ptr_);
    const std::lock_guard lock(stats_.timing_mutex_);
    stats_.host_free_time.increase(microseconds_since(start));
  }
  // What uses the memory has been enqueued already.
  void record_stream(std::optional<std::vector<Fence>>& fences, c10::Stream stream) override {
    Queue& queue = *hologram::device(stream.device_index()).channels().of(stream.id()).queue;
    fences->push_back({&queue, queue.last()});
  }
  bool query_event(Fence& fence) override { return !fence.outstanding(); }
  c10::Stream get_current_stream() const override {
    const auto device = aten::current_device();
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kHologram, device),
                       hologram::current_stream(device));
  }
  bool stream_is_capturing(c10::Stream) const override { return false; }
};

void release(void* context);

using PinnedAllocator = at::CachingHostAllocatorInterface<PinnedImpl, &release>;

PinnedAllocator& instance() {
  static auto* allocator = new PinnedAllocator();  // outlives every tensor
  return *allocator;
}

void release(void* context) {
  instance().free(context);
}

}  // namespace

REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &instance())

namespace {

// The type of torch's device whose pinned memory serves the current device; CPU where none does.
c10::DeviceType vendor(bool if_used) {
  if ((if_used && !is_initialized()) || hologram::device_count() == 0 || in_forked_child()) {
    return c10::kCPU;
  }
  const auto current = aten::current_device();
  if (if_used && device_if_used(current) == nullptr) return c10::kCPU;
  return target_of(current).device.type();
}

// Memory of another allocator that copies use. It is looked at when there is more of it.
class Kept {
 public:
  void add(c10::StorageImpl* storage, Fence fence) {
    std::vector<Use> done;  // let go of without the lock
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < uses_.size();) {
      if (uses_[i].fence.outstanding()) {
        ++i;
        continue;
      }
      std::swap(uses_[i], uses_.back());
      done.push_back(std::move(uses_.back()));
      uses_.pop_back();
    }
    uses_.push_back({c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage), fence});
  }

 private:
  struct Use {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    Fence fence;
  };
  std::mutex mutex_;
  std::vector<Use> uses_;
};

}  // namespace

at::HostAllocator& own_pinned_allocator() {
  return instance();
}
at::HostAllocator& pinned_allocator() {
  const c10::DeviceType type = vendor(false);
  return type != c10::kCPU ? *at::getHostAllocator(type) : instance();
}
bool is_own_pinned_pointer(const void* pointer) {
  return memory().contains(pointer);
}
bool is_pinned_pointer(const void* pointer) {
  if (is_own_pinned_pointer(pointer)) return true;
  const c10::DeviceType type = vendor(true);
  return type != c10::kCPU &&
         at::globalContext().getAcceleratorHooksInterface(type).isPinnedPtr(pointer);
}

void keep_until_done(c10::StorageImpl* pinned, c10::DeviceIndex device) {
  const StreamId stream = current_stream(device);
  const c10::DataPtr& data = pinned->data_ptr();
  if (is_own_pinned_pointer(data.get())) {
    instance().record_event(
        data.get(), data.get_context(),
        c10::Stream(c10::Stream::UNSAFE, c10::Device(kHologram, device), stream));
    return;
  }
  static auto* const kept = new Kept();  // outlives every tensor
  Queue& queue = hologram::device(device).queue(stream);
  kept->add(pinned, {&queue, queue.last()});
}

}  // namespace hologram::aten
