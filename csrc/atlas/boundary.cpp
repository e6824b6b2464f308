#include "atlas/boundary.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "atlas/error.h"

namespace hologram {
namespace {

void check_range(const char* what, int64_t value, int64_t count) {
  if (value < 0 || value >= count) {
    throw Error("boundary " + std::string(what) + " " + std::to_string(value) +
                " is out of range: it must be from 0 to " + std::to_string(count - 1));
  }
}

// The set of pages at which `length` consecutive pages of `free` start.
uint64_t run_starts(uint64_t free, int length) noexcept {
  for (int have = 1; have < length;) {
    const int step = std::min(have, length - have);
    free &= free >> step;
    have += step;
  }
  return free;
}

// Bit 7 of each byte of `word` that is at least `value`; both are below 128.
uint64_t bytes_at_least(uint64_t word, int value) noexcept {
  static_assert(std::endian::native == std::endian::little, "byte i of a word is bits 8 i ..");
  constexpr uint64_t kOnes = 0x0101010101010101;
  return ((word | kOnes << 7) - kOnes * static_cast<uint64_t>(value)) & kOnes << 7;
}

int longest_run(uint64_t free) noexcept {
  int length = 0;
  for (; free != 0; free &= free >> 1) ++length;
  return length;
}

}  // namespace

void check_boundary_class(int64_t class_index) {
  check_range("class", class_index, kBoundaryClasses);
}

size_t boundary_offset(int64_t class_index, int64_t page, int64_t byte) {
  check_boundary_class(class_index);
  check_range("page", page, kBoundaryPages);
  check_range("byte", byte, kBoundaryPageBytes);
  return static_cast<size_t>(class_index) * kBoundaryClassBytes +
         static_cast<size_t>(page) * kBoundaryPageBytes + static_cast<size_t>(byte);
}

BoundaryAddress boundary_address(size_t offset) {
  if (offset >= kBoundaryBytes) {
    throw Error("boundary offset " + std::to_string(offset) +
                " is out of range: it must be from 0 to " + std::to_string(kBoundaryBytes - 1));
  }
  return {static_cast<int>(offset / kBoundaryClassBytes),
          static_cast<int>(offset % kBoundaryClassBytes / kBoundaryPageBytes),
          static_cast<int>(offset % kBoundaryPageBytes)};
}

void BoundaryPool::attach(void* base) noexcept {
  base_ = static_cast<char*>(base);
  bytes_ = kBoundaryBytes;
  longest_anywhere_ = kBoundaryPages;
}

void* BoundaryPool::detach() noexcept {
  void* const base = base_;
  clear();
  return base;
}

void BoundaryPool::clear() noexcept {
  base_ = nullptr;
  bytes_ = 0;
  longest_anywhere_ = 0;
  free_.fill(kAllPages);
  longest_.fill(kBoundaryPages);
  recent_.fill({});  // hints at the first page of all, as good as none
  requested_.fill(0);
}

// First fit over the classes. A failure lowers the bounds, so that no class is looked at again for
// a run of this length until a block of it was freed.
char* BoundaryPool::search(int pages, size_t nbytes) noexcept {
  constexpr size_t kPerWord = sizeof(uint64_t);
  for (size_t word = 0; word < longest_.size(); word += kPerWord) {
    uint64_t bounds;
    std::memcpy(&bounds, &longest_[word], kPerWord);
    for (uint64_t fits = bytes_at_least(bounds, pages); fits != 0; fits &= fits - 1) {
      const size_t i = word + static_cast<size_t>(std::countr_zero(fits)) / 8;
      if (const uint64_t starts = run_starts(free_[i], pages); starts != 0) {
        return take(i, std::countr_zero(starts), run_mask(pages), nbytes);
      }
      longest_[i] = static_cast<uint8_t>(pages - 1);
    }
  }
  longest_anywhere_ = pages - 1;
  return nullptr;
}

char* BoundaryPool::allocate_in(int class_index, size_t nbytes) noexcept {
  if (!attached()) return nullptr;
  const auto i = static_cast<size_t>(class_index);
  const int pages = pages_for(nbytes);
  const uint64_t starts = run_starts(free_[i], pages);
  return starts == 0 ? nullptr : take(i, std::countr_zero(starts), run_mask(pages), nbytes);
}

size_t BoundaryPool::retire(const void* data) noexcept {
  const auto offset = static_cast<size_t>(static_cast<const char*>(data) - base_);
  if (offset % kBoundaryPageBytes != 0) return 0;
  uint16_t& requested = requested_[offset / kBoundaryPageBytes];
  if ((requested & kRetired) != 0) return 0;
  const size_t nbytes = requested;
  if (nbytes != 0) requested |= kRetired;
  return nbytes;
}

BoundaryClassUsage BoundaryPool::usage(int class_index) const noexcept {
  const uint64_t free = free_[static_cast<size_t>(class_index)];
  return {std::popcount(free), longest_run(free)};
}

}  // namespace hologram
