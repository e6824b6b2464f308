// What of the drafts has to be computed.
#include <algorithm>
#include <vector>

#include "atlas/algebra.h"
#include "atlas/canonicalise.h"
#include "atlas/draft.h"

namespace hologram {
namespace {

// Blocks share no memory. They are numbered by their first operand, so that equal groups over
// different blocks are equal.
uint16_t area(const Program& program, const Batch::Member& member, uint16_t slot) {
  for (size_t i = 0; i < member.accesses.size(); ++i) {
    if (program.accesses[member.accesses[i]].slot == slot) return static_cast<uint16_t>(i);
  }
  return 0;
}

// A call is made in any case.
Batch call_of(const Program& program, std::vector<Value>& values, const Draft& draft) {
  for (const auto& load : draft.loads) {
    for (const ValueId id : load.sources) values[id].wanted = true;
  }
  const CallKey& call = program.calls[draft.call];
  const auto reads = program.reads_of(call), writes = program.writes_of(call);
  Batch batch;
  batch.call = draft.call;
  batch.name = call.name;
  batch.group.compute_type = draft.compute_type;
  Batch::Member& member = batch.members.emplace_back();
  member.accesses.assign(reads.begin(), reads.end());
  member.accesses.insert(member.accesses.end(), writes.begin(), writes.end());
  member.space = draft.space;
  member.shape = member.structure = 0;
  return batch;
}

// What of a draft has to be computed, as a group. Later groups have been built: they have said
// what they read.
Batch build(const Program& program, std::vector<Value>& values, const Draft& draft) {
  if (draft.call != Batch::kNoCall) return call_of(program, values, draft);
  Batch batch;
  std::vector<bool> live(draft.nodes.size(), false);
  std::vector<ValueId> stores;
  for (const ValueId id : draft.values) {
    if (!values[id].wanted) continue;
    stores.push_back(id);
    live[values[id].node] = true;
  }
  for (size_t i = draft.nodes.size(); i-- > 0;) {
    const Node& node = draft.nodes[i];
    if (!live[i] || node.kind == NodeKind::load || node.kind == NodeKind::immediate) continue;
    const int arity = arity_of(node);
    if (arity > 0) live[node.a] = true;
    if (arity > 1) live[node.b] = true;
    if (arity > 2) live[node.c] = true;
  }
  for (const auto& load : draft.loads) {
    if (!live[load.node]) continue;
    for (const ValueId id : load.sources) values[id].wanted = true;
  }
  if (stores.empty()) return batch;

  Batch::Member member;
  member.space = draft.space;
  member.shape = 0;
  member.structure = 0;
  std::vector<Draft::Place> places;
  Group& group = batch.group;
  group.compute_type = draft.compute_type;
  std::vector<uint16_t> renamed(draft.nodes.size());
  const auto operand = [&](Draft::Place place) {
    const uint16_t index = operand_of(places, place);
    if (index == group.operands.size()) {
      const AccessKey& key = program.accesses[place.access];
      member.accesses.push_back(place.access);
      const Layout layout =
          key.layout == Layout::dense && place.spread == kOne ? Layout::scalar : key.layout;
      group.operands.push_back({key.dtype, layout, area(program, member, key.slot), place.spread});
      if (key.layout == Layout::strided) member.shape = key.shape;
    }
    return index;
  };
  for (size_t i = 0; i < draft.nodes.size(); ++i) {
    if (!live[i]) continue;
    Node node = draft.nodes[i];
    if (node.kind == NodeKind::load) {
      node.a = operand(draft.operands[node.a]);
    } else if (node.kind == NodeKind::immediate) {
      member.immediates.push_back(draft.immediates[node.a]);
      node.a = static_cast<uint16_t>(member.immediates.size() - 1);
    } else if (node.kind == NodeKind::random) {
      const auto from = draft.immediates.begin() + node.a;
      member.immediates.insert(member.immediates.end(), from, from + kDrawImmediates);
      node.a = static_cast<uint16_t>(member.immediates.size() - kDrawImmediates);
    } else if (node.kind != NodeKind::position) {
      const int arity = arity_of(node);
      node.a = renamed[node.a];
      const bool has_spread = node.kind == NodeKind::fold || node.kind == NodeKind::scan;
      if (!has_spread) node.b = arity > 1 ? renamed[node.b] : uint16_t{0};
      node.c = arity > 2 ? renamed[node.c] : uint16_t{0};
    }
    renamed[i] = static_cast<uint16_t>(group.nodes.size());
    group.nodes.push_back(node);
  }
  for (const ValueId id : stores) {
    const Value& value = values[id];
    const uint16_t place = operand({value.access, value.spread});
    group.nodes.push_back(
        {NodeKind::store, Op{}, program.accesses[value.access].dtype, renamed[value.node], place});
  }
  if (program.contracts) contract(group);
  group.immediates = static_cast<int>(member.immediates.size());
  if (is_structured(group)) member.structure = draft.structure;
  batch.members.push_back(std::move(member));
  return batch;
}

}  // namespace

std::vector<Batch> drop_dead_code(const Program& program, Drafts& drafts) {
  std::vector<Batch> groups(drafts.groups.size());
  // From the last: it says what it reads before those are looked at that compute it.
  for (size_t i = groups.size(); i-- > 0;) {
    groups[i] = build(program, drafts.values, drafts.groups[i]);
  }
  return groups;
}

}  // namespace hologram
