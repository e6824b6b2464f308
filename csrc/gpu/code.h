// A plan for a GPU: each group as launches of kernels, of those that are there when it runs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atlas/error.h"
#include "atlas/queue.h"
#include "atlas/spin_lock.h"
#include "cpu/compiled_group.h"
#include "gpu/kernel_store.h"
#include "gpu/launch.h"
#include "gpu/pieces.h"
#include "gpu/prepared.h"

namespace hologram::gpu {

// What a launch needs on the device.
struct Loaded {
  void* function;    // null where there is no such kernel
  uint64_t program;  // the address of its program; 0 where the kernel has none
};

// How a pass is run by kernels: by those emitted for its group, which may not be there (yet),
// operation by operation, or by cold ones, which are slower.
enum class Form : uint8_t { emitted, pieces, cold };

// How often groups were run in each of these ways, by the CPU's code, and what moves elements.
struct RunCounts {
  std::atomic<uint64_t> emitted{0}, pieces{0}, cold{0}, cpu{0}, moves{0};

  void count(Form form, uint64_t times = 1) noexcept;
  // In this order, as stream_stats() names them: "groups.emitted".
  std::vector<std::pair<std::string, uint64_t>> named() const;
};

// For errors: ", which computes add, mul of 10 and 20 elements".
std::string described(const Batch& batch, std::span<const Binding> bindings);

// A pass of one shape, whose kernels are all there.
struct Ready {
  Ready(Form its_form, Prepared its_launches) : form(its_form), prepared(std::move(its_launches)) {}

  const Form form;
  const Prepared prepared;
  std::vector<Loaded> loaded;  // of each launch
  // Those that would run it better, and what KernelStore::compiled() was when they were not there.
  std::vector<const Kernel*> wanted;
  uint64_t compiled = 0;
  mutable std::atomic<uint32_t> runs{0};  // counted where there are some
};

class Code final : public PlanCode {
 public:
  // Both outlive it. `device`: what its targets have in common; `cold` and `counts` are not looked
  // at.
  Code(const Plan& plan, KernelStore& kernels, const Target& device);
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
  // Null as well where the kernels that run it are not the ones that it is to have in the end.
  std::shared_ptr<const Ready> ready_for_good(size_t pass,
                                              std::span<const Binding> bindings) const noexcept;
  // As ready() without memory for values in between.
  std::shared_ptr<const Ready> ready_without_pieces(size_t pass,
                                                    std::span<const Binding> bindings) const;
  // The same as code of the CPU, for runs that csrc/gpu refuses. Thread-safe.
  const cpu::CompiledGroup& on_cpu(size_t pass) const;

 private:
  using ReadyCode = std::shared_ptr<const Ready>;
  // Null where csrc/gpu has none for the group: it has complex numbers, or more values or numbers
  // than the cold ones have places for.
  struct Forms {
    std::unique_ptr<const GroupCode> emitted, cold;
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
                                    std::vector<const Kernel*>* missing = nullptr) const;
  std::shared_ptr<Ready> make_ready(size_t pass, std::span<const Binding> bindings, Form form,
                                    const Prepared::Planner& planner,
                                    std::vector<const Kernel*>* missing) const;
  const PieceCode* pieces(size_t pass) const;
  Loaded loaded(const Kernel& kernel) const;

  const Plan& plan_;
  KernelStore& kernels_;
  const Target emitted_, cold_;
  std::vector<Forms> forms_;  // both null for a call
  size_t bytes_ = 0;
  mutable SpinLock recent_lock_;
  mutable std::vector<Recent> recent_;  // guarded by recent_lock_
  mutable std::mutex mutex_;            // of all below
  mutable std::unordered_map<const Kernel*, Loaded> loaded_;
  // Made when they are first asked for.
  mutable std::vector<std::unique_ptr<const cpu::CompiledGroup>> on_cpu_;
  mutable std::vector<std::optional<std::unique_ptr<const PieceCode>>> pieces_;
};

// Runs a pass by kernels; `ready` is what Code::ready_if_known() had, or null. `launch(ready)`
// enqueues all of it, or throws OutOfMemory with nothing enqueued: then `give_back_idle()` is
// called, and memory for values in between done without. False, with nothing enqueued, where there
// are no kernels for it.
template <class Launch>
bool run_by_kernels(const Code& code, size_t pass, std::span<const Binding> bindings,
                    std::shared_ptr<const Ready> ready, const std::function<void()>& give_back_idle,
                    RunCounts& runs, Launch&& launch) {
  const auto run = [&] {
    if (ready == nullptr) ready = code.ready(pass, bindings);
    if (ready != nullptr) launch(*ready);
  };
  try {
    try {
      run();
    } catch (const OutOfMemory&) {
      give_back_idle();
      run();
    }
  } catch (const OutOfMemory&) {
    if (ready == nullptr || ready->form != Form::pieces) throw;
    ready = code.ready_without_pieces(pass, bindings);
    run();
  }
  if (ready == nullptr) return false;
  runs.count(ready->form);
  return true;
}

}  // namespace hologram::gpu
