#include "aten/precompiled.h"

#include "aten/runtime.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "aten/block.h"
#include "aten/compat.h"
#include "aten/report.h"
#include "atlas/device.h"
#include "atlas/error.h"
#include "atlas/fork.h"
#include "atlas/memory_stats.h"

namespace hologram::aten {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

void fill(StatArray& to, const Counter& from) {
  // Everything is one pool to torch; its large/small split is CUDA's.
  auto& stat = to[static_cast<size_t>(StatType::AGGREGATE)];
  stat.current = from.current;
  stat.peak = from.peak;
  stat.allocated = from.allocated;
  stat.freed = from.freed;
}

struct HologramAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    return allocate_block(nbytes, check_device(c10::DeviceIndex(-1)));
  }
  // The context of a DataPtr is a Block, not its data, so raw allocation is not offered.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  // Both of one device.
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    Device* const device = device_owning(dest);
    if (device == nullptr || device->memory().host_addressable()) {
      std::memcpy(dest, src, count);
    } else {
      device->synchronize();
      Queue& queue = *device->channels().first().queue;
      queue.wait(queue.copy(dest, src, count, Direction::on_device));
    }
  }

  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override { empty_caches(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_use(block_of(data), stream);
  }

  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const auto stats = device_memory(check_device(index)).stats();
    DeviceStats out;
    fill(out.allocation, stats.allocation);
    fill(out.segment, stats.segment);
    fill(out.active, stats.active);
    fill(out.allocated_bytes, stats.allocated_bytes);
    fill(out.reserved_bytes, stats.reserved_bytes);
    fill(out.active_bytes, stats.allocated_bytes);
    fill(out.requested_bytes, stats.requested_bytes);
    out.num_alloc_retries = stats.num_alloc_retries;
    out.num_ooms = stats.num_ooms;
    out.num_device_alloc = stats.num_device_alloc;
    out.num_device_free = stats.num_device_free;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    device_memory(check_device(index)).reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    device_memory(check_device(index)).reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return device_memory(check_device(index)).info();
  }
};

HologramAllocator& allocator() {
  static auto* allocator = new HologramAllocator();  // outlives every storage
  return *allocator;
}

}  // namespace

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator())

MemoryPool& device_memory(c10::DeviceIndex index) {
  return device(index).memory();
}

void empty_caches() {
  for (int index = 0; index < device_count(); ++index) {
    if (Device* const used = device_if_used(index)) {
      used->channels().flush(FlushReason::memory);  // it holds blocks that tensors have freed
      used->memory().trim();
      used->drop_plans();
    }
  }
}

c10::Allocator* device_allocator() {
  return &allocator();
}

c10::DeviceIndex current_device() {
  return static_cast<c10::DeviceIndex>(hologram::current_device());
}

c10::DeviceIndex check_device(c10::DeviceIndex index) {
  if (C10_UNLIKELY(in_forked_child())) {
    refuse_forked_child();
  }
  if (C10_UNLIKELY(!is_initialized())) {
    try {
      check_any_device();
    } catch (const Error& error) {
      TORCH_CHECK(false, error.what());
    }
    mark_initialized();
  }
  if (index == -1) {
    return current_device();
  }
  // torch reads "hologram:200" as index 200 - 256.
  if (C10_UNLIKELY(index < 0 || index >= device_count())) {
    TORCH_CHECK(false, "hologram device index ", static_cast<int>(index),
                " is out of range: ", device_count(), " device(s) available");
  }
  return index;
}

void check_stream(const c10::Stream& stream) {
  const auto index = check_device(stream.device());
  TORCH_CHECK(hologram::device(index).has_stream(stream.id()), "hologram:", static_cast<int>(index),
              " has no stream with id ", stream.id());
}

c10::DeviceIndex check_device(std::optional<c10::Device> device) {
  TORCH_CHECK(!device || device->type() == kHologram, "Expected a hologram device, got ", *device);
  return check_device(device ? device->index() : c10::DeviceIndex(-1));
}

}  // namespace hologram::aten
