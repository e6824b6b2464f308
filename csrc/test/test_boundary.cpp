#include "atlas/boundary.h"

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "atlas/error.h"
#include "check.h"

using namespace hologram;

namespace {

static_assert(kBoundaryBytes == 1'179'648 && kBoundaryClassBytes == 12'288);
static_assert(byte_to_class(0xFF) == 24 * 3 + 7 && class_to_byte(95) == 0b11'10'111'0);

// A pool over memory that only the tests touch.
struct Fixture {
  Fixture() { pool.attach(memory.get()); }
  size_t offset(const char* data) const { return static_cast<size_t>(data - memory.get()); }

  std::unique_ptr<char[]> memory = std::make_unique<char[]>(kBoundaryBytes);
  BoundaryPool pool;
};

}  // namespace

TEST(boundary_class_of_a_byte) {
  std::vector<int> members(kBoundaryClasses);
  for (int byte = 0; byte < 256; ++byte) {
    const bool bit4 = (byte & 16) != 0, bit5 = (byte & 32) != 0;
    const int d = bit4 == bit5 ? 0 : bit4 ? 1 : 2;
    const int expected = 24 * (byte / 64) + 8 * d + byte / 2 % 8;
    const int actual = byte_to_class(static_cast<uint8_t>(byte));
    CHECK_EQ(actual, expected);
    ++members[static_cast<size_t>(actual)];
  }
  for (int c = 0; c < kBoundaryClasses; ++c) {
    CHECK_EQ(members[static_cast<size_t>(c)], c % 24 < 8 ? 4 : 2);
    const uint8_t byte = class_to_byte(c);
    CHECK_EQ(byte_to_class(byte), c);
    CHECK_EQ(byte & 1, 0);
    CHECK(((byte >> 4) & 3) != 3);
  }
  CHECK_THROWS(class_to_byte(96), Error,
               "boundary class 96 is out of range: it must be from 0 to 95");
  CHECK_THROWS(class_to_byte(-1), Error, "boundary class -1 is out of range");
}

TEST(boundary_addresses) {
  CHECK_EQ(boundary_offset(0, 0, 0), 0u);
  CHECK_EQ(boundary_offset(2, 3, 5), 2u * 12'288 + 3 * 256 + 5);
  CHECK_EQ(boundary_offset(95, 47, 255), kBoundaryBytes - 1);
  for (size_t offset = 0; offset < kBoundaryBytes; offset += 127) {
    const BoundaryAddress a = boundary_address(offset);
    CHECK(a.class_index < 96 && a.page < 48 && a.byte < 256);
    CHECK_EQ(boundary_offset(a.class_index, a.page, a.byte), offset);
  }
  CHECK_THROWS(boundary_offset(96, 0, 0), Error,
               "class 96 is out of range: it must be from 0 to 95");
  CHECK_THROWS(boundary_offset(0, 48, 0), Error,
               "page 48 is out of range: it must be from 0 to 47");
  CHECK_THROWS(boundary_offset(0, 0, 256), Error,
               "byte 256 is out of range: it must be from 0 to 255");
  CHECK_THROWS(boundary_offset(0, -1, 0), Error, "page -1 is out of range");
  CHECK_THROWS(boundary_address(kBoundaryBytes), Error,
               "offset 1179648 is out of range: it must be from 0 to 1179647");
}

TEST(boundary_nothing_without_a_region) {
  BoundaryPool pool;
  CHECK_EQ(pool.allocate(1), nullptr);
  CHECK_EQ(pool.allocate_in(5, 1), nullptr);
  CHECK(!pool.contains(nullptr));
  CHECK(!pool.contains(&pool));
}

TEST(boundary_holds_one_full_class_96_times) {
  Fixture f;
  std::set<size_t> classes;
  std::vector<char*> blocks;
  for (int i = 0; i < kBoundaryClasses; ++i) {
    blocks.push_back(f.pool.allocate(kBoundaryClassBytes));
    const size_t offset = f.offset(blocks.back());
    CHECK_EQ(offset % kBoundaryClassBytes, 0u);
    classes.insert(offset / kBoundaryClassBytes);
  }
  CHECK_EQ(classes.size(), 96u);
  CHECK_EQ(f.pool.allocate(1), nullptr);
  CHECK_EQ(f.pool.usage(17).free_pages, 0);
  CHECK_EQ(f.pool.usage(17).longest_free_run, 0);
  CHECK_EQ(f.pool.deallocate(blocks[17]), kBoundaryClassBytes);
  CHECK_EQ(f.pool.allocate(kBoundaryClassBytes), blocks[17]);
}

TEST(boundary_runs_do_not_cross_classes) {
  Fixture f;
  std::set<size_t> starts;
  for (int i = 0; i < kBoundaryClasses; ++i) {
    const size_t offset = f.offset(f.pool.allocate(25 * kBoundaryPageBytes));
    CHECK_EQ(offset % kBoundaryClassBytes, 0u);  // two runs of 25 pages do not fit into one class
    starts.insert(offset);
  }
  CHECK_EQ(starts.size(), 96u);
  CHECK_EQ(f.pool.allocate(25 * kBoundaryPageBytes), nullptr);
  CHECK(f.pool.allocate(23 * kBoundaryPageBytes) != nullptr);
}

TEST(boundary_last_freed_is_first_reused) {
  Fixture f;
  char* const a = f.pool.allocate(1000);
  char* const b = f.pool.allocate(1000);
  char* const other = f.pool.allocate(100);
  for (char* block : {b, other, a}) CHECK(f.pool.deallocate(block) != 0);
  CHECK_EQ(f.pool.allocate(769), a);  // as many pages
  CHECK_EQ(f.pool.allocate(1024), b);
  CHECK_EQ(f.pool.allocate(1), other);
}

TEST(boundary_free_neighbours_are_one_run) {
  Fixture f;
  std::vector<char*> pages;
  for (int i = 0; i < kBoundaryClasses * kBoundaryPages; ++i) pages.push_back(f.pool.allocate(256));
  CHECK_EQ(f.pool.allocate(1), nullptr);
  // Every second page of class 0, then the gaps of a half of it.
  for (size_t i = 0; i < 48; i += 2) f.pool.deallocate(f.memory.get() + 256 * i);
  CHECK_EQ(f.pool.allocate(257), nullptr);
  CHECK_EQ(f.pool.usage(0).free_pages, 24);
  CHECK_EQ(f.pool.usage(0).longest_free_run, 1);
  for (size_t i = 1; i < 24; i += 2) f.pool.deallocate(f.memory.get() + 256 * i);
  CHECK_EQ(f.pool.usage(0).longest_free_run, 25);
  CHECK_EQ(f.pool.allocate(26 * 256), nullptr);
  CHECK_EQ(f.pool.allocate(25 * 256), f.memory.get());
}

TEST(boundary_wrong_frees_change_nothing) {
  Fixture f;
  char* const block = f.pool.allocate(1000);
  CHECK_EQ(f.pool.deallocate(block + 256), 0u);  // a page inside the block
  CHECK_EQ(f.pool.deallocate(block + 1), 0u);
  CHECK_EQ(f.pool.deallocate(block + kBoundaryClassBytes), 0u);  // a page that is free
  CHECK_EQ(f.pool.usage(0).free_pages, 44);
  CHECK_EQ(f.pool.deallocate(block), 1000u);
  CHECK_EQ(f.pool.deallocate(block), 0u);
  CHECK_EQ(f.pool.usage(0).free_pages, 48);
}

TEST(boundary_a_class_by_name) {
  Fixture f;
  char* const block = f.pool.allocate_in(7, 40 * 256);
  CHECK_EQ(f.offset(block), boundary_offset(7, 0, 0));
  CHECK_EQ(f.pool.allocate_in(7, 9 * 256), nullptr);
  CHECK_EQ(f.offset(f.pool.allocate_in(7, 8 * 256)), boundary_offset(7, 40, 0));
  CHECK_EQ(f.pool.deallocate(block), 40u * 256);
  CHECK_EQ(f.pool.usage(7).longest_free_run, 40);
}

TEST(boundary_a_new_region_starts_empty) {
  Fixture f;
  for (int i = 0; i < 100; ++i) CHECK(f.pool.allocate(3000) != nullptr);
  CHECK_EQ(f.pool.detach(), static_cast<void*>(f.memory.get()));
  CHECK(!f.pool.contains(f.memory.get()));
  CHECK_EQ(f.pool.allocate(1), nullptr);
  f.pool.attach(f.memory.get());
  CHECK(f.pool.contains(f.memory.get()));
  CHECK(f.pool.contains(f.memory.get() + kBoundaryBytes - 1));
  CHECK(!f.pool.contains(f.memory.get() + kBoundaryBytes));
  CHECK_EQ(f.pool.allocate(1), f.memory.get());
}

// Against a model that knows of each page whether it is taken: a request fails only where no class
// has a long enough run, blocks never overlap, usage is right.
TEST(boundary_random_calls) {
  Fixture f;
  std::mt19937 random(3);
  std::vector<bool> taken(kBoundaryClasses * kBoundaryPages);
  std::vector<std::pair<char*, size_t>> live;
  const auto longest_run = [&](size_t class_index) {
    int longest = 0, run = 0;
    for (size_t i = 0; i < kBoundaryPages; ++i) {
      run = taken[class_index * kBoundaryPages + i] ? 0 : run + 1;
      longest = std::max(longest, run);
    }
    return longest;
  };
  int wrong = 0, refused = 0;
  for (int step = 0; step < 30'000; ++step) {
    const bool fill = step % 3000 < 1800;
    if (live.empty() || random() % 100 < (fill ? 60u : 40u)) {
      const size_t nbytes = 1 + random() % (random() % 4 == 0 ? kBoundaryClassBytes : 1500);
      const auto pages = static_cast<size_t>(BoundaryPool::pages_for(nbytes));
      char* const data = f.pool.allocate(nbytes);
      if (data == nullptr) {
        ++refused;
        for (size_t c = 0; c < kBoundaryClasses; ++c) {
          if (longest_run(c) >= static_cast<int>(pages)) ++wrong;
        }
        continue;
      }
      const size_t place = f.offset(data) / kBoundaryPageBytes;
      if (place / kBoundaryPages != (place + pages - 1) / kBoundaryPages) ++wrong;
      for (size_t i = place; i < place + pages; ++i) {
        if (taken[i]) ++wrong;
        taken[i] = true;
      }
      live.emplace_back(data, nbytes);
    } else {
      std::swap(live[random() % live.size()], live.back());
      const auto [data, nbytes] = live.back();
      live.pop_back();
      if (f.pool.deallocate(data) != nbytes) ++wrong;
      const size_t place = f.offset(data) / kBoundaryPageBytes;
      for (int i = 0; i < BoundaryPool::pages_for(nbytes); ++i) {
        taken[place + static_cast<size_t>(i)] = false;
      }
    }
    const size_t c = random() % kBoundaryClasses;
    if (f.pool.usage(static_cast<int>(c)).longest_free_run != longest_run(c)) ++wrong;
  }
  CHECK_EQ(wrong, 0);
  CHECK(refused > 0);  // the interesting path was taken
  for (const auto& [data, nbytes] : live) f.pool.deallocate(data);
  for (int c = 0; c < kBoundaryClasses; ++c) CHECK_EQ(f.pool.usage(c).longest_free_run, 48);
}
