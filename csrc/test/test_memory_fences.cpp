// Memory that submitted work still uses: which queue gets it, and who waits.
#include "atlas/memory.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "atlas/error.h"
#include "atlas/fence.h"
#include "check.h"
#include "pools.h"

using namespace hologram;
using namespace hologram::test;

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

// Where the host does not touch memory, which block is next does not depend on how far the queue
// had come when blocks were freed.
TEST(memory_lowest_address_whatever_has_been_reached) {
  FakeBackend backend;
  backend.set_host_addressable(false);
  MemoryPool pool(backend, 1000 * kMiB);
  FakeQueue queue;
  std::mt19937 random(2);
  for (const size_t n : {size_t{100}, 20 * kKiB, 2 * kMiB}) {
    std::vector<Allocation> blocks;
    for (int i = 0; i < 9; ++i) blocks.push_back(pool.allocate(n, &queue));
    std::ranges::sort(blocks, {}, &Allocation::data);
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<Allocation> freed = blocks;
      std::ranges::shuffle(freed, random);
      for (Allocation& block : freed) {
        block.fence = {&queue, queue.reached + random() % 2};
        pool.deallocate(block);
      }
      for (const Allocation& block : blocks) CHECK_EQ(pool.allocate(n, &queue).data, block.data);
      queue.reached += random() % 2;
    }
    for (const Allocation& block : blocks) pool.deallocate({block.data, 0});
  }
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
