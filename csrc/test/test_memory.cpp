#include "atlas/memory.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "atlas/allocation.h"
#include "atlas/error.h"
#include "atlas/memory_stats.h"
#include "check.h"

using namespace hologram;

namespace {

constexpr size_t kKiB = 1024, kMiB = kKiB * 1024;

// Host memory that can be made to fail and that counts what it handed out.
class FakeBackend final : public Backend {
 public:
  FakeBackend() {
    properties_.backend = "fake";
    properties_.total_memory = 1000 * kMiB;
  }
  ~FakeBackend() override { CHECK_EQ(held.load(), 0u); }

  std::unique_ptr<PlanCode> compile(const Plan&) override { std::abort(); }
  std::unique_ptr<Queue> make_queue(int) override { std::abort(); }
  std::shared_ptr<Moment> make_moment() override { std::abort(); }

  const DeviceProperties& properties() const noexcept override { return properties_; }
  void* allocate_segment(size_t bytes) noexcept override {
    if (refuse || (refuse_odd && (++requests & 1) != 0)) return nullptr;
    const size_t rounded = (bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
    held += bytes;
    return std::aligned_alloc(kSegmentAlignment, rounded);
  }
  void free_segment(void* data, size_t bytes) noexcept override {
    held -= bytes;
    std::free(data);
  }
  size_t available_memory() const noexcept override { return available; }

  bool refuse = false;
  bool refuse_odd = false;  // every second request
  size_t available = std::numeric_limits<size_t>::max();
  std::atomic<size_t> held{0};
  std::atomic<int> requests{0};

 private:
  DeviceProperties properties_;
};

// Comes as far as it is told to, or is waited for.
class FakeQueue : public Queue {
 public:
  Ticket submit(const std::shared_ptr<const Compiled>&, Frame&) override { std::abort(); }
  Ticket copy(void*, const void*, size_t, Direction) override { std::abort(); }
  Ticket fill(void*, const void*, size_t, size_t) override { std::abort(); }
  Ticket record(std::shared_ptr<Moment>) override { std::abort(); }
  void wait_for(const Fence&) override { std::abort(); }
  Ticket last() noexcept override { return reached; }
  bool done(Ticket ticket) noexcept override { return ticket <= reached; }
  void wait(Ticket ticket) override {
    reached = std::max(reached, ticket);
    ++waits;
    if (fails) throw Error("what was submitted failed");
  }
  Ticket reached = 0;
  int waits = 0;
  bool fails = false;
};

struct Fixture {
  explicit Fixture(size_t limit = 1000 * kMiB) : pool(backend, limit) {}
  FakeBackend backend;
  MemoryPool pool;
};

bool same(const Counter& counter, int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
  return counter.current == current && counter.peak == peak && counter.allocated == allocated &&
         counter.freed == freed;
}

}  // namespace

TEST(memory_comes_back_with_its_fence) {
  Fixture f;
  FakeQueue queue;
  for (const size_t n : {size_t{100}, 20 * kKiB, 3 * kMiB}) {
    Allocation block = f.pool.allocate(n);
    CHECK(!block.fence.outstanding());
    const Ticket ticket = queue.reached + 5;
    block.fence = {&queue, ticket};
    f.pool.deallocate(block);
    const Allocation again = f.pool.allocate(n);
    CHECK_EQ(again.data, block.data);  // at once: work of the queue may use it
    CHECK(again.fence.outstanding() && again.fence.ticket == ticket);
    queue.reached = ticket;
    CHECK(!again.fence.outstanding());
    f.pool.deallocate({again.data, 0});
    CHECK_EQ(queue.waits, 0);
  }
  // Before it is unmapped somebody has to wait, whatever comes of it.
  Allocation small = f.pool.allocate(100), large = f.pool.allocate(3 * kMiB);
  small.fence = {&queue, queue.reached + 1};
  large.fence = {&queue, queue.reached + 2};
  f.pool.deallocate(small);
  f.pool.deallocate(large);
  queue.fails = true;
  f.pool.trim();
  CHECK_EQ(queue.waits, 2);
  CHECK_EQ(queue.reached, large.fence.ticket);
  CHECK_EQ(f.backend.held.load(), 0u);
  CHECK_EQ(f.pool.allocate(0).fence.ticket, 0u);
  const Allocation fresh = f.pool.allocate(100);
  CHECK_EQ(fresh.fence.ticket, 0u);
  f.pool.deallocate(fresh);
}

TEST(memory_goes_to_the_queue_that_has_used_it) {
  Fixture f;
  FakeQueue mine, other;
  for (const size_t n : {20 * kKiB, 3 * kMiB}) {
    Allocation a = f.pool.allocate(n), b = f.pool.allocate(n);
    a.fence = {&other, other.reached + 3};
    b.fence = {&mine, mine.reached + 3};
    f.pool.deallocate(b);
    f.pool.deallocate(a);  // on top
    const Allocation first = f.pool.allocate(n, &mine);
    CHECK_EQ(first.data, b.data);
    CHECK(first.fence == b.fence);
    // Rather than wait it takes new memory, while there is any.
    const Allocation second = f.pool.allocate(n, &mine);
    CHECK(second.data != a.data && second.fence.ticket == 0);
    const Allocation third = f.pool.allocate(n, &other);
    CHECK_EQ(third.data, a.data);
    CHECK(third.fence == a.fence);
    // What has been reached serves anybody.
    f.pool.deallocate(third);
    other.reached += 3;
    CHECK_EQ(f.pool.allocate(n, &mine).data, a.data);
    for (void* data : {a.data, b.data, second.data}) f.pool.deallocate({data, 0});
  }
  CHECK_EQ(mine.waits + other.waits, 0);
}

TEST(memory_is_waited_for_rather_than_refused) {
  FakeQueue mine, other;
  for (const size_t n : {size_t{100}, 600 * kKiB}) {
    Fixture f(2 * kMiB);
    std::vector<Allocation> all;
    try {
      while (true) all.push_back(f.pool.allocate(n));
    } catch (const OutOfMemory&) {
    }
    Allocation& last = all.back();
    last.fence = {&other, other.reached + 1};
    f.pool.deallocate(last);
    const Allocation taken = f.pool.allocate(n, &mine);
    CHECK_EQ(taken.data, last.data);
    CHECK(taken.fence == last.fence);  // the queue waits, not the host
    CHECK_EQ(other.waits, 0);
    all.back() = {taken.data};
    for (const Allocation& block : all) f.pool.deallocate({block.data});
  }
}

TEST(memory_of_the_boundary_pool_serves_one_queue_at_a_time) {
  Fixture f;
  FakeQueue mine, other;
  Allocation a = f.pool.allocate(100, &mine), b = f.pool.allocate(100, &mine);
  CHECK(f.pool.boundary_base() != nullptr);
  a.fence = {&mine, 5};
  f.pool.deallocate(a);
  // Another queue's small blocks come from the linear pool meanwhile.
  const Allocation elsewhere = f.pool.allocate(100, &other);
  CHECK_EQ(elsewhere.fence.ticket, 0u);
  CHECK_EQ(f.pool.stats().linear.allocation.current, 1);
  CHECK_EQ(f.pool.allocate(100, &mine).data, a.data);
  // A block with another queue's fence counts as free, and nobody gets it.
  b.fence = {&other, 2};
  f.pool.deallocate(b);
  CHECK_EQ(f.pool.stats().boundary.allocation.current, 1);
  const Allocation c = f.pool.allocate(100, &mine);
  CHECK(c.data != b.data);
  other.reached = 2;
  const Allocation again = f.pool.allocate(100, &mine);
  CHECK_EQ(again.data, b.data);
  CHECK(again.fence.queue == &mine);
  mine.reached = 5;
  CHECK_EQ(f.pool.stats().linear.allocation.current, 1);
  const Allocation late = f.pool.allocate(100, &other);
  CHECK_EQ(f.pool.stats().linear.allocation.current, 1);  // the boundary pool is anybody's now
  for (void* data : {elsewhere.data, a.data, c.data, again.data, late.data}) {
    f.pool.deallocate({data, 0});
  }
  CHECK_EQ(f.pool.stats().allocation.current, 0);
}

TEST(memory_with_several_fences_is_late) {
  FakeQueue one, two;
  for (const size_t n : {size_t{100}, 20 * kKiB, 3 * kMiB}) {
    Fixture f;
    one.reached = two.reached = 0;
    one.waits = two.waits = 0;
    const Allocation block = f.pool.allocate(n);
    Fences fences;
    fences.add({&one, 4});
    fences.add({&two, 7});
    fences.add({&one, 2});
    CHECK_EQ(fences.size(), 2u);
    f.pool.retire(block.data);  // as the window does
    f.pool.deallocate(block.data, fences);
    CHECK_EQ(f.pool.stats().allocation.current, 0);
    const Allocation other = f.pool.allocate(n);
    CHECK(other.data != block.data);
    one.reached = 4;
    const Allocation another = f.pool.allocate(n);
    CHECK(another.data != block.data);
    two.reached = 7;
    const Allocation again = f.pool.allocate(n);
    CHECK_EQ(again.data, block.data);
    CHECK_EQ(again.fence.ticket, 0u);
    CHECK_EQ(one.waits + two.waits, 0);
    // Whoever unmaps waits, and so does a request that finds no room.
    for (const Allocation& last : {other, another, again}) {
      Fences later;
      later.add({&one, one.reached + 1});
      later.add({&two, two.reached + 1});
      f.pool.deallocate(last.data, later);
    }
    f.pool.trim();
    CHECK(one.waits > 0 && two.waits > 0);
    CHECK_EQ(f.backend.held.load(), 0u);
    // One fence, or none that is outstanding, is nothing special.
    const Allocation plain = f.pool.allocate(n);
    Fences reached;
    reached.add({&one, one.reached});
    reached.add({&two, two.reached + 1});
    f.pool.deallocate(plain.data, reached);
    CHECK_EQ(f.pool.allocate(n).data, plain.data);
    f.pool.deallocate({plain.data});
  }
}

TEST(memory_that_is_unmapped_waits_for_every_queue) {
  Fixture f;
  FakeQueue one, two;
  std::array<Allocation, 4> blocks;
  for (Allocation& block : blocks) block = f.pool.allocate(20 * kKiB);  // of one segment
  blocks[0].fence = {&one, 3};
  blocks[1].fence = {&two, 9};
  blocks[2].fence = {&one, 2};
  for (const Allocation& block : blocks) f.pool.deallocate(block);
  f.pool.trim();
  CHECK_EQ(one.reached, 3u);
  CHECK_EQ(two.reached, 9u);
  CHECK_EQ(f.backend.held.load(), 0u);
}

TEST(memory_for_scratch_is_waited_for_by_its_queue) {
  struct Waiting : FakeQueue {
    void wait_for(const Fence& fence) override { waited_for = fence; }
    Fence waited_for;
  };
  Fixture f(kMiB);  // one segment
  FakeQueue other;
  Waiting mine;
  Allocation block = f.pool.allocate(600 * kKiB);
  block.fence = {&other, 3};
  f.pool.deallocate(block);
  CHECK_EQ(f.pool.allocate_scratch(600 * kKiB, mine), block.data);
  CHECK(mine.waited_for == block.fence);
  f.pool.free_scratch(block.data, {&mine, 1});
  mine.waited_for = {};
  CHECK_EQ(f.pool.allocate_scratch(600 * kKiB, mine), block.data);  // its own
  CHECK_EQ(mine.waited_for.ticket, 0u);
  f.pool.deallocate({block.data});
}

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

TEST(memory_nothing_is_nothing) {
  Fixture f;
  const Allocation none = f.pool.allocate(0);
  CHECK_EQ(none.data, nullptr);
  CHECK_EQ(none.capacity, 0u);
  f.pool.deallocate(none);
  CHECK_EQ(f.pool.stats().allocation.allocated, 0);
  CHECK_EQ(f.backend.held.load(), 0u);
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

TEST(memory_capacity_of_a_free_is_not_read) {
  Fixture f;
  const Allocation block = f.pool.allocate(5000);
  f.pool.deallocate({block.data, 0});
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 0);
  CHECK_EQ(f.pool.allocate(5000).data, block.data);
  f.pool.deallocate(block);
}

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

TEST(memory_trim_keeps_segments_with_live_blocks) {
  Fixture f;
  const Allocation kept = f.pool.allocate(13'000), freed = f.pool.allocate(13'000);
  const Allocation other = f.pool.allocate(17'000), large = f.pool.allocate(4 * kMiB);
  std::memset(kept.data, 42, kept.capacity);
  f.pool.deallocate(freed);
  f.pool.deallocate(other);
  f.pool.deallocate(large);
  f.pool.trim();
  CHECK_EQ(f.pool.stats().segment.current, 1);
  CHECK_EQ(f.backend.held.load(), kMiB);
  CHECK_EQ(static_cast<char*>(kept.data)[12'999], 42);
  CHECK(!f.pool.owns(large.data));
  // The block that stayed free in the kept segment is still handed out, and so is the untouched
  // rest.
  CHECK_EQ(f.pool.allocate(13'000).data, freed.data);
  const Allocation fresh = f.pool.allocate(13'000);
  CHECK_EQ(f.pool.stats().segment.current, 1);
  for (const Allocation& block : {kept, freed, fresh}) f.pool.deallocate(block);
  f.pool.trim();
  CHECK_EQ(f.backend.held.load(), 0u);
  f.pool.trim();
  f.pool.deallocate(f.pool.allocate(13'000));
}

TEST(memory_limit_gives_the_cache_back_before_failing) {
  Fixture f(8 * kMiB);
  const Allocation first = f.pool.allocate(3 * kMiB), second = f.pool.allocate(5 * kMiB);
  f.pool.deallocate(first);
  f.pool.deallocate(second);
  CHECK_EQ(f.pool.stats().reserved_bytes.current, 8 * kMiB);
  const Allocation block = f.pool.allocate(6 * kMiB);
  MemoryStats stats = f.pool.stats();
  CHECK_EQ(stats.num_alloc_retries, 1);
  CHECK_EQ(stats.num_ooms, 0);
  CHECK_EQ(stats.reserved_bytes.current, 6 * kMiB);
  CHECK_EQ(stats.reserved_bytes.peak, 8 * kMiB);

  try {
    f.pool.allocate(3 * kMiB);
    CHECK(false);
  } catch (const OutOfMemory& error) {
    CHECK_EQ(error.requested, 3 * kMiB);
    CHECK_EQ(error.allocated, 6 * kMiB);
    CHECK_EQ(error.reserved, 6 * kMiB);
    CHECK_EQ(error.limit, 8 * kMiB);
    CHECK(std::string(error.what())
              .starts_with("hologram out of memory. Tried to allocate 3.00 MiB (3145728 bytes). "
                           "6.00 MiB (6291456 bytes) allocated, 6.00 MiB (6291456 bytes) "
                           "reserved, limit 8.00 MiB (8388608 bytes). "));
  }
  stats = f.pool.stats();
  CHECK_EQ(stats.num_ooms, 1);
  CHECK_EQ(stats.num_alloc_retries, 2);
  CHECK_EQ(stats.allocation.current, 1);
  f.pool.deallocate(f.pool.allocate(kMiB));  // the pool works on
  f.pool.deallocate(block);
}

TEST(memory_exhausted_system) {
  Fixture f;
  f.backend.refuse = true;
  CHECK_THROWS(f.pool.allocate(1), OutOfMemory, "Tried to allocate 1 bytes");
  f.backend.refuse = false;
  const Allocation cached = f.pool.allocate(2 * kMiB);
  f.pool.deallocate(cached);
  f.backend.refuse = true;
  CHECK_EQ(f.pool.allocate(2 * kMiB).data, cached.data);  // needs nothing from the system
  f.pool.deallocate(cached);
  CHECK_THROWS(f.pool.allocate(3 * kMiB), OutOfMemory, "hologram out of memory");
  f.backend.refuse = false;
  f.pool.deallocate(f.pool.allocate(3 * kMiB));
}

TEST(memory_absurd_requests) {
  Fixture f;
  for (const size_t n : {std::numeric_limits<size_t>::max(), size_t{1} << 63, (size_t{1} << 46) + 1,
                         size_t{1} << 46, size_t{1} << 40}) {
    CHECK_THROWS(f.pool.allocate(n), OutOfMemory, std::to_string(n).c_str());
  }
  CHECK_EQ(f.pool.stats().num_ooms, 5);
  CHECK_EQ(f.pool.stats().reserved_bytes.current, 0);
}

TEST(memory_pressure_gives_the_cache_back) {
  Fixture f;
  f.pool.deallocate(f.pool.allocate(40 * kMiB));
  f.backend.available = 16 * kMiB;
  f.pool.deallocate(f.pool.allocate(64 * kMiB));  // more than there is: still tried, after a trim
  CHECK_EQ(f.pool.stats().reserved_bytes.current, 64 * kMiB);
  CHECK_EQ(f.pool.stats().num_alloc_retries, 0);
  f.pool.deallocate(f.pool.allocate(4 * kMiB));  // small ones do not ask
  CHECK_EQ(f.pool.stats().reserved_bytes.current, 68 * kMiB);
}

TEST(memory_foreign_bytes_count_towards_the_limit) {
  Fixture f(10 * kMiB);
  f.pool.note_foreign(8 * kMiB);
  CHECK_THROWS(f.pool.allocate(4 * kMiB), OutOfMemory,
               "8.00 MiB (8388608 bytes) allocated, 8.00 MiB (8388608 bytes) reserved");
  f.pool.note_foreign(-6 * static_cast<ptrdiff_t>(kMiB));
  const Allocation block = f.pool.allocate(4 * kMiB);
  CHECK(same(f.pool.stats().foreign_bytes, 2 * kMiB, 8 * kMiB, 8 * kMiB, 6 * kMiB));
  CHECK_EQ(f.pool.info().first, 4 * kMiB);
  f.pool.deallocate(block);
  f.pool.note_foreign(-2 * static_cast<ptrdiff_t>(kMiB));
}

TEST(memory_foreign_bytes_are_admitted_within_the_limit) {
  Fixture f(10 * kMiB);
  f.pool.deallocate(f.pool.allocate(4 * kMiB));  // stays in the cache
  f.pool.admit_foreign(8 * kMiB);                // which makes room
  CHECK_EQ(f.pool.stats().reserved_bytes.current, 8 * kMiB);
  CHECK_THROWS(f.pool.admit_foreign(3 * kMiB), OutOfMemory, "3.00 MiB");
  CHECK_EQ(f.pool.stats().foreign_bytes.current, 8 * kMiB);
  CHECK_EQ(f.pool.stats().num_ooms, 1);
  f.pool.note_foreign(-8 * static_cast<ptrdiff_t>(kMiB));
}

TEST(memory_fraction_and_limit) {
  Fixture f;
  f.pool.set_fraction(0.5);
  CHECK_EQ(f.pool.limit(), 500 * kMiB);
  f.pool.set_fraction(0.0);
  CHECK_THROWS(f.pool.allocate(1), OutOfMemory, "limit 0 bytes");
  f.pool.set_fraction(1.0);
  CHECK_EQ(f.pool.limit(), 1000 * kMiB);
  for (const double wrong : {-0.1, 1.1, std::nan(""), HUGE_VAL}) {
    CHECK_THROWS(f.pool.set_fraction(wrong), Error, "memory fraction must be from 0 to 1");
  }
  CHECK_EQ(f.pool.limit(), 1000 * kMiB);

  // A lower limit takes effect on the cache at once and leaves live blocks alone.
  const Allocation kept = f.pool.allocate(2 * kMiB);
  f.pool.deallocate(f.pool.allocate(4 * kMiB));
  f.pool.set_limit(kMiB);
  CHECK_EQ(f.pool.stats().reserved_bytes.current, 2 * kMiB);
  CHECK_EQ(f.pool.info().first, 0u);
  std::memset(kept.data, 1, kept.capacity);
  f.pool.deallocate(kept);
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

// Each size is new and too large for what lies idle, as with growing inputs.
TEST(memory_idle_beyond_the_peak_goes_back) {
  Fixture f;
  int64_t held = 0;
  for (size_t size = 10 * kMiB; size < 100 * kMiB; size += size / 3) {
    f.pool.deallocate(f.pool.allocate(size));
    const MemoryStats stats = f.pool.stats();
    held = std::max(held, stats.reserved_bytes.current);
    const int64_t peak = stats.allocated_bytes.peak, allowance = 64 * kMiB;
    CHECK(stats.reserved_bytes.current <= peak + std::max(peak, allowance));
    f.pool.reset_peak();  // is not forgotten with the statistics
  }
  CHECK_EQ(f.pool.stats().num_alloc_retries, 0);
  CHECK(held > static_cast<int64_t>(100 * kMiB));  // the cache is in use
  CHECK(f.pool.stats().num_device_free > 0);
}

// Random sizes with random lifetimes: what is held stays below a bound that the peak sets, to the
// last of a million allocations.
TEST(memory_reserved_bytes_are_bounded_by_the_peak) {
  Fixture f(size_t{1} << 40);
  std::mt19937 random(11);
  std::vector<Allocation> live(300);
  int64_t early = 0;
  for (int step = 0; step < 1'000'000; ++step) {
    Allocation& block = live[random() % live.size()];
    f.pool.deallocate(block);
    const size_t octave = random() % 22;
    block = f.pool.allocate((size_t{1} << octave) + random() % (size_t{1} << octave));
    if (step == 100'000) early = f.pool.stats().reserved_bytes.peak;
  }
  const MemoryStats stats = f.pool.stats();
  CHECK(stats.reserved_bytes.peak <= 2 * stats.allocated_bytes.peak);
  CHECK(stats.reserved_bytes.peak <= early + early / 4);
  for (const Allocation& block : live) f.pool.deallocate(block);
}

TEST(memory_fragmented_to_the_limit) {
  Fixture f(16 * kMiB);
  std::vector<Allocation> blocks;
  while (f.pool.stats().reserved_bytes.current < static_cast<int64_t>(16 * kMiB)) {
    blocks.push_back(f.pool.allocate(20 * kKiB));
  }
  std::vector<Allocation> kept;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i % 25 == 0 || i + 1 == blocks.size()) {  // at least one in every segment
      kept.push_back(blocks[i]);
    } else {
      f.pool.deallocate(blocks[i]);
    }
  }
  try {
    f.pool.allocate(4 * kMiB);
    CHECK(false);
  } catch (const OutOfMemory& error) {
    CHECK_EQ(error.requested, 4 * kMiB);
    CHECK_EQ(error.allocated, kept.size() * 20 * kKiB);
    CHECK_EQ(error.reserved, 16 * kMiB);
    CHECK_EQ(error.limit, 16 * kMiB);
  }
  // Blocks of sizes for which there is neither a segment nor room for one take larger ones.
  const Allocation tiny = f.pool.allocate(4), other = f.pool.allocate(14 * kKiB);
  CHECK_EQ(tiny.capacity, 20 * kKiB);
  CHECK_EQ(other.capacity, 20 * kKiB);
  CHECK_EQ(f.pool.stats().requested_bytes.current, kept.size() * 20 * kKiB + 14 * kKiB + 4);
  CHECK_EQ(f.pool.stats().allocated_bytes.current, (kept.size() + 2) * 20 * kKiB);
  for (const Allocation& block : {tiny, other}) f.pool.deallocate(block);
  for (const Allocation& block : kept) f.pool.deallocate(block);
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 0);
  f.pool.deallocate(f.pool.allocate(16 * kMiB));
}

// Once all of a set of blocks has been live at once, a million allocations and frees of its members
// in random order, large and small, reserve nothing more: no pool fragments.
TEST(memory_reserved_bytes_do_not_grow) {
  Fixture f;
  std::mt19937 random(5);
  std::vector<size_t> sizes(500);
  for (size_t& size : sizes) size = 1 + random() % (size_t{1} << (6 + random() % 15));
  std::vector<Allocation> blocks;
  for (const size_t size : sizes) blocks.push_back(f.pool.allocate(size));
  const int64_t reserved = f.pool.stats().reserved_bytes.current;
  for (int allocations = 0; allocations < 1'000'000;) {
    const size_t i = random() % sizes.size();
    if (blocks[i].data == nullptr) {
      blocks[i] = f.pool.allocate(sizes[i]);
      ++allocations;
    } else {
      f.pool.deallocate(blocks[i]);
      blocks[i] = {};
    }
  }
  CHECK_EQ(f.pool.stats().reserved_bytes.peak, reserved);
  for (const Allocation& block : blocks) f.pool.deallocate(block);
  f.pool.trim();
  CHECK_EQ(f.pool.stats().reserved_bytes.current, 0);
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

// Blocks travel between threads; some threads trim, read statistics and change the limit meanwhile.
TEST(memory_threads_free_each_others_blocks) {
  Fixture f;
  std::mutex lock;
  std::vector<std::pair<Allocation, unsigned char>> exchange;
  std::atomic<int> wrong{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 4000; ++i) {
      const Allocation block = f.pool.allocate(1 + random() % (i % 16 == 0 ? 900'000u : 3000u));
      const auto tag = static_cast<unsigned char>(random());
      static_cast<unsigned char*>(block.data)[0] = tag;
      static_cast<unsigned char*>(block.data)[block.capacity - 1] = tag;
      std::pair<Allocation, unsigned char> taken{block, tag};
      {
        const std::lock_guard guard(lock);
        if (exchange.size() < 50) {
          exchange.push_back(taken);
          continue;
        }
        std::swap(exchange[random() % exchange.size()], taken);
      }
      const auto* bytes = static_cast<const unsigned char*>(taken.first.data);
      if (bytes[0] != taken.second || bytes[taken.first.capacity - 1] != taken.second) ++wrong;
      f.pool.deallocate(taken.first);
      if (i % 512 == 0) f.pool.trim();
      if (i % 100 == 0 && f.pool.snapshot().empty()) ++wrong;
      if (i % 128 == 0) f.pool.set_limit((900 + random() % 100) * kMiB);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  // The threads are gone, their blocks are not.
  CHECK_EQ(f.pool.stats().allocation.current, exchange.size());
  for (const auto& [block, tag] : exchange) f.pool.deallocate(block);
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 0);
  CHECK_EQ(f.pool.stats().requested_bytes.current, 0);
  f.pool.trim();
  CHECK_EQ(f.backend.held.load(), 0u);
}

// At the limit of memory every thread either gets a block or an error, and nothing is lost.
TEST(memory_threads_at_the_limit) {
  Fixture f(6 * kMiB);
  std::atomic<int> served{0}, refused{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 300; ++i) {
        try {
          const Allocation block = f.pool.allocate((1 + random() % 4) * kMiB);
          std::this_thread::yield();
          f.pool.deallocate(block);
          ++served;
        } catch (const OutOfMemory& error) {
          if (error.limit != 6 * kMiB) check::fail(__FILE__, __LINE__, error.what());
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(served + refused, 1200);
  CHECK(served > 0);
  CHECK_EQ(f.pool.stats().num_ooms, refused.load());
  CHECK(f.pool.stats().reserved_bytes.peak <= static_cast<int64_t>(6 * kMiB));
  CHECK_EQ(f.pool.stats().allocated_bytes.current, 0);
  f.pool.trim();
  CHECK_EQ(f.backend.held.load(), 0u);
}
