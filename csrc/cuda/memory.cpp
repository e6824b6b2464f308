#include "cuda/memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "atlas/backend.h"
#include "atlas/error.h"

namespace hologram::cuda {
namespace {

constexpr size_t kLargeAlignment = size_t{2} << 20;
constexpr size_t kHostAlignment = 64;

}  // namespace

void check_memory(Status status, size_t bytes, const char* call) {
  if (status == kOutOfMemory) {
    size_t free = 0, total = 0;
    driver().memory_info(&free, &total);
    throw OutOfMemory(bytes, total - free, total - free, total);
  }
  check(status, call);
}

Address allocate(size_t bytes) {
  Address memory = 0;
  check_memory(driver().allocate(&memory, bytes), bytes, "cuMemAlloc");
  return memory;
}

// 0 where there is none.
Address Segments::allocate_small() {
  const std::lock_guard lock(mutex_);
  constexpr Slots kAll = (Slots{1} << kSlots) - 1;
  auto found = std::ranges::find_if(shared_, [](const auto& its) { return its.second != kAll; });
  if (found == shared_.end()) {
    Address memory = 0;
    if (driver().allocate(&memory, kSlots * kSegmentAlignment) != kSuccess) return 0;
    if (memory % kSegmentAlignment != 0) {
      driver().free(memory);
      return 0;
    }
    found = shared_.emplace(memory, Slots{0}).first;
  }
  const int slot = std::countr_one(found->second);
  found->second |= Slots{1} << slot;
  return found->first + static_cast<size_t>(slot) * kSegmentAlignment;
}

bool Segments::free_small(Address segment) {
  const std::lock_guard lock(mutex_);
  auto found = shared_.upper_bound(segment);
  if (found == shared_.begin()) return false;
  --found;
  const size_t slot = (segment - found->first) / kSegmentAlignment;
  if (slot >= kSlots) return false;
  found->second &= ~(Slots{1} << slot);
  if (found->second == 0) {
    driver().free(found->first);
    shared_.erase(found);
  }
  return true;
}

// The driver gives memory from 1 MiB on in pages of 2 MiB. Where it does not, a segment begins
// later than its memory.
void* Segments::allocate(size_t bytes) noexcept {
  try {
    const ContextGuard guard(gpu_);
    if (bytes == kSegmentAlignment) {
      if (const Address small = allocate_small(); small != 0) return reinterpret_cast<void*>(small);
    }
    const size_t alignment = bytes >= kLargeAlignment ? kLargeAlignment : kSegmentAlignment;
    Address memory = 0;
    if (driver().allocate(&memory, bytes) != kSuccess) return nullptr;
    if (memory % alignment != 0) {
      driver().free(memory);
      if (driver().allocate(&memory, bytes + alignment) != kSuccess) return nullptr;
      const Address segment = (memory + alignment - 1) / alignment * alignment;
      const std::lock_guard lock(mutex_);
      moved_.emplace(segment, memory);
      memory = segment;
    }
    return reinterpret_cast<void*>(memory);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void Segments::free(void* data) noexcept {
  try {
    const ContextGuard guard(gpu_);
    auto memory = reinterpret_cast<Address>(data);
    if (free_small(memory)) return;
    {
      const std::lock_guard lock(mutex_);
      const auto found = moved_.find(memory);
      if (found != moved_.end()) {
        memory = found->second;
        moved_.erase(found);
      }
    }
    driver().free(memory);
  } catch (const std::exception&) {  // the context is lost, and its memory with it
  }
}

void* HostMemory::allocate(size_t bytes) noexcept {
  try {
    const ContextGuard guard(gpu_);
    void* memory = nullptr;
    const Status status = driver().allocate_host(&memory, bytes, kHostMemoryPortable);
    if (status == kSuccess) return memory;
    if (status == kOutOfMemory) return nullptr;
    memory = std::aligned_alloc(kHostAlignment,
                                (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
    const std::lock_guard lock(mutex_);
    if (memory != nullptr) others_.insert(memory);
    return memory;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void HostMemory::free(void* data) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (others_.erase(data) != 0) return std::free(data);
    }
    const ContextGuard guard(gpu_);
    driver().free_host(data);
  } catch (const std::exception&) {  // the context is lost, and its memory with it
  }
}

Constants::Constants(const Gpu& gpu) : gpu_(gpu) {
  const ContextGuard guard(gpu_);
  check(driver().create_stream(&stream_, kStreamNonBlocking, 0), "cuStreamCreate");
}

Constants::~Constants() {
  try {
    const ContextGuard guard(gpu_);
    driver().destroy_stream(stream_);
  } catch (const std::exception&) {  // the context is lost, and all that it had
  }
}

Address Constants::add(std::span<const uint32_t> words) {
  const ContextGuard guard(gpu_);
  const std::lock_guard lock(mutex_);
  const Address address =
      pool_.take(words.size_bytes(), [](size_t bytes) { return allocate(bytes); });
  check(driver().copy_to_device(address, words.data(), words.size_bytes(), stream_),
        "cuMemcpyHtoDAsync");
  check(driver().synchronize_stream(stream_), "cuStreamSynchronize");
  return address;
}

void Constants::remove(Address address, size_t words) noexcept {
  const std::lock_guard lock(mutex_);
  pool_.give(address, words * sizeof(uint32_t));
}

}  // namespace hologram::cuda
