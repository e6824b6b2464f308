// Plans as code of the CPU, also for backends that run it there in another way (test/sim).
#pragma once

#include <memory>
#include <vector>

#include "atlas/queue.h"
#include "cpu/compiled_group.h"

namespace hologram::cpu {

struct Code final : PlanCode {
  explicit Code(const Plan& plan) {
    for (const Batch& batch : plan.batches) {
      groups.push_back(batch.is_call() ? nullptr : compile(batch.group));
    }
  }
  size_t bytes() const noexcept override {
    size_t sum = 0;
    for (const auto& group : groups) {
      if (group != nullptr) sum += group->bytes();
    }
    return sum;
  }
  std::vector<std::unique_ptr<CompiledGroup>> groups;  // one per batch, null for a call
};

}  // namespace hologram::cpu
