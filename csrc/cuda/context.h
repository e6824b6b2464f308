// A GPU as the driver has it: its primary context, which it shares with torch and everything else
// that uses CUDA's runtime in the process.
#pragma once

#include <string>
#include <vector>

#include "atlas/error.h"
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

// Has copies to a GPU, whose context is current, read the memory of another one without the host
// between, where the two are connected so. Throws Error.
void have_access(const Gpu& gpu, const Gpu& other);

// Of a GPU whose context takes no more work: "CUDA device 0: <status>. The device cannot be used
// any more by this process". `what` comes behind the status.
DeviceFault lost_fault(const Gpu& gpu, Status status, const std::string& what = {});

// Of the driver, those that the package can use, by number from 0. Throws Error with the reason
// why there are none.
const std::vector<int>& usable_gpus();

// Makes a GPU's context the calling thread's for as long as it lives, and for good where the thread
// has none, as torch does. Costs a look where it is already. Enough for launches.
class LaunchGuard {
 public:
  explicit LaunchGuard(const Gpu& gpu) : driver_(driver()) {
    Context current = nullptr;
    check(driver_.current_context(&current), "cuCtxGetCurrent");
    if (current != gpu.context) [[unlikely]]
      enter(gpu, current);
  }
  ~LaunchGuard() {
    Context popped = nullptr;
    if (pushed_) [[unlikely]]
      driver_.pop_context(&popped);
  }
  LaunchGuard(const LaunchGuard&) = delete;
  LaunchGuard& operator=(const LaunchGuard&) = delete;

 private:
  void enter(const Gpu& gpu, Context current);

  const Driver& driver_;
  bool pushed_ = false;
};

// For calls that would disturb a graph that somebody captures, such as an allocation: they have
// nothing to do with his streams.
class CaptureGuard {
 public:
  CaptureGuard() : driver_(driver()) { driver_.exchange_capture_mode(&mode_); }
  ~CaptureGuard() { driver_.exchange_capture_mode(&mode_); }
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

 private:
  const Driver& driver_;
  CaptureMode mode_ = CaptureMode::relaxed;  // then that of the thread before
};

// For any calls.
class ContextGuard {
 public:
  explicit ContextGuard(const Gpu& gpu) : context_(gpu) {}

 private:
  const LaunchGuard context_;
  const CaptureGuard capture_;
};

// For good, where the thread has none: libraries of the vendor's that are called next ask for one.
void give_context(const Gpu& gpu);

}  // namespace hologram::cuda
