// What a memory pool says of itself: counters, free memory, segments and their blocks.
#include "atlas/memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "pools.h"

using namespace hologram;
using namespace hologram::test;

TEST(memory_statistics_are_exact) {
  Fixture f;
  const Allocation a = f.pool.allocate(13'000), b = f.pool.allocate(2 * kMiB);
  f.pool.deallocate(a);
  const Allocation c = f.pool.allocate(300);
  MemoryStats stats = f.pool.stats();
  CHECK(same(stats.allocation, 2, 2, 3, 1));
  CHECK(same(stats.active, 2, 2, 3, 1));
  const int64_t large = 2 * kMiB, small = 14 * kKiB;
  const int64_t boundary = kBoundaryBytes, segments = kMiB + large + boundary;
  CHECK(same(stats.allocated_bytes, large + 512, large + small, large + small + 512, small));
  CHECK(same(stats.requested_bytes, large + 300, large + 13'000, large + 13'300, 13'000));
  CHECK(same(stats.segment, 3, 3, 3, 0));
  CHECK(same(stats.reserved_bytes, segments, segments, segments, 0));
  CHECK(same(stats.boundary.allocation, 1, 1, 1, 0));
  CHECK(same(stats.boundary.allocated_bytes, 512, 512, 512, 0));
  CHECK(same(stats.boundary.segment, 1, 1, 1, 0));
  CHECK(same(stats.boundary.reserved_bytes, boundary, boundary, boundary, 0));
  CHECK(same(stats.linear.allocation, 1, 2, 2, 1));
  CHECK(same(stats.linear.allocated_bytes, large, large + small, large + small, small));
  CHECK(same(stats.linear.segment, 2, 2, 2, 0));
  CHECK(same(stats.linear.reserved_bytes, kMiB + large, kMiB + large, kMiB + large, 0));
  CHECK_EQ(stats.num_device_alloc, 3);
  CHECK_EQ(stats.limit, 1000 * kMiB);
  CHECK_EQ(f.backend.held.load(), static_cast<size_t>(segments));

  f.pool.reset_peak();
  f.pool.reset_accumulated();
  stats = f.pool.stats();
  CHECK(same(stats.allocation, 2, 2, 0, 0));
  CHECK(same(stats.allocated_bytes, large + 512, large + 512, 0, 0));
  CHECK(same(stats.boundary.allocated_bytes, 512, 512, 0, 0));
  CHECK(same(stats.linear.allocation, 1, 1, 0, 0));
  CHECK_EQ(stats.num_device_alloc, 0);

  f.pool.deallocate(b);
  f.pool.deallocate(c);
  f.pool.trim();
  stats = f.pool.stats();
  CHECK(same(stats.allocation, 0, 2, 0, 2));
  CHECK(same(stats.allocated_bytes, 0, large + 512, 0, large + 512));
  CHECK(same(stats.requested_bytes, 0, large + 300, 0, large + 300));
  CHECK(same(stats.reserved_bytes, 0, segments, 0, segments));
  CHECK(same(stats.segment, 0, 3, 0, 3));
  CHECK(same(stats.boundary.reserved_bytes, 0, boundary, 0, boundary));
  CHECK(same(stats.linear.allocated_bytes, 0, large, 0, large));
  CHECK_EQ(stats.num_device_free, 3);
}

TEST(memory_info_is_the_smaller_of_limit_and_system) {
  Fixture f(100 * kMiB);
  CHECK_EQ(f.pool.info().first, 100 * kMiB);
  CHECK_EQ(f.pool.info().second, 1000 * kMiB);
  const Allocation block = f.pool.allocate(16 * kMiB);
  CHECK_EQ(f.pool.info().first, 84 * kMiB);
  f.backend.available = 7 * kMiB;
  CHECK_EQ(f.pool.info().first, 7 * kMiB);
  f.pool.deallocate(block);
}

static size_t block_offset(const SegmentInfo& segment, const BlockInfo& block) {
  return static_cast<size_t>(static_cast<const char*>(block.address) -
                             static_cast<const char*>(segment.address));
}

TEST(memory_snapshot_agrees_with_the_statistics) {
  Fixture f;
  std::vector<Allocation> live, freed;
  for (int i = 0; i < 10; ++i) (i % 3 == 0 ? freed : live).push_back(f.pool.allocate(1000));
  for (int i = 0; i < 10; ++i) (i % 3 == 0 ? freed : live).push_back(f.pool.allocate(20'000));
  live.push_back(f.pool.allocate(3 * kMiB));
  freed.push_back(f.pool.allocate(5 * kMiB));
  for (const Allocation& block : freed) f.pool.deallocate(block);

  const std::vector<SegmentInfo> segments = f.pool.snapshot();
  CHECK_EQ(segments.size(), 4u);
  size_t total = 0, allocated = 0, requested = 0, active = 0;
  for (const SegmentInfo& segment : segments) {
    const bool boundary = segment.address == f.pool.boundary_base();
    CHECK_EQ(std::string(segment.pool), boundary ? "boundary" : "linear");
    if (boundary) CHECK_EQ(segment.allocated_size, 6 * 1024);
    total += segment.total_size;
    allocated += segment.allocated_size;
    const char* next = static_cast<const char*>(segment.address);
    bool last_active = true;
    for (const BlockInfo& block : segment.blocks) {
      CHECK_EQ(block.address, static_cast<const void*>(next));  // gapless, in order
      next += block.size;
      const auto offset = block_offset(segment, block);
      const bool new_class = boundary && offset % kBoundaryClassBytes == 0;
      CHECK(block.active || last_active || new_class);  // inactive neighbours are one
      last_active = block.active;
      CHECK_EQ(block.active, block.requested != 0);
      requested += block.requested;
      if (!block.active) continue;
      ++active;
      CHECK(std::any_of(live.begin(), live.end(),
                        [&](const Allocation& a) { return a.data == block.address; }));
    }
    CHECK(next <= static_cast<const char*>(segment.address) + segment.total_size);
  }
  const MemoryStats stats = f.pool.stats();
  CHECK_EQ(total, stats.reserved_bytes.current);
  CHECK_EQ(allocated, stats.allocated_bytes.current);
  CHECK_EQ(requested, stats.requested_bytes.current);
  CHECK_EQ(active, stats.allocation.current);
  for (const Allocation& block : live) f.pool.deallocate(block);
}
