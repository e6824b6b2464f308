#include "aten/precompiled.h"

#include "aten/pinned.h"

#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace hologram::aten {
namespace {

// A caching allocator over c10::alloc_cpu. One lock: pinned allocations are batches, not scalars.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (nbytes == 0) {
      return {nullptr, nullptr, &release, cpu};
    }
    const size_t capacity = std::bit_ceil(std::max<size_t>(nbytes, 64));
    std::lock_guard<std::mutex> lock(mutex_);
    void* data = nullptr;
    if (auto& free = free_[capacity]; !free.empty()) {
      data = free.back();
      free.pop_back();
    } else {
      const auto start = std::chrono::steady_clock::now();
      data = c10::alloc_cpu(capacity);
      const auto spent = std::chrono::steady_clock::now() - start;
      stats_.host_alloc_time.increase(
          std::chrono::duration_cast<std::chrono::microseconds>(spent).count());
      stats_.num_host_alloc += 1;
      stats_.allocations.increase(1);
      stats_.allocated_bytes.increase(capacity);
      stats_.bucket_allocation[std::bit_width(capacity) - 1] += 1;
    }
    live_.emplace(reinterpret_cast<uintptr_t>(data), capacity);
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(capacity);
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

  // Host execution has finished with the memory by the time the call returns.
  bool record_event(void* pointer, void*, c10::Stream) override { return contains(pointer); }
  void empty_cache() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [capacity, blocks] : free_) {
      for (void* data : blocks) {
        c10::free_cpu(data);
        stats_.num_host_free += 1;
        stats_.allocations.decrease(1);
        stats_.allocated_bytes.decrease(capacity);
        stats_.bucket_allocation[std::bit_width(capacity) - 1] -= 1;
      }
    }
    free_.clear();
  }
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : counters()) {
      stat->reset_accumulated();
    }
    stats_.host_alloc_time.reset_accumulated();
    stats_.host_free_time.reset_accumulated();
    stats_.num_host_alloc = 0;
    stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : counters()) {
      stat->reset_peak();
    }
    stats_.host_alloc_time.reset_peak();
    stats_.host_free_time.reset_peak();
  }

  bool contains(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = live_.upper_bound(address);
    if (next == live_.begin()) {
      return false;
    }
    --next;
    return address < next->first + next->second;
  }

 private:
  static void release(void* context);

  void deallocate(void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = live_.find(reinterpret_cast<uintptr_t>(data));
    const size_t capacity = entry->second;
    live_.erase(entry);
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(capacity);
    free_[capacity].push_back(data);
  }
  std::vector<at::Stat*> counters() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
            &stats_.allocated_bytes};
  }

  std::mutex mutex_;
  std::map<uintptr_t, size_t> live_;                     // base address -> capacity
  std::unordered_map<size_t, std::vector<void*>> free_;  // capacity -> blocks, last in first out
  at::HostStats stats_;
};

PinnedAllocator& instance() {
  static auto* allocator = new PinnedAllocator();  // outlives every tensor
  return *allocator;
}

void PinnedAllocator::release(void* context) {
  if (context != nullptr) {
    instance().deallocate(context);
  }
}

}  // namespace

REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &instance())

at::HostAllocator& pinned_host_allocator() {
  return instance();
}
c10::Allocator* pinned_allocator() {
  return &instance();
}
bool is_pinned_pointer(const void* pointer) {
  return instance().contains(pointer);
}

}  // namespace hologram::aten
