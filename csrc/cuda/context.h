// A GPU as the driver has it: its primary context, which it shares with torch and everything else
// that uses CUDA's runtime in the process.
#pragma once

#include <vector>

#include "cuda/driver.h"

namespace hologram::cuda {

struct Gpu {
  // Throws Error.
  explicit Gpu(int ordinal);

  const int ordinal;
  DeviceNumber device = 0;
  Context context = nullptr;  // never released: memory of the device is freed at any time
  int major = 0, minor = 0;   // compute capability
};

// Of the driver, those that the package can use, by number from 0. Throws Error with the reason
// why there are none.
const std::vector<int>& usable_gpus();

// Makes a GPU's context the calling thread's for as long as it lives, or for good where the thread
// has none: libraries that torch calls ask for one. Costs a look where it is already.
class ContextGuard {
 public:
  explicit ContextGuard(const Gpu& gpu) : driver_(driver()) {
    Context current = nullptr;
    check(driver_.current_context(&current), "cuCtxGetCurrent");
    if (current == nullptr) {
      check(driver_.set_context(gpu.context), "cuCtxSetCurrent");
    } else if (current != gpu.context) [[unlikely]] {
      check(driver_.push_context(gpu.context), "cuCtxPushCurrent");
      pushed_ = true;
    }
  }
  ~ContextGuard() {
    Context popped = nullptr;
    if (pushed_) driver_.pop_context(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace hologram::cuda
