// A plan for a GPU: each group as launches of precompiled kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "atlas/queue.h"
#include "cpu/compiled_group.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "gpu/launch.h"

namespace hologram::cuda {

// What a launch needs on the device.
struct Loaded {
  Function function;
  Address program;  // 0 where the kernel has none
};

class Code final : public PlanCode {
 public:
  // All outlive it.
  Code(const Plan& plan, Kernels& kernels, Constants& constants);
  ~Code() override;
  size_t bytes() const noexcept override { return bytes_; }
  const Plan& plan() const noexcept { return plan_; }

  // Of a pass. Null where csrc/gpu has no kernels for the group: it has complex numbers, or more
  // values or numbers than the precompiled ones have places for.
  const gpu::GroupCode* group(size_t pass) const noexcept { return groups_[pass].get(); }
  // The same as code of the CPU, for runs that csrc/gpu refuses. Thread-safe.
  const cpu::CompiledGroup& on_cpu(size_t pass) const;
  // Thread-safe. Throws OutOfMemory, Error.
  Loaded loaded(const gpu::Kernel& kernel) const;

 private:
  const Plan& plan_;
  Kernels& kernels_;
  Constants& constants_;
  std::vector<std::unique_ptr<const gpu::GroupCode>> groups_;  // null for a call
  size_t bytes_ = 0;
  mutable std::mutex mutex_;
  mutable std::unordered_map<const gpu::Kernel*, Loaded> loaded_;
  mutable std::vector<std::unique_ptr<const cpu::CompiledGroup>> on_cpu_;
};

}  // namespace hologram::cuda
