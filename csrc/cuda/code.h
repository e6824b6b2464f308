// A plan for a GPU: each group as launches of precompiled kernels.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atlas/queue.h"
#include "atlas/spin_lock.h"
#include "cpu/compiled_group.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "gpu/launch.h"
#include "gpu/pieces.h"
#include "gpu/prepared.h"

namespace hologram::cuda {

// What a launch needs on the device.
struct Loaded {
  Function function;  // null where the package has no such kernel
  Address program;    // 0 where the kernel has none
};

// How a pass is run by kernels: by those emitted for its group, which may not be there (yet),
// operation by operation, or by cold ones, which are slower.
enum class Form : uint8_t { emitted, pieces, cold };

// A pass of one shape, whose kernels are all there.
struct Ready {
  Ready(Form its_form, gpu::Prepared its_launches)
      : form(its_form), prepared(std::move(its_launches)) {}

  const Form form;
  const gpu::Prepared prepared;
  std::vector<Loaded> loaded;  // of each launch
  // Those that would run it better, and what Kernels::compiled() was when they were not there.
  std::vector<const gpu::Kernel*> wanted;
  uint64_t compiled = 0;
  mutable std::atomic<uint32_t> runs{0};  // counted where there are some
};

class Code final : public PlanCode {
 public:
  // All outlive it.
  Code(const Plan& plan, Kernels& kernels, Constants& constants);
  ~Code() override;
  size_t bytes() const noexcept override { return bytes_; }
  const Plan& plan() const noexcept { return plan_; }

  // Of a pass that is no call, for a run of these bindings. It is kept for runs of the same shape.
  // Null where there are no kernels for it, or its numbers do not fit: then the CPU runs it.
  // Thread-safe. Throws OutOfMemory, Error.
  std::shared_ptr<const Ready> ready(size_t pass, std::span<const Binding> bindings) const;
  // Null as well where a run of the shape has not been asked for lately, or may be made better by
  // now. Calls no driver.
  std::shared_ptr<const Ready> ready_if_known(size_t pass,
                                              std::span<const Binding> bindings) const noexcept;
  // The same without memory for values in between.
  std::shared_ptr<const Ready> ready_without_pieces(size_t pass,
                                                    std::span<const Binding> bindings) const;
  // The same as code of the CPU, for runs that csrc/gpu refuses. Thread-safe.
  const cpu::CompiledGroup& on_cpu(size_t pass) const;

 private:
  using ReadyCode = std::shared_ptr<const Ready>;
  // Null where csrc/gpu has none for the group: it has complex numbers, or more values or numbers
  // than the cold ones have places for.
  struct Forms {
    std::unique_ptr<const gpu::GroupCode> emitted, cold;
  };
  // What passes have been run with lately.
  struct Recent {
    std::array<ReadyCode, 8> list;  // null behind the last one
    size_t oldest = 0;
  };

  // What is known of a run of the shape, up to date or not; null if nothing is.
  ReadyCode find_recent(size_t pass, std::span<const Binding> bindings) const noexcept;
  bool is_up_to_date(const Ready& ready) const noexcept;
  ReadyCode make_ready(size_t pass, std::span<const Binding> bindings) const;
  // Null where a kernel is missing; `missing` has which.
  std::shared_ptr<Ready> make_ready(size_t pass, std::span<const Binding> bindings, Form form,
                                    std::vector<const gpu::Kernel*>* missing = nullptr) const;
  std::shared_ptr<Ready> make_ready(size_t pass, std::span<const Binding> bindings, Form form,
                                    const gpu::Prepared::Planner& planner,
                                    std::vector<const gpu::Kernel*>* missing) const;
  const gpu::PieceCode* pieces(size_t pass) const;
  Loaded loaded(const gpu::Kernel& kernel) const;

  const Plan& plan_;
  Kernels& kernels_;
  Constants& constants_;
  std::vector<Forms> forms_;  // both null for a call
  size_t bytes_ = 0;
  mutable SpinLock recent_lock_;
  mutable std::vector<Recent> recent_;  // guarded by recent_lock_
  mutable std::mutex mutex_;            // of all below
  mutable std::unordered_map<const gpu::Kernel*, Loaded> loaded_;
  // Made when they are first asked for.
  mutable std::vector<std::unique_ptr<const cpu::CompiledGroup>> on_cpu_;
  mutable std::vector<std::optional<std::unique_ptr<const gpu::PieceCode>>> pieces_;
};

}  // namespace hologram::cuda
