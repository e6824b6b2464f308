#include "atlas/fork.h"

#include <atomic>
#include <thread>
#include <vector>

#include "atlas/device.h"
#include "check.h"

using namespace hologram;

// Each runs in a process of its own, because being initialised cannot be undone.

SUBPROCESS_TEST(fork_before_and_after_initialisation) {
  CHECK(!is_initialized());
  CHECK(!in_forked_child());
  install_fork_guard();
  CHECK(!is_initialized());
  // The children of a process that has not used the device may use it themselves.
  CHECK_EQ(check::run_in_fork([] {
             CHECK(!in_forked_child());
             mark_initialized();
             CHECK(is_initialized());
             CHECK(!in_forked_child());
           }),
           "exit 0");
  mark_initialized();
  mark_initialized();
  CHECK(is_initialized());
  CHECK(!in_forked_child());
  CHECK_EQ(check::run_in_fork([] {
             CHECK(in_forked_child());
             CHECK_EQ(check::run_in_fork([] { CHECK(in_forked_child()); }), "exit 0");
           }),
           "exit 0");
  CHECK(!in_forked_child());
}

TEST(fork_marks_children_only_after_initialisation) {
  CHECK_EQ(check::run_again("fork_before_and_after_initialisation", {}), "exit 0");
}

// Whatever another thread is doing in the pool at the time of the fork, the child can free what it
// inherited, and allocate, without deadlock.
SUBPROCESS_TEST(fork_while_threads_allocate) {
  mark_initialized();
  static MemoryPool& memory = device(0).memory();
  static const Allocation inherited = memory.allocate(1000);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      while (!stop) {
        const Allocation block = memory.allocate(i == 0 ? 640 : 3'000'000);
        memory.deallocate(block);
        if (i == 1) memory.trim();
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    CHECK_EQ(check::run_in_fork([] {
               memory.deallocate(inherited);
               const Allocation small = memory.allocate(640), large = memory.allocate(3'000'000);
               static_cast<char*>(large.data)[large.capacity - 1] = 1;
               memory.deallocate(small);
               memory.deallocate(large);
               memory.trim();
             }),
             "exit 0");
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  memory.deallocate(inherited);
  CHECK_EQ(memory.stats().allocation.current, 0);
}

TEST(fork_leaves_the_child_a_usable_pool) {
  CHECK_EQ(check::run_again("fork_while_threads_allocate", {}), "exit 0");
}
