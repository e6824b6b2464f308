// Functions of a call's result that who computes the call may compute with it.
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "atlas/canonicalise.h"
#include "atlas/draft.h"
#include "atlas/op_table.h"

namespace hologram {
namespace {

using Number = Epilogue::Number;

// What the values of a group are, as far as is asked. Whether numbers are what they have to be
// shows when there are some: they are noted.
class Matcher {
  bool is(uint16_t n, NodeKind kind) const { return nodes_[n].kind == kind; }
  bool is(uint16_t n, Op op) const { return is(n, NodeKind::compute) && nodes_[n].op == op; }
  // Its first two operands, in either order.
  template <class First, class Second>
  bool is(uint16_t n, Op op, const First& first, const Second& second) {
    if (!is(n, op)) return false;
    const size_t noted = numbers.size();
    for (const auto& [a, b] :
         {std::pair(nodes_[n].a, nodes_[n].b), std::pair(nodes_[n].b, nodes_[n].a)}) {
      if (first(a) && second(b)) return true;
      numbers.resize(noted);
    }
    return false;
  }
  auto number(float value) {
    return [this, value](uint16_t n) {
      if (!is(n, NodeKind::immediate)) return false;
      numbers.push_back({nodes_[n].a, value});
      return true;
    };
  }

 public:
  explicit Matcher(const Group& group) : nodes_(group.nodes) {}

  // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), as contraction leaves it.
  bool is_gelu_tanh(uint16_t value) {
    const auto x = [&](uint16_t n) { return is(n, NodeKind::load); };
    const auto square = [&](uint16_t n) { return is(n, Op::mul, x, x); };
    const auto cube = [&](uint16_t n) { return is(n, Op::mul, square, x); };
    const auto inner = [&](uint16_t n) {
      return is(n, Op::fma, cube, number(0.044715f)) && x(nodes_[n].c);
    };
    const auto scaled = [&](uint16_t n) { return is(n, Op::mul, inner, number(0.7978845608f)); };
    const auto tanh = [&](uint16_t n) { return is(n, Op::tanh) && scaled(nodes_[n].a); };
    const auto half = [&](uint16_t n) { return is(n, Op::mul, x, number(0.5f)); };
    const auto cdf = [&](uint16_t n) { return is(n, Op::add, tanh, number(1.0f)); };
    if (is(value, NodeKind::cast)) value = nodes_[value].a;
    return is(value, Op::mul, half, cdf);
  }

  std::vector<Number> numbers;

 private:
  const std::vector<Node>& nodes_;
};

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
    Matcher matcher(batch.group);
    if (!matcher.is_gelu_tanh(*value)) continue;
    const Batch::Member& member = batch.members.front();
    const uint16_t to = batch.group.nodes.back().b;
    const uint16_t result = member.accesses[1 - to], written = member.accesses[to];
    const auto call = computing_call(program, plan, i, result, written);
    if (!call) continue;
    for (Number& its : matcher.numbers) its.immediate = member.immediates[its.immediate];
    plan.epilogues.push_back({*call, i, result, written, std::move(matcher.numbers)});
  }
}

}  // namespace hologram
