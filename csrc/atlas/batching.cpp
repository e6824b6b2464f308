// Groups as a plan: levels, equal groups of a level as one batch, and the memory that passes values
// from group to group.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "atlas/canonicalise.h"
#include "atlas/draft.h"

namespace hologram {
namespace {

std::string signature(const Group& group) {
  std::string text(1, static_cast<char>(group.compute_type));
  const auto append = [&](const auto& items) {
    for (const auto& item : items) {
      text.append(reinterpret_cast<const char*>(&item), sizeof item);
    }
  };
  for (const Operand& operand : group.operands) {
    const uint16_t fields[] = {static_cast<uint16_t>(operand.dtype),
                               static_cast<uint16_t>(operand.layout), operand.area,
                               uint16_t{operand.spread}};
    append(fields);
  }
  text.push_back('|');
  for (const Node& node : group.nodes) {
    const uint16_t fields[] = {static_cast<uint16_t>(node.kind),
                               static_cast<uint16_t>(node.op),
                               static_cast<uint16_t>(node.dtype),
                               node.a,
                               node.b,
                               node.c};
    append(fields);
  }
  return text;
}

void batch(const Drafts& drafts, std::vector<Batch>& groups, const std::vector<size_t>& levels,
           size_t most, Plan& plan) {
  std::vector<std::vector<size_t>> by_level(most + 1);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].members.empty()) by_level[levels[i]].push_back(i);
  }
  for (const auto& level : by_level) {
    std::map<std::pair<uint16_t, std::string>, size_t> known;
    for (const size_t i : level) {
      if (groups[i].is_call()) {
        plan.batches.push_back(std::move(groups[i]));
        ++plan.calls;
        continue;
      }
      const auto [found, fresh] = known.try_emplace(
          {drafts.groups[i].turn, signature(groups[i].group)}, plan.batches.size());
      if (fresh) {
        plan.batches.push_back(std::move(groups[i]));
      } else {
        plan.batches[found->second].members.push_back(std::move(groups[i].members.front()));
      }
    }
  }
}

void find_scratch(const Program& program, const Drafts& drafts, Plan& plan) {
  std::vector<bool> used(program.slots.size(), false), own(used);
  std::vector<size_t> turns(used.size(), 0);  // 1 + the one that stores to it
  std::vector<uint32_t> first(used.size(), 0), last(first);
  for (uint32_t number = 0; number < plan.batches.size(); ++number) {
    const Batch& batch = plan.batches[number];
    for (const auto& member : batch.members) {
      for (const uint16_t access : member.accesses) {
        const uint16_t slot = program.accesses[access].slot;
        if (!used[slot]) first[slot] = number;
        last[slot] = number;
        used[slot] = true;
        if (batch.is_call()) own[slot] = true;
      }
      for (const Node& node : batch.group.nodes) {
        if (node.kind != NodeKind::load) continue;
        own[program.accesses[member.accesses[node.a]].slot] = true;
      }
    }
  }
  for (const Value& value : drafts.values) {
    if (!value.wanted) continue;
    const uint16_t slot = program.accesses[value.access].slot;
    const size_t turn = drafts.groups[value.group].turn + size_t{1};
    if (turns[slot] != 0 && turns[slot] != turn) own[slot] = true;
    turns[slot] = turn;
  }
  for (size_t i = 0; i < used.size(); ++i) {
    const SlotKey& slot = program.slots[i];
    if (!used[i] || slot.has_memory()) continue;
    if (!own[i] && plan.discarded.size() < turns[i]) plan.discarded.resize(turns[i]);
    const auto number = static_cast<uint16_t>(i);
    if (own[i]) {
      plan.scratch.push_back({number, first[i], last[i]});
    } else {
      plan.discarded[turns[i] - 1].push_back(number);
    }
  }
  std::ranges::stable_sort(plan.scratch, {}, &Plan::Scratch::first);
}

}  // namespace

Plan batch_groups(const Program& program, const Drafts& drafts, std::vector<Batch> groups) {
  Plan plan;
  std::vector<size_t> levels(groups.size(), 0);
  size_t most = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const size_t before : drafts.groups[i].after) {
      levels[i] = std::max(levels[i], levels[drafts.root(before)] + 1);
    }
    most = std::max(most, levels[i]);
  }
  batch(drafts, groups, levels, most, plan);
  for (const Value& value : drafts.values) plan.stores_elided += !value.wanted;
  find_scratch(program, drafts, plan);
  return plan;
}

}  // namespace hologram
