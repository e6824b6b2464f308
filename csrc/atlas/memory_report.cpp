// What a memory pool says of itself: counters, classes of the boundary pool, segments and blocks.
#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "atlas/memory.h"

namespace hologram {
namespace {

// Adds the block that follows the ones listed so far; requested == 0: it is not in use. `joins`:
// whether it may become one with an inactive block before it.
void append_block(SegmentInfo& segment, const char* address, size_t size, size_t requested,
                  bool retired = false, bool joins = true) {
  if (requested != 0) {
    if (!retired) segment.allocated_size += size;
    segment.blocks.push_back({address, size, requested, true, retired});
  } else if (joins && !segment.blocks.empty() && !segment.blocks.back().active) {
    segment.blocks.back().size += size;
  } else {
    segment.blocks.push_back({address, size, 0, false, false});
  }
}

}  // namespace

MemoryStats MemoryPool::stats() const {
  const std::lock_guard guard(lock_);
  MemoryStats stats = counters_.read();
  stats.limit = limit_;
  return stats;
}

void MemoryPool::reset_peak() noexcept {
  const std::lock_guard guard(lock_);
  counters_.reset_peak();
}

void MemoryPool::reset_accumulated() noexcept {
  const std::lock_guard guard(lock_);
  counters_.reset_accumulated();
}

BoundaryClassUsage MemoryPool::boundary_class(int class_index) const {
  check_boundary_class(class_index);
  const std::lock_guard guard(lock_);
  return boundary_.usage(class_index);
}

std::array<BoundaryClassUsage, kBoundaryClasses> MemoryPool::boundary_classes() const {
  std::array<BoundaryClassUsage, kBoundaryClasses> usage;
  const std::lock_guard guard(lock_);
  for (int i = 0; i < kBoundaryClasses; ++i) {
    usage[static_cast<size_t>(i)] = boundary_.usage(i);
  }
  return usage;
}

const void* MemoryPool::boundary_base() const noexcept {
  const std::lock_guard guard(lock_);
  return boundary_.base();
}

// Callers hold growth_.
SegmentInfo MemoryPool::boundary_snapshot() const {
  const auto requests = std::make_unique<BoundaryPool::Requests>();
  {
    const std::lock_guard guard(lock_);
    *requests = boundary_.requests();
  }
  SegmentInfo info{boundary_.base(), kBoundaryBytes, 0, "boundary", {}};
  for (size_t place = 0, pages; place < requests->size(); place += pages) {
    const bool retired = ((*requests)[place] & BoundaryPool::kRetired) != 0;
    const size_t nbytes = (*requests)[place] & ~BoundaryPool::kRetired;
    const size_t capacity = BoundaryPool::capacity_for(std::max(nbytes, size_t{1}));
    append_block(info, boundary_.base() + place * kBoundaryPageBytes, capacity, nbytes, retired,
                 place % kBoundaryPages != 0);
    pages = capacity / kBoundaryPageBytes;
  }
  return info;
}

// Callers hold growth_.
SegmentInfo MemoryPool::linear_snapshot(const Segment& segment) const {
  const SizeClass& size_class = *segment.size_class;
  std::vector<size_t> requested(size_class.blocks_per_segment);
  size_t counted;
  {
    const std::lock_guard guard(lock_);
    counted = segment.counted;
    for (size_t i = 0; i < requested.size(); ++i) {
      requested[i] = segment.requested_of(segment.base + i * size_class.capacity);
    }
  }
  SegmentInfo info{segment.base, segment.bytes, 0, "linear", {}};
  for (size_t i = 0; i < requested.size(); ++i) {
    const char* const start = segment.base + i * size_class.capacity;
    const size_t used = requested[i] == 0 ? size_class.capacity : counted;
    append_block(info, start, used, requested[i] & ~Segment::kRetired,
                 (requested[i] & Segment::kRetired) != 0);
    if (used != size_class.capacity) {
      append_block(info, start + used, size_class.capacity - used, 0, false, /*joins=*/false);
    }
  }
  // What is left of a segment that its blocks do not divide.
  const size_t cut = requested.size() * size_class.capacity;
  if (cut < segment.bytes) append_block(info, segment.base + cut, segment.bytes - cut, 0);
  return info;
}

std::vector<SegmentInfo> MemoryPool::snapshot() const {
  // growth_ keeps the list of segments still, so that memory for the answer can be had before
  // lock_.
  const std::lock_guard growing(growth_);
  std::vector<SegmentInfo> answer;
  if (boundary_.attached()) answer.push_back(boundary_snapshot());
  for (const Segment* segment = linear_.segments(); segment != nullptr; segment = segment->next) {
    answer.push_back(linear_snapshot(*segment));
  }
  std::sort(answer.begin(), answer.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return answer;
}

}  // namespace hologram
