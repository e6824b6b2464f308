// Threads on one memory pool.
#include "atlas/memory.h"

#include <atomic>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "atlas/error.h"
#include "check.h"
#include "pools.h"

using namespace hologram;
using namespace hologram::test;

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
