#include "atlas/exit.h"

#include <cstdlib>
#include <mutex>
#include <vector>

#include "atlas/fork.h"

namespace hologram {
namespace {

struct Tasks {
  std::mutex mutex;
  std::vector<void (*)()> all;
};

// Leaked: the last ones run when objects of the process are ended.
Tasks& tasks() {
  static Tasks& its = *new Tasks;
  return its;
}

}  // namespace

void before_exit(void (*task)()) {
  const std::lock_guard guard(tasks().mutex);
  static const int registered = std::atexit([] { run_before_exit(); });
  static_cast<void>(registered);
  tasks().all.push_back(task);
}

void run_before_exit() noexcept {
  if (in_forked_child()) return;
  std::vector<void (*)()> all;
  {
    const std::lock_guard guard(tasks().mutex);
    all = tasks().all;
  }
  for (const auto task : all) task();
}

}  // namespace hologram
