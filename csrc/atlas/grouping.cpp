// Which instructions are computed together, and in what order groups have to be executed.
#include <algorithm>
#include <array>
#include <span>

#include "atlas/algebra.h"
#include "atlas/canonicalise.h"
#include "atlas/draft.h"
#include "atlas/op_table.h"

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
      if (is_access(source) && strided(source)) return program_.accesses[source].shape;
    }
    return 0;
  }

  // How an instruction belongs to a group: what its spreads are in the group's space.
  enum class Level : uint8_t { elements, rows };

  // Whether an instruction of such a space may be computed in a group, by what they are.
  std::optional<Level> level_in(const Draft& draft, const Instruction& instruction,
                                uint16_t shape) const {
    if (draft.call != Batch::kNoCall || draft.compute_type != compute_type_of(instruction.dtype) ||
        draft.nodes.size() + 8 > kMostNodes || draft.operands.size() + 4 > kMostOperands) {
      return std::nullopt;
    }
    if (draft.space == instruction.space) {
      const bool agree =
          (shape == 0 || draft.shape == 0 || draft.shape == shape) &&
          may_share(draft.structure, instruction.structure) &&
          ((shape | draft.shape) == 0 || (instruction.structure | draft.structure) == 0);
      return agree ? std::optional(Level::elements) : std::nullopt;
    }
    // (A draw has an element for each of the group's space.)
    const bool of_rows = draft.structure != 0 && !is_draw(instruction.code) &&
                         instruction.structure == 0 && shape == 0 &&
                         program_.structures[draft.structure].all_rows == instruction.space;
    return of_rows ? std::optional(Level::rows) : std::nullopt;
  }
  static bool may_share(uint16_t structure, uint16_t other) {
    return structure == 0 || other == 0 || structure == other;
  }
  static Spread spread_at(Level level, Spread spread) {
    return level == Level::rows && spread == kEach ? kRows : spread;
  }

  // The value that a source is while it is in flight.
  ValueId flying(Source source) const {
    if (!is_access(source) || !states_[source].in_flight) return kNoValue;
    return states_[source].latest;
  }
  // Whether an instruction can read a value as its operand `index` in the value's group, or one
  // with which that is merged.
  bool may_read(ValueId id, const Instruction& instruction, size_t index, Level level) const {
    const Value& value = result_.values[id];
    const Draft& draft = result_.groups[value.group];
    if (is_only_stored(draft.nodes[value.node])) return false;
    const Spread spread = spread_at(level, instruction.spread(index));
    if (value.spread == spread) return true;
    // Of one row there is one element.
    return spread == kOne && value.spread == kRows && draft.structure != 0 &&
           program_.accesses[value.access].space == program_.accesses[instruction.in[index]].space;
  }

  // Moves the first group's nodes into the second, a later one, if nothing in between minds.
  bool merge(size_t from, size_t into) {
    Draft& source = result_.groups[from];
    Draft& target = result_.groups[into];
    if (source.space != target.space || source.compute_type != target.compute_type ||
        (source.shape != 0 && target.shape != 0 && source.shape != target.shape) ||
        !may_share(source.structure, target.structure) ||
        ((source.shape | target.shape) != 0 && (source.structure | target.structure) != 0) ||
        source.nodes.size() + target.nodes.size() + 8 > kMostNodes ||
        source.operands.size() + target.operands.size() + 4 > kMostOperands) {
      return false;
    }
    for (const size_t follower : source.followers) {
      if (root(follower) <= into) return false;
    }
    const auto base = static_cast<uint16_t>(target.nodes.size());
    for (Node node : source.nodes) {
      switch (node.kind) {
        case NodeKind::load: node.a = operand_of(target.operands, source.operands[node.a]); break;
        case NodeKind::immediate:
          target.immediates.push_back(source.immediates[node.a]);
          node.a = static_cast<uint16_t>(target.immediates.size() - 1);
          break;
        case NodeKind::scan:
        case NodeKind::fold: node.a = static_cast<uint16_t>(node.a + base); break;
        case NodeKind::position: break;
        case NodeKind::random: node.a = draw_immediates(target, &source.immediates[node.a]); break;
        default:
          node.a = static_cast<uint16_t>(node.a + base);
          node.b = static_cast<uint16_t>(node.b + base);
          node.c = static_cast<uint16_t>(node.c + base);
      }
      target.nodes.push_back(node);
    }
    target.spreads.insert(target.spreads.end(), source.spreads.begin(), source.spreads.end());
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
    if (target.structure == 0) target.structure = source.structure;
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

  Constraints constraints(const Instruction& instruction, size_t joins, Level level) const {
    Constraints result;
    for (int i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if (!is_access(source)) continue;
      if (const ValueId id = flying(source);
          id != kNoValue && may_read(id, instruction, static_cast<size_t>(i), level)) {
        if (result_.values[id].group != joins) result.values.push_back(result_.values[id].group);
        continue;
      }
      for (const ValueId id : stored(source)) result.strict.push_back(result_.values[id].group);
    }
    const auto& out = states_[instruction.out];
    const Draft::Place place{instruction.out, spread_at(level, instruction.out_spread())};
    for (const size_t loader : out.loaded_in) {
      const size_t group = root(loader);
      (loads_alike(result_.groups[group], place) ? result.weak : result.strict).push_back(group);
    }
    if (out.latest != kNoValue) {
      const Value& value = result_.values[out.latest];
      (value.spread == place.spread ? result.weak : result.strict).push_back(value.group);
    }
    for (const uint16_t other : overlaps_[instruction.out]) {
      for (const size_t group : states_[other].loaded_in) result.strict.push_back(root(group));
      if (states_[other].latest != kNoValue) {
        result.strict.push_back(result_.values[states_[other].latest].group);
      }
    }
    return result;
  }

  // Whether a group loads an access element by element as it would store it, if it does.
  static bool loads_alike(const Draft& draft, const Draft::Place& place) {
    return std::ranges::all_of(draft.loads, [&](const Draft::Load& load) {
      return load.place.access != place.access || load.place.spread == place.spread;
    });
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
    const auto consider = [&](size_t group, bool shares = false) {
      if (group < turn_begin_) return;
      const auto level = level_in(result_.groups[group], instruction, shape);
      // Beside elements of rows that it has nothing to do with it would gain nothing.
      if (level && (*level == Level::elements || shares)) candidates.push_back(group);
    };
    for (int i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if (!is_access(source)) continue;
      if (const ValueId id = flying(source); id != kNoValue) {
        consider(result_.values[id].group, true);
      }
      if (states_[source].touched_in) consider(root(*states_[source].touched_in));
    }
    if (const auto group = states_[instruction.out].touched_in) consider(root(*group));
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    for (; !candidates.empty(); candidates.pop_back()) {
      const size_t last = candidates.back();
      const Level level = *level_in(result_.groups[last], instruction, shape);
      const Constraints bounds = constraints(instruction, last, level);
      const auto before = [&](size_t group) { return group < last; };
      const auto not_after = [&](size_t group) { return group <= last; };
      const bool later = !std::ranges::all_of(bounds.strict, before) ||
                         !std::ranges::all_of(bounds.values, before) ||
                         !std::ranges::all_of(bounds.weak, not_after);
      if (later) continue;
      for (size_t i = candidates.size() - 1; i-- > 0;) {
        const bool strict = std::ranges::find(bounds.strict, candidates[i]) != bounds.strict.end();
        if (!strict && shares_value(instruction, candidates[i], level)) merge(candidates[i], last);
      }
      return last;
    }
    return std::nullopt;
  }

  bool shares_value(const Instruction& instruction, size_t group, Level level) const {
    for (size_t i = 0; i < instruction.arity; ++i) {
      const ValueId id = flying(instruction.in[i]);
      if (id != kNoValue && result_.values[id].group == group &&
          may_read(id, instruction, i, level)) {
        return true;
      }
    }
    return false;
  }

  uint16_t emit(Draft& draft, Node node) {
    order_operands(node);
    if (node.kind != NodeKind::load && node.kind != NodeKind::immediate) {
      for (size_t i = 0; i < draft.nodes.size(); ++i) {
        const Node& old = draft.nodes[i];
        if (old.kind == node.kind && old.op == node.op && old.dtype == node.dtype &&
            old.a == node.a && old.b == node.b && old.c == node.c) {
          return static_cast<uint16_t>(i);
        }
      }
    }
    Spread spread = 0;
    const uint16_t values[] = {node.a, node.b, node.c};
    for (int k = 0; k < arity_of(node); ++k) spread |= draft.spreads[values[k]];
    if (node.kind == NodeKind::fold || node.kind == NodeKind::position) {
      spread = static_cast<Spread>(node.b);
    }
    if (node.kind == NodeKind::pick) spread = kRows;
    if (node.kind == NodeKind::scan || node.kind == NodeKind::random) spread = kEach;
    return push(draft, node, spread);
  }

  static uint16_t push(Draft& draft, const Node& node, Spread spread) {
    draft.nodes.push_back(node);
    draft.spreads.push_back(spread);
    return static_cast<uint16_t>(draft.nodes.size() - 1);
  }

  uint16_t load(size_t group, Draft::Place place, DType dtype, std::vector<ValueId> sources) {
    Draft& draft = result_.groups[group];
    for (const auto& old : draft.loads) {
      if (old.place == place && draft.nodes[old.node].dtype == dtype && old.sources == sources) {
        return old.node;
      }
    }
    const uint16_t operand = operand_of(draft.operands, place);
    const uint16_t node = push(draft, {NodeKind::load, Op{}, dtype, operand}, place.spread);
    draft.loads.push_back({node, place, std::move(sources)});
    auto& state = states_[place.access];
    if (state.loaded_in.empty() || state.loaded_in.back() != group)
      state.loaded_in.push_back(group);
    state.touched_in = group;
    return node;
  }

  // The node that is operand `index` of the instruction, converted to `dtype`.
  uint16_t source_node(size_t group, const Instruction& instruction, size_t index, Level level,
                       DType dtype) {
    Draft& draft = result_.groups[group];
    const Source source = instruction.in[index];
    if ((source & kImmediate) != 0) {
      return immediate(draft, static_cast<uint16_t>(source & ~kImmediate), dtype);
    }
    if (source == kPosition) {
      return emit(draft, {NodeKind::position, Op{}, dtype, 0, uint16_t{instruction.spread(index)}});
    }
    const ValueId id = flying(source);
    if (id != kNoValue && result_.values[id].group == group &&
        may_read(id, instruction, index, level)) {
      return converted(draft, result_.values[id].node, result_.values[id].dtype, dtype);
    }
    if (id != kNoValue && level == Level::elements && instruction.spread(index) == kEach) {
      const Value value = result_.values[id];
      if (is_better_computed(value, draft, instruction.out)) {
        return converted(draft, computed_again(group, result_.groups[value.group], value.node),
                         value.dtype, dtype);
      }
    }
    return load(group, {source, spread_at(level, instruction.spread(index))}, dtype,
                read_now(source));
  }

  uint16_t immediate(Draft& draft, uint16_t number, DType dtype) const {
    for (size_t i = 0; i < draft.nodes.size(); ++i) {
      const Node& old = draft.nodes[i];
      if (old.kind == NodeKind::immediate && old.dtype == dtype &&
          draft.immediates[old.a] == number) {
        return static_cast<uint16_t>(i);
      }
    }
    draft.immediates.push_back(number);
    const auto last = static_cast<uint16_t>(draft.immediates.size() - 1);
    const bool is_held = dtype == DType::bf16 && program_.specials[number] != Special::none;
    return push(draft, {NodeKind::immediate, Op{}, dtype, last, is_held}, kOne);
  }

  // Of a draw, side by side. Where they begin.
  static uint16_t draw_immediates(Draft& draft, const uint16_t* numbers) {
    draft.immediates.insert(draft.immediates.end(), numbers, numbers + kDrawImmediates);
    return static_cast<uint16_t>(draft.immediates.size() - kDrawImmediates);
  }
  uint16_t draw(Draft& draft, const Instruction& instruction) {
    std::array<uint16_t, kDrawImmediates> numbers;
    for (size_t k = 0; k < numbers.size(); ++k) {
      numbers[k] = static_cast<uint16_t>(instruction.in[k] & ~kImmediate);
    }
    return emit(draft,
                {NodeKind::random, Op{}, instruction.dtype, draw_immediates(draft, numbers.data()),
                 static_cast<uint16_t>(draw_of(instruction.code))});
  }

  // ---- values of earlier groups that are computed again ----

  // The values that a load of an access reads now.
  std::vector<ValueId> read_now(uint16_t access) const {
    const ValueId id = flying(access);
    return id != kNoValue ? std::vector<ValueId>{id} : stored(access);
  }
  static const Draft::Load& load_of(const Draft& draft, uint16_t node) {
    return *std::ranges::find(draft.loads, node, &Draft::Load::node);
  }

  // Whether a later group does better to compute a value of elements than to read it, for which it
  // would have to be stored: it is little arithmetic on one operand of elements that still is what
  // it was, and which is no larger. Nothing of it may be part of `out`, which the group will write.
  bool is_better_computed(const Value& value, const Draft& later, uint16_t out) const {
    const Draft& draft = result_.groups[value.group];
    const AccessKey& access = program_.accesses[value.access];
    if (value.spread != kEach || program_.slots[access.slot].live || draft.shape != 0 ||
        later.shape != 0 || draft.space != later.space ||
        draft.compute_type != later.compute_type || !may_share(draft.structure, later.structure) ||
        later.nodes.size() + 24 > kMostNodes) {
      return false;
    }
    int operations = 2, elements = 1;
    return is_cheap(draft, value.node, dtype_size(access.dtype), out, operations, elements) &&
           elements == 0;
  }
  // Takes off what a value needs of so many operations and operands of elements.
  bool is_cheap(const Draft& draft, uint16_t number, size_t size, uint16_t out, int& operations,
                int& elements) const {
    const Node& node = draft.nodes[number];
    if (node.kind == NodeKind::immediate) return true;
    if (node.kind == NodeKind::load) {
      const Draft::Load& load = load_of(draft, number);
      const AccessKey& access = program_.accesses[load.place.access];
      if (load.place.access == out ||
          std::ranges::find(overlaps_[out], load.place.access) != overlaps_[out].end()) {
        return false;
      }
      if (load.place.spread == kEach && (--elements < 0 || dtype_size(access.dtype) > size)) {
        return false;
      }
      return load.sources == read_now(load.place.access);
    }
    if (node.kind != NodeKind::compute || op_info(node.op).cost != Cost::arithmetic ||
        --operations < 0) {
      return false;
    }
    const uint16_t values[] = {node.a, node.b, node.c};
    for (int k = 0; k < arity_of(node); ++k) {
      if (!is_cheap(draft, values[k], size, out, operations, elements)) return false;
    }
    return true;
  }
  uint16_t computed_again(size_t group, const Draft& from, uint16_t number) {
    Draft& draft = result_.groups[group];
    Node node = from.nodes[number];
    if (node.kind == NodeKind::immediate) {
      return immediate(draft, from.immediates[node.a], node.dtype);
    }
    if (node.kind == NodeKind::load) {
      const Draft::Load& its = load_of(from, number);
      for (const ValueId id : its.sources) {
        const size_t before = result_.values[id].group;
        if (before == group) continue;
        draft.after.push_back(before);
        result_.groups[before].followers.push_back(group);
      }
      return load(group, its.place, node.dtype, its.sources);
    }
    if (draft.structure == 0) draft.structure = from.structure;
    const int arity = arity_of(node);
    if (arity > 0) node.a = computed_again(group, from, node.a);
    if (arity > 1) node.b = computed_again(group, from, node.b);
    if (arity > 2) node.c = computed_again(group, from, node.c);
    return emit(draft, node);
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

  // The same with the numbers that it would read from memory, where nothing else may be: tensors
  // that were filled, to be read as one element for all, or for nobody beside the program. Another
  // one is read in the group that fills it.
  Instruction with_numbers(Instruction instruction) const {
    if (is_fold(instruction.code) || is_scan(instruction.code)) return instruction;
    for (int i = 0; i < instruction.arity; ++i) {
      const auto k = static_cast<size_t>(i);
      const ValueId id = flying(instruction.in[k]);
      if (id == kNoValue || result_.values[id].group < turn_begin_) continue;
      const Value& value = result_.values[id];
      const Draft& draft = result_.groups[value.group];
      const Node& node = draft.nodes[value.node];
      const bool stays = program_.slots[program_.accesses[value.access].slot].live;
      if (node.kind == NodeKind::immediate && value.dtype == source_dtype(instruction, i) &&
          draft.compute_type == compute_type_of(instruction.dtype) &&
          (instruction.spread(k) != kEach || !stays)) {
        instruction.in[k] = static_cast<Source>(kImmediate | draft.immediates[node.a]);
      }
    }
    return instruction;
  }

  uint16_t fold(Draft& draft, Op op, DType dtype, uint16_t value, Spread result) {
    if (result == kRows && draft.nodes[value].dtype == dtype) {
      const Expression expression{draft.nodes, draft.immediates, program_, draft.compute_type};
      if (const auto pick = picked(expression, draft.spreads, op, value)) return emit(draft, *pick);
    }
    return emit(draft, {NodeKind::fold, op, dtype, value, uint16_t{result}});
  }

  // Makes a group come after others.
  void order(size_t group, std::span<const size_t> before) {
    for (const size_t other : before) {
      if (other == group) continue;
      result_.groups[group].after.push_back(other);
      result_.groups[other].followers.push_back(group);
    }
  }

  // A call reads what memory holds and writes memory, so it is after the groups that store the one
  // and after those that touch the other; nothing joins it.
  void add_call(const Instruction& instruction) {
    const CallKey& call = program_.call_of(instruction);
    const size_t group = result_.groups.size();
    result_.groups.emplace_back(compute_type_of(instruction.dtype), instruction.space);
    result_.groups.back().turn = turn_;
    result_.groups.back().call = instruction.in[0];
    std::vector<size_t> before;
    for (const uint16_t access : program_.reads_of(call)) {
      std::vector<ValueId> sources = stored(access);
      for (const ValueId id : sources) before.push_back(result_.values[id].group);
      result_.groups.back().loads.push_back({0, {access, kEach}, std::move(sources)});
    }
    for (const uint16_t access : program_.writes_of(call)) {
      const auto touched = [&](uint16_t other) {
        for (const size_t loader : states_[other].loaded_in) before.push_back(root(loader));
        if (const ValueId id = states_[other].latest; id != kNoValue) {
          before.push_back(result_.values[id].group);
        }
      };
      touched(access);
      for (const uint16_t other : overlaps_[access]) touched(other);
    }
    std::ranges::sort(before);
    before.erase(std::unique(before.begin(), before.end()), before.end());
    order(group, before);
    for (const uint16_t access : program_.reads_of(call)) {
      states_[access].loaded_in.push_back(group);
    }
    for (const uint16_t access : program_.writes_of(call)) {
      note_written({group, 0, program_.accesses[access].dtype, access, kEach, true});
      states_[access].in_flight = false;
    }
  }

  void add(const Instruction& recorded) {
    if (recorded.turn != turn_) {
      turn_ = recorded.turn;
      turn_begin_ = result_.groups.size();
    }
    if (recorded.code == kCall) {
      add_call(recorded);
      return;
    }
    const Instruction instruction = with_numbers(recorded);
    const uint16_t shape = shape_of(instruction);
    std::optional<size_t> chosen = choose(instruction, shape);
    if (!chosen) {
      chosen = result_.groups.size();
      result_.groups.emplace_back(compute_type_of(instruction.dtype), instruction.space);
      result_.groups.back().turn = turn_;
    }
    const size_t group = *chosen;
    const Level level = *level_in(result_.groups[group], instruction, shape);
    const Constraints bounds = constraints(instruction, group, level);
    for (const auto* list : {&bounds.strict, &bounds.weak, &bounds.values}) {
      order(group, *list);
    }
    if (result_.groups[group].shape == 0) result_.groups[group].shape = shape;
    if (result_.groups[group].structure == 0) {
      result_.groups[group].structure = instruction.structure;
    }

    std::array<uint16_t, 3> in{};
    const bool draws = is_draw(instruction.code);
    for (int i = 0; !draws && i < instruction.arity; ++i) {
      const auto k = static_cast<size_t>(i);
      in[k] = source_node(group, instruction, k, level, source_dtype(instruction, i));
    }
    Draft& draft = result_.groups[group];
    DType dtype = instruction.dtype;
    uint16_t node = in[0];
    if (draws) {
      node = draw(draft, instruction);
    } else if (is_fold(instruction.code)) {
      node = fold(draft, op_of(instruction.code), dtype, in[0], instruction.out_spread());
    } else if (is_scan(instruction.code)) {
      node = emit(draft, {NodeKind::scan, op_of(instruction.code), dtype, in[0],
                          uint16_t{scan_axis(instruction.code)}});
    } else if (instruction.code != kCopy) {
      const Op op = op_of(instruction.code);
      dtype = result_dtype(op, instruction.dtype);
      node = compute(draft, op, dtype, in);
    }
    write(group, {instruction.out, spread_at(level, instruction.out_spread())}, node, dtype);
    result_.values.back().wanted = instruction.kept != 0;
  }

  void write(size_t group, Draft::Place place, uint16_t node, DType dtype) {
    const auto [access, spread] = place;
    const DType memory = program_.accesses[access].dtype;
    Draft& draft = result_.groups[group];
    const bool same_type = memory == DType::b8 || compute_type_of(memory) == draft.compute_type;
    if (memory != dtype && same_type && !is_only_stored(draft.nodes[node])) {
      node = converted(draft, node, dtype, memory);
      dtype = memory;
    }
    note_written({group, node, dtype, access, spread});
    states_[access].in_flight = same_type;  // else what is read back has been converted on its way
    states_[access].touched_in = group;
  }

  void note_written(const Value& value) {
    const auto id = static_cast<ValueId>(result_.values.size());
    result_.values.push_back(value);
    result_.groups[value.group].values.push_back(id);
    for (const uint16_t other : overlaps_[value.access]) states_[other].in_flight = false;
    AccessState& state = states_[value.access];
    state.latest = id;
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
    const bool condition = op_info(op_of(instruction.code)).has(kCondition);
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
