// Where the threads of the CPU backend come from.
#pragma once

#include <cstdint>

#include "atlas/export.h"

namespace hologram::cpu {

// Fewer are computed by one thread.
inline constexpr int64_t kSerialElements = 32'768;

// The default is the calling thread alone.
struct Parallel {
  virtual ~Parallel() = default;
  virtual int threads() const { return 1; }
  using Body = void (*)(void* context, int thread);
  // Calls body(context, n) on the calling thread and at the same time on up to threads - 1 others,
  // once on each, and waits. `body` does not throw; it takes its work from counters. Where the
  // system lets it, a thread has the same n in 0 .. threads - 1 in every run.
  virtual void run([[maybe_unused]] int threads, Body body, void* context) { body(context, 0); }
};
HOLOGRAM_EXPORT Parallel& serial();

}  // namespace hologram::cpu
