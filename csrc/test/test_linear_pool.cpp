// The linear pool: size classes, segments that blocks share, and which block serves a request.
#include "atlas/memory.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "pools.h"

using namespace hologram;
using namespace hologram::test;

TEST(memory_size_classes) {
  CHECK_EQ(MemoryPool::round_size(0), 0u);
  CHECK_EQ(MemoryPool::round_size(1), 64u);
  CHECK_EQ(MemoryPool::round_size(64), 64u);
  CHECK_EQ(MemoryPool::round_size(65), 128u);
  CHECK_EQ(MemoryPool::round_size(256), 256u);
  CHECK_EQ(MemoryPool::round_size(257), 320u);
  CHECK_EQ(MemoryPool::round_size(512), 512u);
  CHECK_EQ(MemoryPool::round_size(12 * kKiB), 12 * kKiB);
  CHECK_EQ(MemoryPool::round_size(12 * kKiB + 1), 14 * kKiB);
  CHECK_EQ(MemoryPool::round_size(kMiB), kMiB);
  CHECK_EQ(MemoryPool::round_size(kMiB + 1), kMiB + kMiB / 4);
  CHECK_EQ(MemoryPool::round_size(size_t{1} << 46), size_t{1} << 46);
  size_t last = 64;
  for (size_t n = 1; n < size_t{1} << 45; n += n / 97 + 1) {
    const size_t capacity = MemoryPool::round_size(n);
    const bool right = capacity >= n && capacity % 64 == 0 && capacity >= last &&
                       MemoryPool::round_size(capacity) == capacity &&
                       (n <= 256 ? capacity - n < 64 : (capacity - n) * 4 < capacity);
    if (!right) {
      check::fail(__FILE__, __LINE__, std::to_string(n) + " -> " + std::to_string(capacity));
    }
    last = capacity;
  }
}

TEST(memory_last_freed_is_first_reused) {
  Fixture f;
  for (const size_t n : {size_t{100}, 12 * kKiB, 20 * kKiB, 2 * kMiB}) {
    const Allocation a = f.pool.allocate(n), b = f.pool.allocate(n), c = f.pool.allocate(n);
    f.pool.deallocate(a);
    f.pool.deallocate(c);
    f.pool.deallocate(b);
    CHECK_EQ(f.pool.allocate(n).data, b.data);
    CHECK_EQ(f.pool.allocate(n).data, c.data);
    CHECK_EQ(f.pool.allocate(n).data, a.data);
    for (const Allocation& block : {a, b, c}) f.pool.deallocate(block);
  }
  CHECK_EQ(f.pool.stats().num_device_alloc, 1 + 1 + 3);  // small, 20 KiB, 2 MiB
}

// Of a device whose memory the host does not touch.
TEST(memory_lowest_address_is_first_reused) {
  FakeBackend backend;
  backend.set_host_addressable(false);
  MemoryPool pool(backend, 1000 * kMiB);
  std::mt19937 random(1);
  for (const size_t n : {size_t{100}, 12 * kKiB, 20 * kKiB, 2 * kMiB}) {
    std::vector<Allocation> blocks;
    for (int i = 0; i < 9; ++i) blocks.push_back(pool.allocate(n));
    std::ranges::sort(blocks, {}, &Allocation::data);
    for (int turn = 0; turn < 5; ++turn) {
      std::vector<Allocation> freed = blocks;
      std::ranges::shuffle(freed, random);
      for (const Allocation& block : freed) pool.deallocate(block);
      for (const Allocation& block : blocks) CHECK_EQ(pool.allocate(n).data, block.data);
    }
    // And so are those that are left when some have gone.
    for (const size_t i : {6u, 2u, 4u}) pool.deallocate(blocks[i]);
    for (const size_t i : {2u, 4u, 6u}) CHECK_EQ(pool.allocate(n).data, blocks[i].data);
    for (const Allocation& block : blocks) pool.deallocate(block);
  }
  pool.trim();
  CHECK_EQ(pool.stats().segment.current, 0);
}

TEST(memory_small_blocks_share_segments) {
  Fixture f;
  std::vector<Allocation> blocks;
  for (int i = 0; i < 51; ++i)
    blocks.push_back(f.pool.allocate(20 * kKiB));  // 51 * 20 KiB <= 1 MiB
  CHECK_EQ(f.pool.stats().segment.current, 1);
  blocks.push_back(f.pool.allocate(20 * kKiB));
  CHECK_EQ(f.pool.stats().segment.current, 2);
  CHECK_EQ(f.pool.stats().reserved_bytes.current, 2 * kMiB);
  for (const Allocation& block : blocks) f.pool.deallocate(block);
}

TEST(memory_small_requests_take_blocks_of_the_next_size_class) {
  Fixture f;
  const Allocation larger = f.pool.allocate(400 * kKiB), other = f.pool.allocate(400 * kKiB);
  f.pool.deallocate(larger);
  const Allocation smaller = f.pool.allocate(380 * kKiB);
  CHECK_EQ(smaller.data, larger.data);
  CHECK_EQ(smaller.capacity, 448 * kKiB);  // blocks of one segment count alike
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 2 * 448 * kKiB);
  CHECK_EQ(f.pool.block_capacity(smaller.data), 448 * kKiB);
  // Only the next one, and none in use.
  const Allocation small = f.pool.allocate(300 * kKiB), own = f.pool.allocate(380 * kKiB);
  CHECK_EQ(small.capacity, 320 * kKiB);
  CHECK_EQ(own.capacity, 384 * kKiB);
  // Idle ones come before new ones, its own before larger ones.
  f.pool.deallocate(smaller);
  f.pool.deallocate(own);
  const Allocation first = f.pool.allocate(380 * kKiB), second = f.pool.allocate(380 * kKiB),
                   third = f.pool.allocate(380 * kKiB);
  CHECK_EQ(first.data, own.data);
  CHECK_EQ(second.data, larger.data);
  CHECK(third.data == static_cast<char*>(own.data) + 384 * kKiB);
  CHECK(third.is_new && !second.is_new && !first.is_new);
  // What is left of a segment comes before a new one.
  for (const Allocation& block : {f.pool.allocate(300 * kKiB), f.pool.allocate(300 * kKiB)}) {
    CHECK_EQ(block.capacity, 320 * kKiB);
    f.pool.deallocate(block);
  }
  const Allocation left = f.pool.allocate(250 * kKiB);
  CHECK_EQ(left.capacity, 320 * kKiB);
  CHECK_EQ(f.pool.stats().segment.current, 3);
  for (const Allocation& block : {other, small, first, second, third, left}) {
    f.pool.deallocate(block);
  }
}

TEST(memory_large_requests_take_idle_blocks_of_up_to_twice_their_size) {
  Fixture f;
  const Allocation large = f.pool.allocate(8 * kMiB);
  f.pool.deallocate(large);
  const Allocation small = f.pool.allocate(4 * kMiB);
  CHECK_EQ(small.data, large.data);
  CHECK_EQ(small.capacity, 4 * kMiB);
  // It counts as what it was asked for, whatever the cache looked like.
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 4 * kMiB);
  const std::vector<SegmentInfo> segments = f.pool.snapshot();
  CHECK_EQ(segments.size(), 1u);
  CHECK_EQ(segments[0].blocks.size(), 2u);
  CHECK_EQ(segments[0].blocks[0].size, 4 * kMiB);
  CHECK(!segments[0].blocks[1].active);
  CHECK_EQ(segments[0].blocks[1].size, 4 * kMiB);
  f.pool.deallocate(small);
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 0);
  CHECK_EQ(f.pool.allocate(8 * kMiB).data, large.data);  // it is a block of 8 MiB still
  f.pool.deallocate(large);

  const Allocation smaller = f.pool.allocate(4 * kMiB - 1024 * kKiB);
  CHECK(smaller.data != large.data);
  const Allocation exact = f.pool.allocate(8 * kMiB);
  CHECK_EQ(exact.data, large.data);
  for (const Allocation& block : {smaller, exact}) f.pool.deallocate(block);
}
