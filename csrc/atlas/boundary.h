// The boundary pool: one region of 96 classes x 48 pages x 256 bytes for small blocks.
//
// A block is a run of consecutive pages inside one class. A 48-bit mask per class says which pages
// are taken and is the only truth about it; what makes an allocation fast are hints that are
// checked against the mask when they are used: the runs freed last, by length, and an upper bound
// of each class's longest free run. Neighbouring free pages need no merging: they are bits.
//
// The same classes partition the 256 values of a byte (byte_to_class), and a place in the region
// is addressed by (class, page, byte).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "atlas/allocation.h"

namespace hologram {

inline constexpr int kBoundaryClasses = 96;
inline constexpr int kBoundaryPages = 48;  // in a class
inline constexpr int kBoundaryPageBytes = 256;
inline constexpr size_t kBoundaryClassBytes = size_t{kBoundaryPages} * kBoundaryPageBytes;
inline constexpr size_t kBoundaryBytes = kBoundaryClasses * kBoundaryClassBytes;

// Throws Error for a class outside 0..95.
void check_boundary_class(int64_t class_index);

// Class of a byte, 24 * h + 8 * d + l: h is bits 7..6; d is 1 where of bits 4 and 5 only bit 4 is
// set, 2 where only bit 5 is, else 0; l is bits 3..1. Bit 0 does not matter.
constexpr int byte_to_class(uint8_t byte) noexcept {
  const int bits = byte >> 4 & 3;
  const int d = bits == 3 ? 0 : bits;
  return 24 * (byte >> 6) + 8 * d + (byte >> 1 & 7);
}

// The canonical byte of a class: bit 0 is 0 and bits 4 and 5 are not both 1. Throws Error for a
// class outside 0..95.
constexpr uint8_t class_to_byte(int class_index) {
  if (class_index < 0 || class_index >= kBoundaryClasses) check_boundary_class(class_index);
  return static_cast<uint8_t>(class_index / 24 << 6 | class_index / 8 % 3 << 4 |
                              class_index % 8 << 1);
}

struct BoundaryAddress {
  int class_index = 0, page = 0, byte = 0;
  friend bool operator==(const BoundaryAddress&, const BoundaryAddress&) = default;
};

// 12288 * class + 256 * page + byte, an offset into the region. Throws Error for a class outside
// 0..95, a page outside 0..47 or a byte outside 0..255.
size_t boundary_offset(int64_t class_index, int64_t page, int64_t byte);

// The inverse. Throws Error for an offset outside the region.
BoundaryAddress boundary_address(size_t offset);

struct BoundaryClassUsage {
  int free_pages = 0;
  int longest_free_run = 0;  // pages
};

// Bookkeeping of one region, which it neither makes nor touches. Not synchronised: MemoryPool calls
// it under its lock.
class BoundaryPool {
 public:
  explicit BoundaryPool(BlockOrder order = BlockOrder::warmest) noexcept : order_(order) {
    clear();
  }
  BoundaryPool(const BoundaryPool&) = delete;
  BoundaryPool& operator=(const BoundaryPool&) = delete;

  // Pages of a block of 1..12288 bytes.
  static constexpr int pages_for(size_t nbytes) noexcept {
    return static_cast<int>((nbytes + kBoundaryPageBytes - 1) / kBoundaryPageBytes);
  }
  // Its bytes.
  static constexpr size_t capacity_for(size_t nbytes) noexcept {
    return static_cast<size_t>(pages_for(nbytes)) * kBoundaryPageBytes;
  }

  // Starts handing out [base, base + kBoundaryBytes); detach() ends it, with no block in use.
  void attach(void* base) noexcept;
  void* detach() noexcept;
  bool attached() const noexcept { return bytes_ != 0; }
  char* base() const noexcept { return base_; }  // nullptr when not attached

  bool contains(const void* pointer) const noexcept {
    return reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(base_) < bytes_;
  }

  // A block for 1..12288 bytes; nullptr when no class has a long enough run, or not attached.
  char* allocate(size_t nbytes) noexcept;

  // The same in class 0..95.
  char* allocate_in(int class_index, size_t nbytes) noexcept;

  // Frees the block at `data`, which the region contains, and returns for how many bytes it was
  // allocated; 0, with nothing changed, where no block in use starts.
  size_t deallocate(const void* data) noexcept;

  // Marks the block at `data`, which the region contains, as one that is about to be freed. Returns
  // what deallocate() does; 0 also for a block that is marked.
  size_t retire(const void* data) noexcept;
  bool is_retired(const void* data) const noexcept {
    return (requested_[static_cast<size_t>(static_cast<const char*>(data) - base_) /
                       kBoundaryPageBytes] &
            kRetired) != 0;
  }

  BoundaryClassUsage usage(int class_index) const noexcept;

  // Bytes requested of the block that starts at each page, 0 where none does; with kRetired where
  // it is retired.
  static constexpr uint16_t kRetired = 1 << 15;
  using Requests = std::array<uint16_t, size_t{kBoundaryClasses} * kBoundaryPages>;
  const Requests& requests() const noexcept { return requested_; }
  // Of the block that starts at an address in the region; 0 where none does.
  size_t requested(const void* data) const noexcept {
    const auto offset = static_cast<size_t>(static_cast<const char*>(data) - base_);
    return offset % kBoundaryPageBytes == 0 ? requested_[offset / kBoundaryPageBytes] & ~kRetired
                                            : 0;
  }

 private:
  static constexpr uint64_t kAllPages = (uint64_t{1} << kBoundaryPages) - 1;

  // A page of the region is 48 * class + page of the class, its "place".
  //
  // Where runs of one length were freed, the last on top: a stack in a ring, whose oldest entries
  // are lost to new ones. Nothing says how many are left: an old entry is as good a hint as any.
  struct Recent {
    static constexpr uint8_t kDepth = 64;  // divides 256, so that `top` may wrap
    std::array<uint16_t, kDepth> places;
    uint8_t top;
  };
  static constexpr int kHintsTried = 2;

  static uint64_t run_mask(int pages) noexcept { return kAllPages >> (kBoundaryPages - pages); }
  void clear() noexcept;
  char* search(int pages, size_t nbytes) noexcept;
  char* take(size_t class_index, int page, uint64_t run, size_t nbytes) noexcept;

  const BlockOrder order_;
  char* base_ = nullptr;
  size_t bytes_ = 0;  // of the region: kBoundaryBytes, or 0 when not attached
  std::array<uint64_t, kBoundaryClasses> free_;  // bit p: page p is free
  // Upper bounds of the longest free run, of each class and of all; the last is 0 when not
  // attached. A free raises them to what a class holds, a search in vain lowers them.
  alignas(8) std::array<uint8_t, kBoundaryClasses> longest_;
  int longest_anywhere_;
  std::array<Recent, kBoundaryPages> recent_;  // by length - 1
  Requests requested_;
};

inline char* BoundaryPool::allocate(size_t nbytes) noexcept {
  const int pages = pages_for(nbytes);
  if (pages > longest_anywhere_) return nullptr;
  if (order_ == BlockOrder::lowest) [[unlikely]]
    return search(pages, nbytes);
  const uint64_t run = run_mask(pages);
  Recent& recent = recent_[static_cast<size_t>(pages - 1)];
  for (int i = 0; i < kHintsTried; ++i) {
    const size_t hint = recent.places[--recent.top % Recent::kDepth];
    const size_t class_index = hint / 64;
    const int page = static_cast<int>(hint % 64);
    if ((free_[class_index] >> page & run) == run) return take(class_index, page, run, nbytes);
  }
  return search(pages, nbytes);
}

inline char* BoundaryPool::take(size_t class_index, int page, uint64_t run,
                                size_t nbytes) noexcept {
  free_[class_index] ^= run << page;
  const size_t place = class_index * kBoundaryPages + static_cast<size_t>(page);
  requested_[place] = static_cast<uint16_t>(nbytes);
  return base_ + place * kBoundaryPageBytes;
}

inline size_t BoundaryPool::deallocate(const void* data) noexcept {
  const auto offset = static_cast<size_t>(static_cast<const char*>(data) - base_);
  if (offset % kBoundaryPageBytes != 0) return 0;
  const size_t place = offset / kBoundaryPageBytes;
  const size_t nbytes = requested_[place] & ~kRetired;
  if (nbytes == 0) return 0;
  requested_[place] = 0;
  const size_t class_index = place / kBoundaryPages;
  const int page = static_cast<int>(place % kBoundaryPages);
  const int pages = pages_for(nbytes);
  free_[class_index] ^= run_mask(pages) << page;
  Recent& recent = recent_[static_cast<size_t>(pages - 1)];
  recent.places[recent.top++ % Recent::kDepth] =
      static_cast<uint16_t>(class_index * 64 + static_cast<size_t>(page));
  // How long a free run it is part of now is left to the next search.
  longest_[class_index] = kBoundaryPages;
  longest_anywhere_ = kBoundaryPages;
  return nbytes;
}

}  // namespace hologram
