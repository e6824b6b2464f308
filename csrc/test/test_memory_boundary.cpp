// The boundary pool as a part of a memory pool: which requests it serves, and when it is there.
#include "atlas/boundary.h"
#include "atlas/memory.h"

#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "pools.h"

using namespace hologram;
using namespace hologram::test;

TEST(memory_small_blocks_lie_in_the_boundary_pool) {
  Fixture f;
  CHECK_EQ(f.pool.boundary_base(), nullptr);
  const Allocation large = f.pool.allocate(12 * kKiB + 1);
  CHECK_EQ(f.pool.boundary_base(), nullptr);  // nobody has asked for it
  const Allocation small = f.pool.allocate(1), whole = f.pool.allocate(12 * kKiB);
  const auto* const base = static_cast<const char*>(f.pool.boundary_base());
  CHECK_EQ(reinterpret_cast<uintptr_t>(base) % 4096, 0u);
  CHECK_EQ(small.data, static_cast<const void*>(base + boundary_offset(0, 0, 0)));
  CHECK_EQ(whole.data, static_cast<const void*>(base + boundary_offset(1, 0, 0)));
  CHECK_EQ(small.capacity, 256u);
  CHECK_EQ(f.pool.stats().boundary.allocation.current, 2);
  CHECK_EQ(f.pool.stats().linear.allocation.current, 1);
  CHECK(f.pool.owns(base) && f.pool.owns(base + kBoundaryBytes - 1));
  CHECK(!f.pool.owns(base + kBoundaryBytes));
  for (const Allocation& block : {small, whole}) f.pool.deallocate(block);
  CHECK_EQ(f.pool.boundary_base(), static_cast<const void*>(base));
  f.pool.trim();
  CHECK_EQ(f.pool.boundary_base(), nullptr);
  CHECK_EQ(f.pool.stats().boundary.reserved_bytes.current, 0);
  CHECK(!f.pool.owns(base));
  f.pool.deallocate(large);
}

TEST(memory_what_the_boundary_pool_cannot_hold_goes_to_the_linear_pool) {
  Fixture f;
  std::vector<Allocation> blocks;
  // One page in each class leaves no run of 48.
  for (int c = 0; c < kBoundaryClasses; ++c) blocks.push_back(f.pool.allocate_in_class(c, 1));
  blocks.push_back(f.pool.allocate(12 * kKiB));
  CHECK_EQ(f.pool.stats().linear.allocation.current, 1);
  blocks.push_back(f.pool.allocate(47 * 256));
  CHECK_EQ(f.pool.stats().linear.allocation.current, 1);
  for (int i = 0; i < 100; ++i) blocks.push_back(f.pool.allocate(47 * 256));
  CHECK_EQ(f.pool.stats().linear.allocation.current, 1 + 100 - 95);
  for (const Allocation& block : blocks) f.pool.deallocate(block);
  const Allocation block = f.pool.allocate(12 * kKiB);
  CHECK_EQ(f.pool.stats().boundary.allocation.current, 1);
  f.pool.deallocate(block);
}

TEST(memory_limit_below_the_boundary_pool) {
  Fixture f(kMiB);
  const Allocation block = f.pool.allocate(100);
  CHECK_EQ(f.pool.stats().linear.allocation.current, 1);
  CHECK_EQ(f.pool.boundary_base(), nullptr);
  CHECK_THROWS(f.pool.allocate_in_class(0, 100), OutOfMemory, "Tried to allocate 1.12 MiB");
  f.pool.set_limit(8 * kMiB);
  const Allocation named = f.pool.allocate_in_class(0, 100);
  CHECK_EQ(f.pool.stats().boundary.allocation.current, 1);
  for (const Allocation& each : {block, named}) f.pool.deallocate(each);
}

TEST(memory_a_boundary_class_by_name) {
  Fixture f;
  CHECK_EQ(f.pool.boundary_class(95).free_pages, 48);
  const Allocation a = f.pool.allocate_in_class(95, 30 * 256),
                   b = f.pool.allocate_in_class(95, 256);
  CHECK_EQ(a.capacity, 30u * 256);
  CHECK_EQ(static_cast<const char*>(b.data) - static_cast<const char*>(f.pool.boundary_base()),
           boundary_offset(95, 30, 0));
  CHECK_EQ(f.pool.boundary_class(95).free_pages, 17);
  const auto classes = f.pool.boundary_classes();
  CHECK_EQ(classes[95].free_pages, 17);
  CHECK_EQ(classes[95].longest_free_run, 17);
  CHECK_EQ(classes[94].free_pages, 48);
  CHECK_THROWS(f.pool.allocate_in_class(95, 5000), Error,
               "boundary class 95 has no run of 20 free pages: 17 of its 48 pages are free, the "
               "longest run is 17");
  CHECK_THROWS(f.pool.allocate_in_class(96, 1), Error, "boundary class 96 is out of range");
  CHECK_THROWS(f.pool.boundary_class(-1), Error, "boundary class -1 is out of range");
  for (const size_t wrong : {size_t{0}, kBoundaryClassBytes + 1}) {
    CHECK_THROWS(f.pool.allocate_in_class(0, wrong), Error, "from 1 to 12288 bytes, not ");
  }
  CHECK_EQ(f.pool.stats().num_ooms, 0);
  f.pool.deallocate(a);
  f.pool.deallocate(b);
}
