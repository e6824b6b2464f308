// What a memory pool takes from the system, up to which limit, and when it gives that back.
#include "atlas/memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "pools.h"

using namespace hologram;
using namespace hologram::test;

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

namespace {

// Another allocator of the same memory: gives it back when it is asked.
FakeBackend* shared_with = nullptr;
int asked = 0;
bool give_back(const DeviceProperties& properties) noexcept {
  CHECK_EQ(properties.backend, std::string("fake"));
  ++asked;
  if (shared_with == nullptr) return false;
  shared_with->refuse = false;
  return true;
}

}  // namespace

TEST(memory_that_others_hold_is_asked_for_before_failing) {
  MemoryPool::set_ask_others(&give_back);
  {
    Fixture f(64 * kMiB);
    f.backend.refuse = true;
    CHECK_THROWS(f.pool.allocate(4 * kMiB), OutOfMemory, "");
    CHECK_EQ(asked, 1);
    shared_with = &f.backend;
    const Allocation block = f.pool.allocate(4 * kMiB);
    CHECK_EQ(asked, 2);
    CHECK_EQ(f.pool.stats().num_ooms, 1);
    // Not where it is the limit that has no room.
    CHECK_THROWS(f.pool.allocate(62 * kMiB), OutOfMemory, "");
    CHECK_EQ(asked, 2);
    f.pool.trim_everywhere();
    CHECK_EQ(asked, 3);
    f.pool.deallocate(block);
    CHECK_EQ(f.pool.idle_bytes(), 4 * kMiB);
    f.pool.try_trim();
    CHECK_EQ(f.pool.idle_bytes(), size_t{0});
    CHECK_EQ(f.backend.held.load(), size_t{0});
    shared_with = nullptr;
  }
  MemoryPool::set_ask_others([](const DeviceProperties&) noexcept { return false; });
}

TEST(memory_of_a_lost_device_is_not_said_to_be_exhausted) {
  Fixture f;
  f.backend.refuse = true;
  f.backend.why = "the device is lost";
  CHECK_THROWS(f.pool.allocate(4 * kMiB), DeviceError, "the device is lost");
  CHECK_EQ(f.pool.stats().num_ooms, 0);
  f.backend.why.clear();
  CHECK_THROWS(f.pool.allocate(4 * kMiB), OutOfMemory, "");
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
  for (unsigned seed = 0; seed < 5; ++seed) {
    Fixture f;
    std::mt19937 random(seed);
    std::vector<size_t> sizes(500);
    for (size_t& size : sizes) size = 1 + random() % (size_t{1} << (6 + random() % 15));
    std::vector<Allocation> blocks;
    for (const size_t size : sizes) blocks.push_back(f.pool.allocate(size));
    const int64_t reserved = f.pool.stats().reserved_bytes.current;
    for (int allocations = 0; allocations < 200'000;) {
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
}
