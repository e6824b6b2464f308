// What Linux is told about memory: other systems have no such calls.
#if defined(__linux__)
#include "cpu/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "atlas/memory.h"
#include "check.h"
#include "cpu/backend.h"

using namespace hologram;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct Advice {
  void* address;
  size_t bytes;
  int advice;
};
std::mutex lock;
std::vector<Advice> given;

std::vector<Advice> take_given() {
  const std::lock_guard guard(lock);
  return std::exchange(given, {});
}

}  // namespace

// In the place of the C library's: what the allocator tells the system is seen whether or not this
// system has huge pages.
extern "C" int madvise(void* address, size_t bytes, int advice) noexcept {
  {
    const std::lock_guard guard(lock);
    given.push_back({address, bytes, advice});
  }
  return static_cast<int>(syscall(SYS_madvise, address, bytes, advice));
}

TEST(allocator_advises_huge_pages_from_two_mib_on) {
  take_given();
  for (const size_t bytes : {2 * kMiB, 2 * kMiB + 4096, 5 * kMiB + 1, 64 * kMiB}) {
    void* const data = cpu::map_memory(bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % (2 * kMiB), 0u);
    const std::vector<Advice> advice = take_given();
    CHECK_EQ(advice.size(), 1u);
    if (advice.empty()) continue;
    CHECK_EQ(advice[0].address, data);
    CHECK(advice[0].bytes >= bytes && advice[0].bytes < bytes + 4096);
    CHECK_EQ(advice[0].advice, MADV_HUGEPAGE);
    cpu::unmap_memory(data, bytes);
  }
}

// Pages that few blocks touch must not be two megabytes each.
TEST(allocator_advises_nothing_below_two_mib) {
  take_given();
  for (const size_t bytes : {size_t{1}, kMiB, kBoundaryBytes, 2 * kMiB - 1}) {
    void* const data = cpu::map_memory(bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % kMiB, 0u);
    CHECK_EQ(take_given().size(), 0u);
    cpu::unmap_memory(data, bytes);
  }
}

TEST(allocator_large_blocks_of_the_pool_start_at_two_mib) {
  cpu::CpuBackend backend(0, 1);
  MemoryPool pool(backend, 64 * kMiB);
  take_given();
  const Allocation block = pool.allocate(3 * kMiB);
  CHECK_EQ(reinterpret_cast<uintptr_t>(block.data) % (2 * kMiB), 0u);
  CHECK_EQ(take_given().size(), 1u);
  pool.deallocate(block);
}

// One system call in place of a fault for each page.
TEST(allocator_populates_small_blocks_with_their_pages) {
  cpu::CpuBackend backend(0, 1);
  MemoryPool pool(backend, 64 * kMiB);
  pool.deallocate(pool.allocate(4000));  // the boundary pool
  take_given();
  std::vector<Allocation> blocks = {pool.allocate(100'000), pool.allocate(100'000)};
  const std::vector<Advice> advice = take_given();
  CHECK_EQ(advice.size(), 2u);
  for (size_t i = 0; i < advice.size(); ++i) {
    CHECK_EQ(advice[i].advice, MADV_POPULATE_WRITE);
    const char* const begin = static_cast<char*>(advice[i].address);
    const char* const block = static_cast<char*>(blocks[i].data);
    CHECK(begin <= block && block < begin + 4096);
    CHECK(begin + advice[i].bytes >= block + 100'000);
    CHECK(begin + advice[i].bytes < block + 100'000 + 4096);
    pool.deallocate(blocks[i]);
  }
  pool.deallocate(pool.allocate(100'000));  // was in use before
  CHECK_EQ(take_given().size(), 0u);
}
#endif
