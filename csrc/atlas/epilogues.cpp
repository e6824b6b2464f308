// Functions of a call's result that who computes the call may compute with it.
#include <algorithm>
#include <optional>
#include <vector>

#include "atlas/canonicalise.h"
#include "atlas/draft.h"
#include "atlas/op_table.h"

namespace hologram {
namespace {

// The node that is stored, of a group that loads one tensor and stores another of its dtype.
std::optional<uint16_t> stored_by(const Group& group) {
  if (group.compute_type != ComputeType::f32 || group.operands.size() != 2) return std::nullopt;
  if (group.operands[0].dtype != group.operands[1].dtype) return std::nullopt;
  for (const Operand& operand : group.operands) {
    if (operand.layout != Layout::dense || operand.spread != kEach) return std::nullopt;
  }
  const auto count = [&](NodeKind kind) {
    return std::ranges::count(group.nodes, kind, &Node::kind);
  };
  if (count(NodeKind::load) != 1 || count(NodeKind::store) != 1) return std::nullopt;
  const Node& last = group.nodes.back();
  const Node& first = *std::ranges::find(group.nodes, NodeKind::load, &Node::kind);
  if (last.kind != NodeKind::store || first.a == last.b) return std::nullopt;
  return last.a;
}

bool touches(const Program& program, const Batch& batch, uint16_t slot) {
  return std::ranges::any_of(batch.members, [&](const Batch::Member& member) {
    return std::ranges::any_of(
        member.accesses, [&](uint16_t access) { return program.accesses[access].slot == slot; });
  });
}

// The call whose only result is the access, where nothing else but the group touches that, and
// nothing from the call on what the group writes.
std::optional<uint32_t> computing_call(const Program& program, const Plan& plan, uint32_t group,
                                       uint16_t result, uint16_t written) {
  const uint16_t slot = program.accesses[result].slot, to = program.accesses[written].slot;
  if (program.slots[slot].live) return std::nullopt;
  std::optional<uint32_t> found;
  for (uint32_t i = 0; i < plan.batches.size(); ++i) {
    const Batch& batch = plan.batches[i];
    if (i != group && touches(program, batch, slot)) {
      if (found || i > group || !batch.is_call()) return std::nullopt;
      const CallKey& call = program.calls[batch.call];
      const auto writes = program.writes_of(call);
      const auto reads = program.reads_of(call);
      if (writes.size() != 1 || writes[0] != result) return std::nullopt;
      if (std::ranges::any_of(
              reads, [&](uint16_t access) { return program.accesses[access].slot == slot; })) {
        return std::nullopt;
      }
      found = i;
    }
    if (found && i < group && touches(program, batch, to)) return std::nullopt;
  }
  return found;
}

}  // namespace

void find_epilogues(const Program& program, Plan& plan) {
  for (uint32_t i = 0; i < plan.batches.size(); ++i) {
    const Batch& batch = plan.batches[i];
    if (batch.is_call() || batch.members.size() != 1) continue;
    const std::optional<uint16_t> value = stored_by(batch.group);
    if (!value) continue;
    const auto& nodes = batch.group.nodes;
    const Node& last = nodes[nodes[*value].kind == NodeKind::cast ? nodes[*value].a : *value];
    if (last.kind != NodeKind::compute || !op_info(last.op).has(kEpilogue)) continue;
    if (nodes[last.a].kind != NodeKind::load) continue;
    const Batch::Member& member = batch.members.front();
    const uint16_t to = batch.group.nodes.back().b;
    const uint16_t result = member.accesses[1 - to], written = member.accesses[to];
    const auto call = computing_call(program, plan, i, result, written);
    if (!call) continue;
    plan.epilogues.push_back({*call, i, result, written});
  }
}

}  // namespace hologram
