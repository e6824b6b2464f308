// A lock for critical sections of a few nanoseconds without system calls.
#pragma once

#include <sched.h>

#include <atomic>

namespace hologram {

class SpinLock {
 public:
  void lock() noexcept {
    if (locked_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      wait();
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpinsBeforeYield = 16;

  // Out of line: callers keep their registers for the case without a wait.
  [[gnu::noinline]] void wait() noexcept {
    int spins = 0;
    do {
      while (locked_.load(std::memory_order_relaxed)) {
        // The holder may have been preempted: after a short wait let it run.
        if (++spins > kSpinsBeforeYield) {
          sched_yield();
        } else {
          pause();
        }
      }
    } while (locked_.exchange(true, std::memory_order_acquire));
  }

  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::atomic<bool> locked_{false};
};

}  // namespace hologram
