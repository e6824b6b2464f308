// Plans as code of the simulated device: the CPU's, so that its bits are the CPU's.
#pragma once

#include <memory>
#include <vector>

#include "atlas/queue.h"
#include "cpu/executor.h"

namespace sim {

struct Code final : hologram::PlanCode {
  explicit Code(const hologram::Plan& plan) {
    for (const auto& batch : plan.batches) groups.push_back(hologram::cpu::compile(batch.group));
  }
  size_t bytes() const noexcept override {
    size_t sum = sizeof *this;
    for (const auto& group : groups) sum += group->bytes();
    return sum;
  }
  std::vector<std::unique_ptr<hologram::cpu::CompiledGroup>> groups;  // one per batch
};

}  // namespace sim
