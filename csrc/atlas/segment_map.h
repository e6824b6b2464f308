// Which segment of the linear pool covers an address.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "atlas/backend.h"

namespace hologram {

struct Segment;

// A two-level table over the 1 MiB units of a 48-bit address space. No unit is covered by two
// segments, since each starts at a multiple of the unit.
class SegmentMap {
 public:
  ~SegmentMap() {
    for (auto& entry : root_) delete entry.load();
  }

  Segment* find(const void* pointer) const noexcept {
    const size_t unit = unit_of(pointer);
    if (unit >> (2 * kBits) != 0) return nullptr;
    const Leaf* leaf = root_[unit >> kBits].load(std::memory_order_acquire);
    return leaf != nullptr ? leaf->entries[unit & kMask] : nullptr;
  }

  // Makes the table cover [base, base + bytes), so that set() cannot fail. Throws std::bad_alloc.
  // One thread at a time; others may find() and set() meanwhile.
  void prepare(const void* base, size_t bytes) {
    for (size_t i = unit_of(base) >> kBits; i <= last_unit(base, bytes) >> kBits; ++i) {
      if (root_.at(i).load(std::memory_order_relaxed) == nullptr) {
        root_[i].store(new Leaf(), std::memory_order_release);
      }
    }
  }

  // Callers hold a lock that those of find() hold, too.
  void set(const void* base, size_t bytes, Segment* segment) noexcept {
    for (size_t unit = unit_of(base); unit <= last_unit(base, bytes); ++unit) {
      root_[unit >> kBits].load(std::memory_order_relaxed)->entries[unit & kMask] = segment;
    }
  }

 private:
  static constexpr int kBits = 14;
  static constexpr size_t kMask = (size_t{1} << kBits) - 1;
  struct Leaf {
    std::array<Segment*, kMask + 1> entries{};
  };

  static size_t unit_of(const void* pointer) noexcept {
    return reinterpret_cast<uintptr_t>(pointer) / kSegmentAlignment;
  }
  static size_t last_unit(const void* base, size_t bytes) noexcept {
    return (reinterpret_cast<uintptr_t>(base) + bytes - 1) / kSegmentAlignment;
  }

  std::array<std::atomic<Leaf*>, kMask + 1> root_{};
};

}  // namespace hologram
