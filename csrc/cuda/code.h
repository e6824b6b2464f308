// A plan for a GPU: each group as launches of precompiled kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "atlas/queue.h"
#include "cpu/compiled_group.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "gpu/launch.h"
#include "gpu/pieces.h"

namespace hologram::cuda {

// What a launch needs on the device.
struct Loaded {
  Function function;  // null where the package has no such kernel
  Address program;    // 0 where the kernel has none
};

class Code final : public PlanCode {
 public:
  // All outlive it.
  Code(const Plan& plan, Kernels& kernels, Constants& constants);
  ~Code() override;
  size_t bytes() const noexcept override { return bytes_; }
  const Plan& plan() const noexcept { return plan_; }

  // A pass as kernels emitted for it, which the package may not have, and as cold ones, slower.
  // Null where csrc/gpu has none for the group: it has complex numbers, or more values or numbers
  // than the cold ones have places for.
  struct Forms {
    std::unique_ptr<const gpu::GroupCode> emitted, cold;
  };
  const Forms& forms(size_t pass) const noexcept { return forms_[pass]; }
  // The same operation by operation; null where that is not possible. Thread-safe.
  const gpu::PieceCode* pieces(size_t pass) const;
  // The same as code of the CPU, for runs that csrc/gpu refuses. Thread-safe.
  const cpu::CompiledGroup& on_cpu(size_t pass) const;
  // Thread-safe. Throws OutOfMemory, Error.
  Loaded loaded(const gpu::Kernel& kernel) const;

 private:
  const Plan& plan_;
  Kernels& kernels_;
  Constants& constants_;
  std::vector<Forms> forms_;  // both null for a call
  size_t bytes_ = 0;
  mutable std::mutex mutex_;
  mutable std::unordered_map<const gpu::Kernel*, Loaded> loaded_;
  // Made when they are first asked for.
  mutable std::vector<std::unique_ptr<const cpu::CompiledGroup>> on_cpu_;
  mutable std::vector<std::optional<std::unique_ptr<const gpu::PieceCode>>> pieces_;
};

}  // namespace hologram::cuda
