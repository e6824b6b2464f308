// A plan as code of the CPU or, where HOLOGRAM_TEST_SIM_KERNELS says so, as kernels of a GPU, which
// the emulator of test/gpu runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atlas/own_bindings.h"
#include "cpu/code.h"
#include "gpu/launch.h"

namespace sim {

class Code final : public hologram::PlanCode {
 public:
  explicit Code(const hologram::Plan& plan);
  size_t bytes() const noexcept override { return cpu_.bytes(); }

  // Compiles what passes from `first` on need, in one call of the compiler, which takes long: for
  // the queue's thread.
  void prepare(size_t first, std::span<const hologram::OwnBindings> passes) const;
  // The addresses are the host's.
  void run(size_t pass, std::span<const hologram::Binding> bindings) const;

  // Runs of groups that are to be kernels: by these, or by the CPU where csrc/gpu refuses them.
  inline static std::atomic<uint64_t> runs_by_emitted{0}, runs_by_cold{0}, runs_by_cpu{0};
  // Why it has refused some, a line each.
  static std::string refusals();
  // Compiles what waits for that, and returns how many kernels it was.
  static int compile();

 private:
  struct Codes {  // null: not wanted, or refused
    std::unique_ptr<const hologram::gpu::GroupCode> emitted, cold;
  };

  const hologram::cpu::Code cpu_;
  std::vector<Codes> groups_;
};

}  // namespace sim
