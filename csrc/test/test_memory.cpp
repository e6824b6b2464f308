// Blocks of a memory pool: allocated, freed, and freed wrongly.
#include "atlas/memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "atlas/allocation.h"
#include "atlas/error.h"
#include "atlas/memory_stats.h"
#include "check.h"
#include "pools.h"

using namespace hologram;
using namespace hologram::test;

TEST(memory_nothing_is_nothing) {
  Fixture f;
  const Allocation none = f.pool.allocate(0);
  CHECK_EQ(none.data, nullptr);
  CHECK_EQ(none.capacity, 0u);
  f.pool.deallocate(none);
  CHECK_EQ(f.pool.stats().allocation.allocated, 0);
  CHECK_EQ(f.backend.held.load(), 0u);
}

// Once for each place, and not where one is free or in the boundary pool.
TEST(memory_is_populated_when_it_is_used_first) {
  Fixture f;
  const Allocation first = f.pool.allocate(70'000), second = f.pool.allocate(70'001);
  CHECK_EQ(f.backend.populated.size(), 2u);
  CHECK(f.backend.populated[0] == std::make_pair(first.data, size_t{70'000}));
  CHECK(f.backend.populated[1] == std::make_pair(second.data, size_t{70'001}));
  f.pool.deallocate(first);
  const Allocation again = f.pool.allocate(70'000), boundary = f.pool.allocate(300);
  CHECK_EQ(again.data, first.data);
  CHECK_EQ(f.backend.populated.size(), 2u);
  for (const Allocation& block : {second, again, boundary}) f.pool.deallocate(block);
}

TEST(memory_blocks_are_aligned_disjoint_and_usable) {
  Fixture f;
  std::vector<std::pair<Allocation, int>> blocks;
  int tag = 0;
  for (const size_t n :
       {1, 64, 65, 300, 1000, 12288, 12289, 70'000, 300'000, 524'288, 524'289, 3'000'000}) {
    for (int i = 0; i < 5; ++i) {
      const Allocation block = f.pool.allocate(n);
      CHECK(block.capacity >= n);
      const size_t pages = (static_cast<size_t>(n) + 255) / 256;
      CHECK_EQ(block.capacity, n <= 12288 ? pages * 256 : MemoryPool::round_size(n));
      CHECK_EQ(reinterpret_cast<uintptr_t>(block.data) % 64, 0u);
      std::memset(block.data, ++tag, block.capacity);
      blocks.emplace_back(block, tag);
    }
  }
  for (const auto& [block, value] : blocks) {
    const auto* bytes = static_cast<const unsigned char*>(block.data);
    CHECK(std::all_of(bytes, bytes + block.capacity, [v = value](int byte) { return byte == v; }));
    f.pool.deallocate(block);
  }
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 0);
}

TEST(memory_retired_blocks_count_as_freed_and_stay) {
  Fixture f;
  f.pool.retire(nullptr);  // a block without bytes: nothing
  for (const size_t n : {size_t{100}, 12 * kKiB, 20 * kKiB, 2 * kMiB}) {
    const Allocation block = f.pool.allocate(n), other = f.pool.allocate(n);
    const auto capacity = static_cast<int64_t>(block.capacity);
    const MemoryStats before = f.pool.stats();
    f.pool.retire(block.data);
    const MemoryStats retired = f.pool.stats();
    CHECK_EQ(retired.allocation.current, before.allocation.current - 1);
    CHECK_EQ(retired.allocated_bytes.current, before.allocated_bytes.current - capacity);
    CHECK_EQ(retired.requested_bytes.freed, before.requested_bytes.freed + static_cast<int64_t>(n));
    // The memory is not handed out, and not given back.
    const Allocation third = f.pool.allocate(n);
    CHECK(third.data != block.data);
    f.pool.deallocate(third);
    f.pool.deallocate(other);
    f.pool.trim();
    std::memset(block.data, 1, block.capacity);
    size_t found = 0;
    for (const SegmentInfo& segment : f.pool.snapshot()) {
      for (const BlockInfo& info : segment.blocks) {
        if (!info.retired) continue;
        ++found;
        CHECK_EQ(info.address, block.data);
        CHECK(info.active);
        CHECK_EQ(info.requested, n);
        CHECK_EQ(segment.allocated_size, 0u);
      }
    }
    CHECK_EQ(found, 1u);
    const MemoryStats held = f.pool.stats();
    f.pool.deallocate(block);
    const MemoryStats after = f.pool.stats();
    CHECK_EQ(after.allocation.freed, held.allocation.freed);  // counted once
    CHECK_EQ(after.allocated_bytes.current, held.allocated_bytes.current);
    f.pool.trim();
    CHECK_EQ(f.backend.held.load(), 0u);
  }
}

TEST(memory_capacity_of_a_free_is_not_read) {
  Fixture f;
  const Allocation block = f.pool.allocate(5000);
  f.pool.deallocate({block.data, 0});
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 0);
  CHECK_EQ(f.pool.allocate(5000).data, block.data);
  f.pool.deallocate(block);
}

TEST(memory_owns_its_segments_only) {
  Fixture f, g;
  const Allocation small = f.pool.allocate(100), large = f.pool.allocate(5 * kMiB);
  const char* const start = static_cast<const char*>(large.data);
  CHECK(f.pool.owns(small.data));
  CHECK(f.pool.owns(start));
  CHECK(f.pool.owns(start + large.capacity - 1));
  CHECK(!f.pool.owns(start + large.capacity));
  CHECK(!g.pool.owns(start));
  CHECK(!f.pool.owns(&f));
  CHECK(!f.pool.owns(nullptr));
  CHECK(!f.pool.owns(reinterpret_cast<void*>(~uintptr_t{0})));
  f.pool.deallocate(small);
  f.pool.deallocate(large);
}

TEST(memory_release_reports_misuse) {
  Fixture f;
  for (const size_t n : {size_t{1000}, 100 * kKiB}) {
    const Allocation block = f.pool.allocate(n);
    f.pool.release(block.data);
    CHECK_THROWS(f.pool.release(block.data), Error, "freed a block twice");
  }
  int local = 0;
  CHECK_THROWS(f.pool.release(&local), Error, "freed a pointer that is not of this pool: 0x");
  const Allocation block = f.pool.allocate(1000);
  CHECK_THROWS(f.pool.release(static_cast<char*>(block.data) + 256), Error,
               "into the middle of one");
  CHECK_EQ(f.pool.stats().allocation.current, 1);
  f.pool.release(block.data);
  CHECK_EQ(f.pool.stats().allocation.current, 0);
  // The linear pool: blocks of a shared segment and of one of their own.
  for (const size_t n : {20 * kKiB, 3 * kMiB}) {
    const Allocation linear = f.pool.allocate(n);
    for (const size_t offset : {size_t{1}, size_t{64}, n / 2}) {
      CHECK_THROWS(f.pool.release(static_cast<char*>(linear.data) + offset), Error,
                   "freed a pointer into the middle of a block");
    }
    CHECK_EQ(f.pool.stats().allocation.current, 1);
    f.pool.release(linear.data);
    CHECK_EQ(f.pool.allocate(n).data, linear.data);  // the wrong frees left nothing behind
    f.pool.release(linear.data);
  }
}

TEST(memory_misuse_aborts) {
  CHECK_EQ(check::run_in_fork([] {
             Fixture f;
             const Allocation block = f.pool.allocate(100);
             f.pool.deallocate(block);
             f.pool.deallocate(block);
           }),
           "signal 6");
  CHECK_EQ(check::run_in_fork([] {
             Fixture f;
             int local = 0;
             f.pool.deallocate({&local, sizeof local});
           }),
           "signal 6");
  CHECK_EQ(check::run_in_fork([] {
             Fixture f, g;
             f.pool.deallocate(g.pool.allocate(100));
           }),
           "signal 6");
}

// Random calls against a model: blocks never overlap, contents stay, figures always agree.
TEST(memory_random_calls) {
  std::mt19937 random(1);
  FakeBackend backend;
  MemoryPool pool(backend, 40 * kMiB);
  struct Live {
    Allocation block;
    size_t requested;
    unsigned char tag;
  };
  std::map<char*, Live> live;
  std::vector<char*> order;  // blocks to free are chosen by age: addresses differ from run to run
  int failed = 0, exhausted = 0;
  for (int step = 0; step < 20'000; ++step) {
    backend.refuse_odd = step % 4000 > 3000;
    const unsigned choice = random() % 100;
    if (choice < 55) {
      const size_t n = (size_t{1} << random() % 22) + random() % 1000;
      try {
        const Allocation block = pool.allocate(n);
        char* const start = static_cast<char*>(block.data);
        const auto next = live.lower_bound(start);
        if (next != live.end() && start + block.capacity > next->first) ++failed;
        if (next != live.begin()) {
          const auto& [data, before] = *std::prev(next);
          if (data + before.block.capacity > start) ++failed;
        }
        const unsigned char tag = static_cast<unsigned char>(random());
        start[0] = start[n - 1] = static_cast<char>(tag);
        live[start] = {block, n, tag};
        order.push_back(start);
      } catch (const OutOfMemory&) {
        ++exhausted;
      }
    } else if (choice < 99 && !live.empty()) {
      std::swap(order[random() % order.size()], order.back());
      char* const start = order.back();
      order.pop_back();
      const Live entry = live.at(start);
      if (static_cast<unsigned char>(start[0]) != entry.tag ||
          static_cast<unsigned char>(start[entry.requested - 1]) != entry.tag) {
        ++failed;
      }
      pool.deallocate(entry.block);
      live.erase(start);
    } else {
      pool.trim();
    }
    if (step % 100 == 0) {
      size_t allocated = 0, requested = 0;
      for (const auto& [start, entry] : live) {
        allocated += entry.block.capacity;
        requested += entry.requested;
      }
      const MemoryStats stats = pool.stats();
      CHECK_EQ(stats.allocation.current, live.size());
      CHECK_EQ(stats.allocated_bytes.current, allocated);
      CHECK_EQ(stats.requested_bytes.current, requested);
      CHECK_EQ(stats.reserved_bytes.current, backend.held.load());
      CHECK(backend.held <= 40 * kMiB);
    }
  }
  CHECK_EQ(failed, 0);
  CHECK(exhausted > 0);  // the interesting path was taken
  CHECK_EQ(pool.stats().num_ooms, exhausted);
  for (const auto& [start, entry] : live) pool.deallocate(entry.block);
  pool.trim();
  CHECK_EQ(backend.held.load(), 0u);
}
