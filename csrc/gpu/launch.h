// A group for a GPU: its kernels, and the launches of a run. A backend compiles the texts, and
// makes the calls of its runtime that the launches say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "atlas/group.h"
#include "gpu/emit.h"
#include "gpu/steps.h"

namespace hologram::gpu {

// What a backend knows of its devices.
struct Target {
  bool has_f64 = true;
  bool cold = false;    // run by the cold kernels (gpu/cold.h): nothing is to be compiled
  bool counts = false;  // launches can have counters (Argument::is_counters)
  bool tables = true;   // and tables (Argument::is_table), whose addresses kernels follow
  unsigned threads = kMostThreads;  // of a block, where nothing else says how many
  // With fewer threads than these a fold goes through partial results.
  int64_t enough_threads = 1 << 16;
  // Numbers of elements beyond it have 64 bits; above it there is room for a block's last thread.
  int64_t most_narrow = INT32_MAX - (int64_t{1} << 20);
};

// An argument: memory of the caller, a place in the scratch memory of the run, or the kernel's
// program or the launch's table, which the device has to have in its memory, or its counters.
struct Argument {
  void* address = nullptr;
  size_t scratch = 0;       // bytes, where the address is null
  bool is_program = false;  // all of Kernel::program
  bool is_table = false;    // all of Launch::table
  // kCounters numbers of 32 bits that are 0 before the launch and after it.
  bool is_counters = false;
};
inline constexpr size_t kCounters = 64;

struct Launch {
  const Kernel* kernel;
  uint32_t blocks;   // in one dimension
  uint32_t threads;  // of a block: whole warps
  // One per buffer of the kernel; of a cold one kColdArguments, of many tensors their table. A move
  // has as many as its text (gpu/dialect/moves.h).
  std::vector<Argument> arguments;
  std::vector<std::byte> parameters;  // the argument after them
  std::vector<std::byte> table = {};  // of a kernel of many tensors (Kernel::many)
};

// Launches may ask for addresses to be aligned to so many bytes, and depend on addresses in nothing
// else.
inline constexpr uintptr_t kMostAlignment = 16;

struct Launches {
  std::vector<Launch> list;  // in order: each reads what those before it have stored
  size_t scratch_bytes = 0;  // from an address that is a multiple of kScratchAlignment
};
inline constexpr size_t kScratchAlignment = 256;
// So that what comes after so many bytes of it is aligned, too.
constexpr size_t scratch_size(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// Thread-safe.
class GroupCode {
 public:
  // Throws Error for a group that the target cannot run.
  GroupCode(const Group& group, const Target& target);

  // None where there are no elements. The kernels live as long as this does. Throws Error where the
  // numbers of the run do not fit.
  Launches launches(const Binding& binding) const;
  // Of several runs that do not wait for each other. Where the kernels are emitted and all operands
  // are dense, one launch of each step has all of them, at two places where some are aligned and
  // others not.
  Launches launches(std::span<const Binding> bindings) const;

 private:
  struct Ready {
    const Steps* steps;
    size_t step;
    Variant variant;
    std::unique_ptr<const Kernel> kernel;
  };
  friend class Planning;

  size_t most_buffers() const;
  bool can_have_many() const;
  const Kernel& kernel(const Steps& steps, size_t step, const Variant& variant) const;

  const Target target_;
  const Steps steps_;
  std::optional<const Steps> of_long_rows_;  // where rows are folded
  mutable std::mutex mutex_;
  mutable std::vector<Ready> ready_;
};

}  // namespace hologram::gpu
