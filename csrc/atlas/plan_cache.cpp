#include "atlas/plan_cache.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace hologram {

Compiled::Compiled(PlanCompiler& compiler, const Program& program) : plan(canonicalise(program)) {
  traversals.reserve(plan.batches.size());
  for (const Batch& batch : plan.batches) traversals.push_back(hologram::traversals(batch.group));
  code = compiler.compile(plan);
}

size_t Compiled::bytes() const {
  size_t sum = sizeof *this + plan.scratch.size() * sizeof plan.scratch[0] + code->bytes();
  for (const auto& turn : plan.discarded) sum += sizeof turn + turn.size() * sizeof turn[0];
  for (size_t i = 0; i < plan.batches.size(); ++i) {
    const Batch& batch = plan.batches[i];
    sum += sizeof batch +
           batch.group.operands.size() * (sizeof(Operand) + sizeof traversals[i][0]) +
           batch.group.nodes.size() * sizeof(Node) + sizeof traversals[i];
    for (const auto& member : batch.members) {
      sum += sizeof member + (member.accesses.size() + member.immediates.size()) * sizeof(uint16_t);
    }
  }
  return sum;
}

std::string describe_pass(const Compiled& compiled, size_t number) {
  constexpr size_t kMostPasses = 8;
  const auto& batches = compiled.plan.batches;
  std::string text = operation_names(batches[number]) + " (pass " + std::to_string(number + 1) +
                     " of " + std::to_string(batches.size());
  for (size_t i = 0; i < std::min(batches.size(), kMostPasses) && batches.size() > 1; ++i) {
    text += (i == 0 ? ": " : "; ") + operation_names(batches[i]);
  }
  return text + (batches.size() > kMostPasses ? "; ...)" : ")");
}

const PlanCache::Entry* PlanCache::look_up(uint64_t hash, const Program& program) const {
  const auto [first, last] = plans_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second.compiled->key.same_key(program)) return &it->second;
  }
  return nullptr;
}

PlanCache::Found PlanCache::find(const Program& program, std::shared_ptr<const Compiled>& plan) {
  if (plan != nullptr && plan->key.same_key(program)) {
    plan->used.store(time_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return {true};
  }
  const uint64_t hash = program.hash();
  {
    const std::lock_guard guard(lock_);
    const uint64_t now = time_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (const Entry* entry = look_up(hash, program)) {
      entry->compiled->used.store(now, std::memory_order_relaxed);
      plan = entry->compiled;
      return {true};
    }
  }
  // Not under the lock: it takes its time, and another thread may want another plan.
  auto compiled = std::make_shared<Compiled>(compiler_, program);
  plan = compiled;
  const std::lock_guard guard(lock_);
  // A program that is seen once may never be seen again.
  const uint64_t now = time_.load(std::memory_order_relaxed);
  if (seen_.size() > 4 * kMostPlans) seen_.clear();
  if (seen_.try_emplace(hash, now).second) return {};
  const size_t bytes = program.key_bytes() + compiled->bytes();
  // Nor may one plan push out most of the others.
  if (bytes > kMostBytes / 4) return {};
  if (look_up(hash, program) != nullptr) return {};  // another thread was first
  const uint64_t evictions = make_room(bytes);
  compiled->key = program.key();
  compiled->used.store(now, std::memory_order_relaxed);
  plans_.emplace(hash, Entry{std::move(compiled), bytes});
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return {false, evictions};
}

// Where there is no room for a plan, drops those that were not used for the longest time until a
// quarter of it is free. Returns how many.
uint64_t PlanCache::make_room(size_t bytes) {
  size_t held = bytes_.load(std::memory_order_relaxed);
  if (plans_.size() < kMostPlans && held + bytes <= kMostBytes) return 0;
  std::vector<std::pair<uint64_t, decltype(plans_)::iterator>> oldest;
  for (auto it = plans_.begin(); it != plans_.end(); ++it) {
    oldest.emplace_back(it->second.compiled->used.load(std::memory_order_relaxed), it);
  }
  std::ranges::sort(oldest, {}, [](const auto& aged) { return aged.first; });
  uint64_t evictions = 0;
  for (const auto& [used, it] : oldest) {
    if (plans_.size() <= kMostPlans / 4 * 3 && held + bytes <= kMostBytes / 4 * 3) break;
    held -= it->second.bytes;
    plans_.erase(it);
    ++evictions;
  }
  bytes_.store(held, std::memory_order_relaxed);
  return evictions;
}

void PlanCache::clear() {
  const std::lock_guard guard(lock_);
  plans_.clear();
  seen_.clear();
  bytes_.store(0, std::memory_order_relaxed);
}

}  // namespace hologram
