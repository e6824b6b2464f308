#include "atlas/fork.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "atlas/device.h"
#include "atlas/error.h"

namespace hologram {
namespace {

constinit std::atomic<bool> initialized{false};
constinit std::atomic<bool> forked_child{false};

void in_child() {
  unlock_devices_after_fork();
  if (initialized.load(std::memory_order_relaxed)) {
    forked_child.store(true, std::memory_order_relaxed);
  }
}

}  // namespace

void install_fork_guard() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (pthread_atfork(lock_devices_for_fork, unlock_devices_after_fork, in_child) != 0) {
      throw Error("hologram could not register its fork handlers");
    }
  });
}

void mark_initialized() {
  install_fork_guard();
  initialized.store(true, std::memory_order_release);
}

bool is_initialized() noexcept {
  return initialized.load(std::memory_order_acquire);
}

bool in_forked_child() noexcept {
  return forked_child.load(std::memory_order_relaxed);
}

}  // namespace hologram
