// The memory of the simulated devices: addresses that fault where the host touches them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace sim {

// A range of addresses that nobody can read or write, and behind it, at a fixed distance, the bytes
// that they name. Only a device's queues go there.
class Memory {
 public:
  static Memory& instance();  // of all devices, outlives their threads

  // Aligned as Backend::allocate_segment() demands; null where the range has no more.
  void* allocate(size_t bytes) noexcept;
  void free(void* data, size_t bytes) noexcept;

  // Where the bytes of an address are; null stays null.
  static void* bytes_of(const void* address) noexcept {
    if (address == nullptr) return nullptr;
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) + kDistance);
  }
  bool contains(const void* address) const noexcept {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= start_ && at < start_ + kDistance;
  }

 private:
  Memory();
  static constexpr size_t kDistance = size_t{64} << 30;  // bytes of all devices together

  uintptr_t start_ = 0;  // 0 where the range could not be had
  std::mutex mutex_;
  std::map<uintptr_t, size_t> free_;  // where free parts of the range begin, and their bytes
};

}  // namespace sim
