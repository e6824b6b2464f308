#include "atlas/checker.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace hologram {
namespace {

void require(bool holds, const char* what, size_t index) {
  if (!holds) throw std::logic_error(std::string(what) + " (number " + std::to_string(index) + ")");
}

// Pairs of accesses that share a part of their bytes, both ways round.
using Overlaps = std::set<std::pair<uint16_t, uint16_t>>;

Overlaps overlaps_of(const Program& program) {
  Overlaps all;
  for (const auto& [a, b] : program.overlaps) {
    all.emplace(a, b);
    all.emplace(b, a);
  }
  return all;
}

// Whether a dtype is what a compute type computes in.
bool is_own(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i64;
}

// Whether there are scans of a dtype.
bool is_scanned(DType dtype) {
  return is_own(dtype) || (dtype_bit(dtype) & kHalves) != 0;
}

void check_group(const Group& group, size_t number) {
  std::set<uint16_t> stored;
  for (size_t i = 0; i < group.nodes.size(); ++i) {
    const Node& node = group.nodes[i];
    const uint16_t values[] = {node.a, node.b, node.c};
    for (int k = 0; k < arity_of(node); ++k) {
      const uint16_t value = values[k];
      require(value < i, "a value is used before it is there: group", number);
      require(group.nodes[value].kind != NodeKind::store, "a store is used as a value: group",
              number);
    }
    switch (node.kind) {
      case NodeKind::load:
        require(node.a < group.operands.size(), "a load has no operand: group", number);
        break;
      case NodeKind::immediate:
        require(node.a < group.immediates, "an immediate is missing: group", number);
        break;
      case NodeKind::store:
        require(node.b < group.operands.size(), "a store has no operand: group", number);
        require(group.operands[node.b].layout != Layout::scalar, "a scalar is stored: group",
                number);
        require(stored.count(node.b) == 0, "an operand is stored twice: group", number);
        stored.insert(node.b);
        break;
      case NodeKind::fold:
        require(op_info(node.op).fold != nullptr, "there is no such fold: group", number);
        require(node.b == kRows || node.b == kColumns || node.b == kPlanesAndColumns,
                "a fold has no such result: group", number);
        break;
      case NodeKind::scan:
        require(op_info(node.op).scan != nullptr, "there is no such scan: group", number);
        require(node.b == kColumns || node.b == kMiddle, "a scan has no such axis: group", number);
        require(is_scanned(node.dtype), "a scan is of another dtype: group", number);
        break;
      case NodeKind::pick:
        require(is_own(node.dtype), "a pick is of another dtype: group", number);
        break;
      case NodeKind::random:
        require(node.b < kDrawCount && is_drawn(static_cast<Draw>(node.b), node.dtype) &&
                    compute_type_of(node.dtype) == group.compute_type,
                "there is no such draw: group", number);
        require(node.a + kDrawImmediates <= group.immediates, "an immediate is missing: group",
                number);
        break;
      case NodeKind::position:
        require(node.b == kColumns || node.b == kRows, "there is no such position: group", number);
        require(compute_type_of(node.dtype) == group.compute_type && is_own(node.dtype),
                "a position is of another dtype: group", number);
        break;
      default: break;
    }
    for (int k = 0; k < arity_of(node); ++k) {
      const Node& operand = group.nodes[values[k]];
      require(!is_only_stored(operand) || node.kind == NodeKind::store,
              "a fold over rows or a scan is not just stored: group", number);
      if (operand.kind != NodeKind::scan) continue;
      const Operand& to = group.operands[node.b];
      require(
          to.layout == Layout::dense && to.spread == kEach && takes_scan(to.dtype, operand.dtype),
          "a scan is not stored as it is: group", number);
    }
  }
  require(!stored.empty(), "nothing is stored: group", number);
}

struct Touched {
  std::set<uint16_t> loaded, stored;  // accesses
};

Touched touched_by(const Program& program, const Batch& batch, const Batch::Member& member) {
  Touched result;
  if (batch.is_call()) {
    const CallKey& call = program.calls[batch.call];
    for (const uint16_t access : program.reads_of(call)) result.loaded.insert(access);
    for (const uint16_t access : program.writes_of(call)) result.stored.insert(access);
  }
  for (const Node& node : batch.group.nodes) {
    if (node.kind == NodeKind::load) result.loaded.insert(member.accesses[node.a]);
    if (node.kind == NodeKind::store) result.stored.insert(member.accesses[node.b]);
  }
  return result;
}

// The count of an operand's elements.
uint16_t space_of(const Program& program, const Batch::Member& member, const Operand& operand) {
  if (operand.layout == Layout::scalar) {
    return static_cast<uint16_t>(std::ranges::find(program.counts, 1) - program.counts.begin());
  }
  if (operand.layout == Layout::strided || operand.spread == kEach) return member.space;
  const Structure& structure = program.structures[member.structure];
  const int64_t planes = program.counts[structure.planes], rows = program.counts[structure.rows],
                columns = program.counts[structure.columns];
  const int64_t count = spread_count(operand.spread, {planes, rows, columns});
  return static_cast<uint16_t>(std::ranges::find(program.counts, count) - program.counts.begin());
}

void check_member(const Program& program, const Group& group, const Batch::Member& member,
                  size_t number) {
  require(member.accesses.size() == group.operands.size(), "operands are missing: group", number);
  require(static_cast<int>(member.immediates.size()) == group.immediates,
          "immediates are missing: group", number);
  require(member.space < program.counts.size(), "the space is unknown: group", number);
  for (const uint16_t immediate : member.immediates) {
    require(immediate < program.specials.size(), "an immediate is unknown: group", number);
  }
  for (size_t i = 0; i < member.accesses.size(); ++i) {
    require(member.accesses[i] < program.accesses.size(), "an access is unknown: group", number);
    const AccessKey& key = program.accesses[member.accesses[i]];
    const Operand& operand = group.operands[i];
    require(key.dtype == operand.dtype &&
                (key.layout == Layout::strided) == (operand.layout == Layout::strided),
            "an operand is not what its group says: group", number);
    require(key.space == space_of(program, member, operand),
            "an operand is of another space: group", number);
    require(key.layout != Layout::strided || key.shape == member.shape,
            "an operand is of another shape: group", number);
  }
}

void check_stores(const Program& program, const Batch& batch, const Batch::Member& member,
                  const Overlaps& overlaps, size_t number) {
  const Touched touched = touched_by(program, batch, member);
  for (const uint16_t a : touched.stored) {
    for (const uint16_t b : member.accesses) {
      require(overlaps.count({a, b}) == 0, "a store overlaps a part of an operand: group", number);
    }
  }
}

// Members run at the same time.
void check_apart(const Program& program, const Batch& batch, const Overlaps& overlaps,
                 size_t number) {
  std::vector<Touched> all;
  for (const auto& member : batch.members) all.push_back(touched_by(program, batch, member));
  // By slot, so that this stays quick for batches of many tensors.
  std::vector<std::vector<std::pair<size_t, uint16_t>>> stores(program.slots.size());
  for (size_t i = 0; i < all.size(); ++i) {
    for (const uint16_t a : all[i].stored) stores[program.accesses[a].slot].emplace_back(i, a);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (const auto* accesses : {&all[i].loaded, &all[i].stored}) {
      for (const uint16_t a : *accesses) {
        for (const auto& [other, b] : stores[program.accesses[a].slot]) {
          require(other == i || (a != b && overlaps.count({a, b}) == 0),
                  "two members of a batch overlap: group", number);
        }
      }
    }
  }
}

// The instructions whose results are what a live block holds at the end, in order.
std::vector<uint16_t> last_writes(const Program& program) {
  std::vector<uint16_t> writes;
  for (size_t i = program.code.size(); i-- > 0;) {
    for (const uint16_t out : program.writes_of(program.code[i])) {
      if (!program.slots[program.accesses[out].slot].live) continue;
      if (std::ranges::find(writes, out) == writes.end()) writes.push_back(out);
    }
  }
  std::ranges::reverse(writes);
  return writes;
}

void check_results(const Plan& plan, const Program& program, const Overlaps& overlaps) {
  std::vector<size_t> stored_at(program.accesses.size(), 0);  // 1 + the last batch, 0 for none
  for (size_t i = 0; i < plan.batches.size(); ++i) {
    for (const auto& member : plan.batches[i].members) {
      for (const uint16_t a : touched_by(program, plan.batches[i], member).stored) {
        stored_at[a] = i + 1;
      }
    }
  }
  const auto writes = last_writes(program);
  for (size_t i = 0; i < writes.size(); ++i) {
    require(stored_at[writes[i]] != 0, "what lives is not stored: access", writes[i]);
    for (size_t j = 0; j < i; ++j) {
      require(overlaps.count({writes[i], writes[j]}) == 0 ||
                  stored_at[writes[j]] < stored_at[writes[i]],
              "stores to a part of the same bytes are out of order: access", writes[i]);
    }
  }
}

void check_call(const Program& program, const Instruction& instruction, size_t number) {
  require(instruction.in[0] < program.calls.size(), "there is no such call: instruction", number);
  const CallKey& call = program.call_of(instruction);
  require(size_t{call.first} + call.reads + call.writes <= program.call_accesses.size(),
          "accesses are missing: instruction", number);
  require(call.writes != 0 && instruction.out == program.writes_of(call).front(),
          "a call has another result: instruction", number);
  require(instruction.arity == 0, "a call has operands: instruction", number);
  for (const auto& accesses : {program.reads_of(call), program.writes_of(call)}) {
    for (const uint16_t access : accesses) {
      require(access < program.accesses.size(), "an access is unknown: instruction", number);
      require(program.accesses[access].layout == Layout::dense,
              "a call's access has gaps: instruction", number);
    }
  }
}

// Calls are made in any case, in an order in which each reads what was written before it.
void check_calls(const Plan& plan, const Program& program) {
  std::set<uint16_t> made;
  for (size_t i = 0; i < plan.batches.size(); ++i) {
    if (!plan.batches[i].is_call()) continue;
    require(plan.batches[i].members.size() == 1, "a call is made twice: pass", i);
    require(made.insert(plan.batches[i].call).second, "a call is made twice: pass", i);
  }
  size_t calls = 0;
  for (const Instruction& instruction : program.code) calls += instruction.code == kCall;
  require(made.size() == calls, "calls are not made", calls - made.size());
}

}  // namespace

void validate(const Program& program) {
  for (size_t i = 0; i < program.accesses.size(); ++i) {
    const AccessKey& key = program.accesses[i];
    require(key.slot < program.slots.size(), "an access has no block: access", i);
    require(key.layout != Layout::scalar, "an access is a scalar: access", i);
    require(key.space < program.counts.size(), "an access has no space: access", i);
    require((key.layout == Layout::strided) == (key.shape != 0), "an access has no shape: access",
            i);
    require(key.shape == 0 || key.shape < program.shapes.size(), "a shape is unknown: access", i);
  }
  for (size_t i = 0; i < program.overlaps.size(); ++i) {
    const auto& [a, b] = program.overlaps[i];
    require(a < program.accesses.size() && b < a, "an overlap is not of two accesses: pair", i);
    require(program.accesses[a].slot == program.accesses[b].slot,
            "an overlap is of two blocks: pair", i);
  }
  for (size_t i = 0; i < program.code.size(); ++i) {
    const Instruction& instruction = program.code[i];
    if (instruction.code == kCall) {
      check_call(program, instruction, i);
      continue;
    }
    require(instruction.code <= kCopy, "there is no such operation: instruction", i);
    const bool folds = is_fold(instruction.code);
    const bool scans = is_scan(instruction.code);
    const bool draws = is_draw(instruction.code);
    const int arity = draws ? kDrawImmediates
                      : instruction.code == kCopy || folds || scans
                          ? 1
                          : op_info(op_of(instruction.code)).arity;
    require(!draws || (draw_of(instruction.code) < Draw{kDrawCount} &&
                       is_drawn(draw_of(instruction.code), instruction.dtype)),
            "there is no such draw: instruction", i);
    require(!folds || op_info(op_of(instruction.code)).fold != nullptr,
            "there is no such fold: instruction", i);
    require(instruction.structure == 0 || instruction.structure < program.structures.size(),
            "the dimensions are unknown: instruction", i);
    require(!scans || op_info(op_of(instruction.code)).scan != nullptr,
            "there is no such scan: instruction", i);
    require(!scans || is_scanned(instruction.dtype), "a scan is of another dtype: instruction", i);
    require(!(folds || scans) || instruction.structure != 0,
            "a fold or a scan has no dimensions: instruction", i);
    require(instruction.arity == arity, "operands are missing: instruction", i);
    require(instruction.space < program.counts.size(), "the space is unknown: instruction", i);
    require(instruction.out < program.accesses.size(), "the result is unknown: instruction", i);
    require(folds != (instruction.out_spread() == kEach),
            "many results go to one element: instruction", i);
    for (int k = 0; k < arity; ++k) {
      const Source source = instruction.in[static_cast<size_t>(k)];
      if (source == kPosition) {
        const Spread spread = instruction.spread(static_cast<size_t>(k));
        require(instruction.structure != 0 && (spread == kColumns || spread == kRows),
                "a position has no dimensions: instruction", i);
        require(is_own(instruction.dtype), "a position is of another dtype: instruction", i);
        continue;
      }
      const bool immediate = (source & kImmediate) != 0;
      require(immediate || !draws, "a draw has an operand: instruction", i);
      require(immediate ? size_t{source & ~unsigned{kImmediate}} < program.specials.size()
                        : source < program.accesses.size(),
              "an operand is unknown: instruction", i);
    }
  }
}

void validate(const Plan& plan, const Program& program) {
  const Overlaps overlaps = overlaps_of(program);
  std::map<uint16_t, Plan::Scratch> scratch;
  for (const Plan::Scratch& its : plan.scratch) scratch.emplace(its.slot, its);
  const auto last = static_cast<uint32_t>(plan.batches.size());
  for (const auto& turn : plan.discarded) {
    for (const uint16_t slot : turn) scratch.emplace(slot, Plan::Scratch{slot, 0, last});
  }
  for (size_t i = 0; i < plan.batches.size(); ++i) {
    const Batch& batch = plan.batches[i];
    if (!batch.is_call()) check_group(batch.group, i);
    for (const auto& member : batch.members) {
      if (!batch.is_call()) check_member(program, batch.group, member, i);
      check_stores(program, batch, member, overlaps, i);
      for (const uint16_t access : member.accesses) {
        const uint16_t number = program.accesses[access].slot;
        const SlotKey& slot = program.slots[number];
        if (slot.has_memory()) continue;
        const auto its = scratch.find(number);
        require(its != scratch.end() && its->second.first <= i && i <= its->second.last,
                "a block without memory is touched: group", i);
      }
    }
    check_apart(program, batch, overlaps, i);
  }
  check_results(plan, program, overlaps);
  check_calls(plan, program);
}

}  // namespace hologram
