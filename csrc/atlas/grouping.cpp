// Which instructions are computed together, and in what order groups have to be executed.
#include <algorithm>
#include <array>

#include "atlas/algebra.h"
#include "atlas/canonicalise.h"
#include "atlas/draft.h"

namespace hologram {
namespace {

// What is known of an access while the program is walked.
struct AccessState {
  ValueId latest = kNoValue;         // written last
  bool in_flight = false;            // `latest` is exactly what the bytes hold
  std::vector<size_t> loaded_in;     // groups that loaded it from memory since it was written last
  std::optional<size_t> touched_in;  // the last group that has it as an operand
};

class Grouping {
 public:
  explicit Grouping(const Program& program)
      : program_(program), states_(program.accesses.size()), overlaps_(program.accesses.size()) {
    for (const auto& [a, b] : program.overlaps) {
      overlaps_[a].push_back(b);
      overlaps_[b].push_back(a);
    }
  }

  Drafts run() {
    for (const Instruction& instruction : program_.code) add(instruction);
    keep_what_lives();
    return std::move(result_);
  }

 private:
  bool strided(uint16_t access) const {
    return program_.accesses[access].layout == Layout::strided;
  }

  // The shape that the strided operands of an instruction have, 0 if there are none.
  uint16_t shape_of(const Instruction& instruction) const {
    if (strided(instruction.out)) return program_.accesses[instruction.out].shape;
    for (int i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if ((source & kImmediate) == 0 && strided(source)) return program_.accesses[source].shape;
    }
    return 0;
  }

  bool fits(const Draft& draft, const Instruction& instruction, uint16_t shape) const {
    return draft.space == instruction.space &&
           draft.compute_type == compute_type_of(instruction.dtype) &&
           (shape == 0 || draft.shape == 0 || draft.shape == shape) &&
           draft.nodes.size() + 8 <= kMostNodes && draft.accesses.size() + 4 <= kMostOperands;
  }

  // The value that a source is while it is in flight.
  ValueId flying(Source source) const {
    if ((source & kImmediate) != 0 || !states_[source].in_flight) return kNoValue;
    return states_[source].latest;
  }

  // Moves the first group's nodes into the second, a later one, if nothing in between minds.
  bool merge(size_t from, size_t into) {
    Draft& source = result_.groups[from];
    Draft& target = result_.groups[into];
    if (source.space != target.space || source.compute_type != target.compute_type ||
        (source.shape != 0 && target.shape != 0 && source.shape != target.shape) ||
        source.nodes.size() + target.nodes.size() + 8 > kMostNodes ||
        source.accesses.size() + target.accesses.size() + 4 > kMostOperands) {
      return false;
    }
    for (const size_t follower : source.followers) {
      if (root(follower) <= into) return false;
    }
    const auto base = static_cast<uint16_t>(target.nodes.size());
    for (Node node : source.nodes) {
      switch (node.kind) {
        case NodeKind::load: node.a = operand_of(target.accesses, source.accesses[node.a]); break;
        case NodeKind::immediate:
          target.immediates.push_back(source.immediates[node.a]);
          node.a = static_cast<uint16_t>(target.immediates.size() - 1);
          break;
        default:
          node.a = static_cast<uint16_t>(node.a + base);
          node.b = static_cast<uint16_t>(node.b + base);
          node.c = static_cast<uint16_t>(node.c + base);
      }
      target.nodes.push_back(node);
    }
    for (auto& load : source.loads) {
      load.node = static_cast<uint16_t>(load.node + base);
      target.loads.push_back(std::move(load));
    }
    for (const ValueId id : source.values) {
      result_.values[id].group = into;
      result_.values[id].node = static_cast<uint16_t>(result_.values[id].node + base);
      target.values.push_back(id);
    }
    target.after.insert(target.after.end(), source.after.begin(), source.after.end());
    target.followers.insert(target.followers.end(), source.followers.begin(),
                            source.followers.end());
    if (target.shape == 0) target.shape = source.shape;
    source = Draft(source.compute_type, source.space);
    source.merged_into = into;
    return true;
  }

  size_t root(size_t group) const { return result_.root(group); }

  // The groups that an instruction has to come after: in any case, unless it joins them, or unless
  // they are merged into the one it joins.
  struct Constraints {
    std::vector<size_t> strict, weak, values;
  };

  Constraints constraints(const Instruction& instruction, std::optional<size_t> joins) const {
    Constraints result;
    for (int i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if ((source & kImmediate) != 0) continue;
      if (const ValueId id = flying(source); id != kNoValue) {
        if (result_.values[id].group != joins) result.values.push_back(result_.values[id].group);
        continue;
      }
      for (const ValueId id : stored(source)) result.strict.push_back(result_.values[id].group);
    }
    const auto& out = states_[instruction.out];
    for (const size_t group : out.loaded_in) result.weak.push_back(root(group));
    if (out.latest != kNoValue) result.weak.push_back(result_.values[out.latest].group);
    for (const uint16_t other : overlaps_[instruction.out]) {
      for (const size_t group : states_[other].loaded_in) result.strict.push_back(root(group));
      if (states_[other].latest != kNoValue) {
        result.strict.push_back(result_.values[states_[other].latest].group);
      }
    }
    return result;
  }

  // The values that a load of an access from memory reads.
  std::vector<ValueId> stored(uint16_t access) const {
    std::vector<ValueId> result;
    if (states_[access].latest != kNoValue) result.push_back(states_[access].latest);
    for (const uint16_t other : overlaps_[access]) {
      if (states_[other].latest != kNoValue) result.push_back(states_[other].latest);
    }
    return result;
  }

  // Chooses a group to join, merging those that the instruction brings together.
  std::optional<size_t> choose(const Instruction& instruction, uint16_t shape) {
    std::vector<size_t> candidates;
    const auto consider = [&](size_t group) {
      if (group >= turn_begin_ && fits(result_.groups[group], instruction, shape)) {
        candidates.push_back(group);
      }
    };
    for (int i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if ((source & kImmediate) != 0) continue;
      if (const ValueId id = flying(source); id != kNoValue) consider(result_.values[id].group);
      if (states_[source].touched_in) consider(root(*states_[source].touched_in));
    }
    if (const auto group = states_[instruction.out].touched_in) consider(root(*group));
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    for (; !candidates.empty(); candidates.pop_back()) {
      const size_t last = candidates.back();
      const Constraints bounds = constraints(instruction, last);
      const auto before = [&](size_t group) { return group < last; };
      const auto not_after = [&](size_t group) { return group <= last; };
      const bool later = !std::ranges::all_of(bounds.strict, before) ||
                         !std::ranges::all_of(bounds.values, before) ||
                         !std::ranges::all_of(bounds.weak, not_after);
      if (later) continue;
      for (size_t i = candidates.size() - 1; i-- > 0;) {
        const bool strict = std::ranges::find(bounds.strict, candidates[i]) != bounds.strict.end();
        if (!strict && shares_value(instruction, candidates[i])) merge(candidates[i], last);
      }
      return last;
    }
    return std::nullopt;
  }

  bool shares_value(const Instruction& instruction, size_t group) const {
    for (int i = 0; i < instruction.arity; ++i) {
      const ValueId id = flying(instruction.in[static_cast<size_t>(i)]);
      if (id != kNoValue && result_.values[id].group == group) return true;
    }
    return false;
  }

  uint16_t emit(Draft& draft, Node node) {
    order_operands(node);
    if (node.kind == NodeKind::compute || node.kind == NodeKind::cast) {
      for (size_t i = 0; i < draft.nodes.size(); ++i) {
        const Node& old = draft.nodes[i];
        if (old.kind == node.kind && old.op == node.op && old.dtype == node.dtype &&
            old.a == node.a && old.b == node.b && old.c == node.c) {
          return static_cast<uint16_t>(i);
        }
      }
    }
    draft.nodes.push_back(node);
    return static_cast<uint16_t>(draft.nodes.size() - 1);
  }

  uint16_t load(size_t group, uint16_t access, DType dtype, std::vector<ValueId> sources) {
    Draft& draft = result_.groups[group];
    for (const auto& old : draft.loads) {
      if (old.access == access && draft.nodes[old.node].dtype == dtype && old.sources == sources) {
        return old.node;
      }
    }
    const uint16_t operand = operand_of(draft.accesses, access);
    draft.nodes.push_back({NodeKind::load, Op{}, dtype, operand});
    const auto node = static_cast<uint16_t>(draft.nodes.size() - 1);
    draft.loads.push_back({node, access, std::move(sources)});
    auto& state = states_[access];
    if (state.loaded_in.empty() || state.loaded_in.back() != group)
      state.loaded_in.push_back(group);
    state.touched_in = group;
    return node;
  }

  // The node that is a source of the instruction, converted to `dtype`.
  uint16_t source_node(size_t group, Source source, DType dtype) {
    Draft& draft = result_.groups[group];
    if ((source & kImmediate) != 0) {
      const auto number = static_cast<uint16_t>(source & ~kImmediate);
      for (size_t i = 0; i < draft.nodes.size(); ++i) {
        const Node& old = draft.nodes[i];
        if (old.kind == NodeKind::immediate && old.dtype == dtype &&
            draft.immediates[old.a] == number) {
          return static_cast<uint16_t>(i);
        }
      }
      draft.immediates.push_back(number);
      draft.nodes.push_back(
          {NodeKind::immediate, Op{}, dtype, static_cast<uint16_t>(draft.immediates.size() - 1)});
      return static_cast<uint16_t>(draft.nodes.size() - 1);
    }
    const ValueId id = flying(source);
    if (id != kNoValue && result_.values[id].group == group) {
      return converted(draft, result_.values[id].node, result_.values[id].dtype, dtype);
    }
    return load(group, source, dtype, id != kNoValue ? std::vector<ValueId>{id} : stored(source));
  }

  // A value of dtype `from` as one of dtype `to` of the same compute type.
  uint16_t converted(Draft& draft, uint16_t node, DType from, DType to) {
    const bool exact = from == to || from == DType::b8 ||
                       (to == DType::f32 && (from == DType::bf16 || from == DType::f16)) ||
                       (to == DType::i64 && compute_type_of(from) == ComputeType::i64);
    return exact ? node : emit(draft, {NodeKind::cast, Op{}, to, node});
  }

  uint16_t compute(Draft& draft, Op op, DType dtype, const std::array<uint16_t, 3>& in) {
    const Expression expression{draft.nodes, draft.immediates, program_, draft.compute_type};
    if (const auto known = simplified(expression, op, dtype, in)) return *known;
    const int arity = op_info(op).arity;
    Node node{NodeKind::compute, op, dtype, in[0]};
    if (arity > 1) node.b = in[1];
    if (arity > 2) node.c = in[2];
    return emit(draft, node);
  }

  void add(const Instruction& instruction) {
    const uint16_t shape = shape_of(instruction);
    if (instruction.turn != turn_) {
      turn_ = instruction.turn;
      turn_begin_ = result_.groups.size();
    }
    std::optional<size_t> chosen = choose(instruction, shape);
    if (!chosen) {
      chosen = result_.groups.size();
      result_.groups.emplace_back(compute_type_of(instruction.dtype), instruction.space);
      result_.groups.back().turn = turn_;
    }
    const size_t group = *chosen;
    const Constraints bounds = constraints(instruction, group);
    for (const auto* list : {&bounds.strict, &bounds.weak, &bounds.values}) {
      for (const size_t before : *list) {
        if (before == group) continue;
        result_.groups[group].after.push_back(before);
        result_.groups[before].followers.push_back(group);
      }
    }
    if (result_.groups[group].shape == 0) result_.groups[group].shape = shape;

    std::array<uint16_t, 3> in{};
    for (int i = 0; i < instruction.arity; ++i) {
      const auto k = static_cast<size_t>(i);
      in[k] = source_node(group, instruction.in[k], source_dtype(instruction, i));
    }
    Draft& draft = result_.groups[group];
    DType dtype = instruction.dtype;
    uint16_t node = in[0];
    if (instruction.code != kCopy) {
      const Op op = static_cast<Op>(instruction.code);
      dtype = result_dtype(op, instruction.dtype);
      node = compute(draft, op, dtype, in);
    }
    write(group, instruction.out, node, dtype);
    result_.values.back().wanted = instruction.kept != 0;
  }

  void write(size_t group, uint16_t access, uint16_t node, DType dtype) {
    const DType memory = program_.accesses[access].dtype;
    Draft& draft = result_.groups[group];
    const bool same_type = memory == DType::b8 || compute_type_of(memory) == draft.compute_type;
    if (memory != dtype && same_type) {
      node = converted(draft, node, dtype, memory);
      dtype = memory;
    }
    const auto id = static_cast<ValueId>(result_.values.size());
    result_.values.push_back({group, node, dtype, access});
    draft.values.push_back(id);
    for (const uint16_t other : overlaps_[access]) states_[other].in_flight = false;
    AccessState& state = states_[access];
    state.latest = id;
    state.in_flight = same_type;  // else what is read back has been converted on its way
    state.touched_in = group;
    // Whoever comes after this store comes after those loads too.
    state.loaded_in.clear();
  }

  void keep_what_lives() {
    for (size_t access = 0; access < states_.size(); ++access) {
      const ValueId id = states_[access].latest;
      if (id != kNoValue && program_.slots[program_.accesses[access].slot].live) {
        result_.values[id].wanted = true;
      }
    }
  }

  static DType source_dtype(const Instruction& instruction, int index) {
    if (index != 0 || instruction.code == kCopy) return instruction.dtype;
    const bool condition = op_info(static_cast<Op>(instruction.code)).has(kCondition);
    return condition ? DType::b8 : instruction.dtype;
  }
  static DType result_dtype(Op op, DType dtype) {
    return op_info(op).has(kPredicate) ? DType::b8 : dtype;
  }

  const Program& program_;
  std::vector<AccessState> states_;
  std::vector<std::vector<uint16_t>> overlaps_;  // of each access
  Drafts result_;
  uint16_t turn_ = 0;
  size_t turn_begin_ = 0;  // its first group
};

}  // namespace

Drafts group_instructions(const Program& program) {
  return Grouping(program).run();
}

}  // namespace hologram
