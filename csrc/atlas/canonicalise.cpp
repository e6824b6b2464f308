#include "atlas/canonicalise.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "atlas/checker.h"
#include "atlas/overlap.h"

namespace hologram {
namespace {

struct Value {
  size_t group;
  uint16_t node;
  DType dtype;
  uint16_t access;      // where its instruction writes it
  bool wanted = false;  // somebody reads it from memory
};

using ValueId = uint32_t;
constexpr ValueId kNoValue = ~ValueId{0};

// A group while it is put together. Stores are added at the end.
struct Draft {
  Draft(ComputeClass compute, uint16_t space_number)
      : compute_class(compute), space(space_number) {}
  ComputeClass compute_class;
  uint16_t space;
  uint16_t shape = 0;
  uint16_t turn = 0;
  std::vector<Node> nodes;
  std::vector<uint16_t> accesses;    // operands that are loaded, then those stored to
  std::vector<uint16_t> immediates;  // numbers of the program's
  struct Load {
    uint16_t node;
    uint16_t access;
    std::vector<ValueId> sources;  // values that must have been stored before
  };
  std::vector<Load> loads;
  std::vector<ValueId> values;
  std::vector<size_t> after;            // groups that have to be executed before
  std::vector<size_t> followers{};      // groups that have to be executed after
  std::optional<size_t> merged_into{};  // a later one
};

// What is known of an access while the program is walked.
struct AccessState {
  ValueId latest = kNoValue;         // written last
  bool in_flight = false;            // `latest` is exactly what the bytes hold
  std::vector<size_t> loaded_in;     // groups that loaded it from memory since it was written last
  std::optional<size_t> touched_in;  // the last group that has it as an operand
};

uint16_t operand_of(std::vector<uint16_t>& accesses, uint16_t access) {
  const auto found = std::find(accesses.begin(), accesses.end(), access);
  if (found != accesses.end()) return static_cast<uint16_t>(found - accesses.begin());
  accesses.push_back(access);
  return static_cast<uint16_t>(accesses.size() - 1);
}

class Canonicaliser {
 public:
  explicit Canonicaliser(const Program& program)
      : program_(program), states_(program.accesses.size()), overlaps_(program.accesses.size()) {
    for (const auto& [a, b] : program.overlaps) {
      overlaps_[a].push_back(b);
      overlaps_[b].push_back(a);
    }
  }

  Plan run() {
    for (const Instruction& instruction : program_.code) add(instruction);
    keep_what_lives();
    return finish();
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
    return draft.space == instruction.space && draft.compute_class == class_of(instruction.dtype) &&
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
    Draft& source = drafts_[from];
    Draft& target = drafts_[into];
    if (source.space != target.space || source.compute_class != target.compute_class ||
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
      values_[id].group = into;
      values_[id].node = static_cast<uint16_t>(values_[id].node + base);
      target.values.push_back(id);
    }
    target.after.insert(target.after.end(), source.after.begin(), source.after.end());
    target.followers.insert(target.followers.end(), source.followers.begin(),
                            source.followers.end());
    if (target.shape == 0) target.shape = source.shape;
    source = Draft(source.compute_class, source.space);
    source.merged_into = into;
    return true;
  }

  // The group that a group has become part of.
  size_t root(size_t group) const {
    while (drafts_[group].merged_into) group = *drafts_[group].merged_into;
    return group;
  }

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
        if (values_[id].group != joins) result.values.push_back(values_[id].group);
        continue;
      }
      for (const ValueId id : stored(source)) result.strict.push_back(values_[id].group);
    }
    const auto& out = states_[instruction.out];
    for (const size_t group : out.loaded_in) result.weak.push_back(root(group));
    if (out.latest != kNoValue) result.weak.push_back(values_[out.latest].group);
    for (const uint16_t other : overlaps_[instruction.out]) {
      for (const size_t group : states_[other].loaded_in) result.strict.push_back(root(group));
      if (states_[other].latest != kNoValue) {
        result.strict.push_back(values_[states_[other].latest].group);
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
      if (group >= turn_begin_ && fits(drafts_[group], instruction, shape)) {
        candidates.push_back(group);
      }
    };
    for (int i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if ((source & kImmediate) != 0) continue;
      if (const ValueId id = flying(source); id != kNoValue) consider(values_[id].group);
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
      if (id != kNoValue && values_[id].group == group) return true;
    }
    return false;
  }

  uint16_t emit(Draft& draft, Node node) {
    if (node.kind == NodeKind::compute && op_info(node.op).has(kCommutative) && node.b < node.a) {
      std::swap(node.a, node.b);
    }
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
    Draft& draft = drafts_[group];
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
    Draft& draft = drafts_[group];
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
    if (id != kNoValue && values_[id].group == group) {
      return converted(draft, values_[id].node, values_[id].dtype, dtype);
    }
    return load(group, source, dtype, id != kNoValue ? std::vector<ValueId>{id} : stored(source));
  }

  // A value of dtype `from` as one of dtype `to` of the same class.
  uint16_t converted(Draft& draft, uint16_t node, DType from, DType to) {
    const bool exact = from == to || from == DType::b8 ||
                       (to == DType::f32 && (from == DType::bf16 || from == DType::f16)) ||
                       (to == DType::i64 && class_of(from) == ComputeClass::i64);
    return exact ? node : emit(draft, {NodeKind::cast, Op{}, to, node});
  }

  Special special_of(const Draft& draft, uint16_t node) const {
    if (draft.nodes[node].kind != NodeKind::immediate) return Special::none;
    return program_.specials[draft.immediates[draft.nodes[node].a]];
  }

  // Whether f(x, node) = x.
  bool is_identity(const Draft& draft, const OpInfo& info, uint16_t node) const {
    if (!info.has_identity()) return false;
    // Where denormals are taken for zeros x * 1 makes a zero of one.
    if (program_.float_mode != 0 && draft.compute_class != ComputeClass::i64) return false;
    const Special special = special_of(draft, node);
    if (info.identity == 1) return special == Special::one;
    if (info.identity != 0) return false;
    if (draft.compute_class == ComputeClass::i64) return special == Special::zero;
    return special == (std::signbit(info.identity) ? Special::negative_zero : Special::zero);
  }

  uint16_t compute(Draft& draft, Op op, DType dtype, const std::array<uint16_t, 3>& in, int arity) {
    const OpInfo& info = op_info(op);
    if (arity == 2) {
      if (is_identity(draft, info, in[1])) return in[0];
      if (info.has(kCommutative) && is_identity(draft, info, in[0])) return in[1];
    } else if (arity == 1) {
      const Node& source = draft.nodes[in[0]];
      if (source.kind == NodeKind::compute && source.op == op && source.dtype == dtype) {
        if (info.has(kIdempotent)) return in[0];
        if (info.has(kInvolution)) return source.a;
      }
    }
    Node node{NodeKind::compute, op, dtype, in[0]};
    if (arity > 1) node.b = in[1];
    if (arity > 2) node.c = in[2];
    return emit(draft, node);
  }

  void add(const Instruction& instruction) {
    const uint16_t shape = shape_of(instruction);
    if (instruction.turn != turn_) {
      turn_ = instruction.turn;
      turn_begin_ = drafts_.size();
    }
    std::optional<size_t> chosen = choose(instruction, shape);
    if (!chosen) {
      chosen = drafts_.size();
      drafts_.emplace_back(class_of(instruction.dtype), instruction.space);
      drafts_.back().turn = turn_;
    }
    const size_t group = *chosen;
    const Constraints bounds = constraints(instruction, group);
    for (const auto* list : {&bounds.strict, &bounds.weak, &bounds.values}) {
      for (const size_t before : *list) {
        if (before == group) continue;
        drafts_[group].after.push_back(before);
        drafts_[before].followers.push_back(group);
      }
    }
    if (drafts_[group].shape == 0) drafts_[group].shape = shape;

    std::array<uint16_t, 3> in{};
    for (int i = 0; i < instruction.arity; ++i) {
      const auto k = static_cast<size_t>(i);
      in[k] = source_node(group, instruction.in[k], source_dtype(instruction, i));
    }
    Draft& draft = drafts_[group];
    DType dtype = instruction.dtype;
    uint16_t node = in[0];
    if (instruction.code != kCopy) {
      const Op op = static_cast<Op>(instruction.code);
      dtype = result_dtype(op, instruction.dtype);
      node = compute(draft, op, dtype, in, instruction.arity);
    }
    write(group, instruction.out, node, dtype);
    values_.back().wanted = instruction.kept != 0;
  }

  void write(size_t group, uint16_t access, uint16_t node, DType dtype) {
    const DType memory = program_.accesses[access].dtype;
    Draft& draft = drafts_[group];
    const bool same_class = memory == DType::b8 || class_of(memory) == draft.compute_class;
    if (memory != dtype && same_class) {
      node = converted(draft, node, dtype, memory);
      dtype = memory;
    }
    const auto id = static_cast<ValueId>(values_.size());
    values_.push_back({group, node, dtype, access});
    draft.values.push_back(id);
    for (const uint16_t other : overlaps_[access]) states_[other].in_flight = false;
    AccessState& state = states_[access];
    state.latest = id;
    state.in_flight = same_class;  // else what is read back has been converted on its way
    state.touched_in = group;
    // Whoever comes after this store comes after those loads too.
    state.loaded_in.clear();
  }

  void keep_what_lives() {
    for (size_t access = 0; access < states_.size(); ++access) {
      const ValueId id = states_[access].latest;
      if (id != kNoValue && program_.slots[program_.accesses[access].slot].live) {
        values_[id].wanted = true;
      }
    }
  }

  Plan finish() {
    Plan plan;
    std::vector<size_t> levels(drafts_.size(), 0);
    std::vector<Batch> groups(drafts_.size());
    for (size_t i = drafts_.size(); i-- > 0;) {
      groups[i] = build(drafts_[i]);
    }
    size_t most = 0;
    for (size_t i = 0; i < drafts_.size(); ++i) {
      for (const size_t before : drafts_[i].after) {
        levels[i] = std::max(levels[i], levels[root(before)] + 1);
      }
      most = std::max(most, levels[i]);
    }
    batch(groups, levels, most, plan);
    for (const Value& value : values_) plan.stores_elided += !value.wanted;
    find_scratch(plan);
    return plan;
  }

  // What of a draft has to be computed, as a group. Later groups have been built: they have said
  // what they read.
  Batch build(const Draft& draft) {
    Batch batch;
    std::vector<bool> live(draft.nodes.size(), false);
    std::vector<ValueId> stores;
    for (const ValueId id : draft.values) {
      if (!values_[id].wanted) continue;
      stores.push_back(id);
      live[values_[id].node] = true;
    }
    for (size_t i = draft.nodes.size(); i-- > 0;) {
      const Node& node = draft.nodes[i];
      if (!live[i] || node.kind == NodeKind::load || node.kind == NodeKind::immediate) continue;
      const int arity = node.kind == NodeKind::cast ? 1 : op_info(node.op).arity;
      live[node.a] = true;
      if (arity > 1) live[node.b] = true;
      if (arity > 2) live[node.c] = true;
    }
    for (const auto& load : draft.loads) {
      if (!live[load.node]) continue;
      for (const ValueId id : load.sources) values_[id].wanted = true;
    }
    if (stores.empty()) return batch;

    Batch::Member member;
    member.space = draft.space;
    member.shape = 0;
    Group& group = batch.group;
    group.compute_class = draft.compute_class;
    std::vector<uint16_t> renamed(draft.nodes.size());
    const auto operand = [&](uint16_t access) {
      const uint16_t index = operand_of(member.accesses, access);
      if (index == group.operands.size()) {
        const AccessKey& key = program_.accesses[access];
        group.operands.push_back({key.dtype, key.layout, area(member, key.slot)});
        if (key.layout == Layout::strided) member.shape = key.shape;
      }
      return index;
    };
    for (size_t i = 0; i < draft.nodes.size(); ++i) {
      if (!live[i]) continue;
      Node node = draft.nodes[i];
      if (node.kind == NodeKind::load) {
        node.a = operand(draft.accesses[node.a]);
      } else if (node.kind == NodeKind::immediate) {
        member.immediates.push_back(draft.immediates[node.a]);
        node.a = static_cast<uint16_t>(member.immediates.size() - 1);
      } else {
        const int arity = node.kind == NodeKind::cast ? 1 : op_info(node.op).arity;
        node.a = renamed[node.a];
        node.b = arity > 1 ? renamed[node.b] : uint16_t{0};
        node.c = arity > 2 ? renamed[node.c] : uint16_t{0};
      }
      renamed[i] = static_cast<uint16_t>(group.nodes.size());
      group.nodes.push_back(node);
    }
    for (const ValueId id : stores) {
      const Value& value = values_[id];
      const uint16_t place = operand(value.access);
      group.nodes.push_back({NodeKind::store, Op{}, program_.accesses[value.access].dtype,
                             renamed[value.node], place});
    }
    if (program_.contracts) contract(group);
    group.immediates = static_cast<int>(member.immediates.size());
    batch.members.push_back(std::move(member));
    return batch;
  }

  // Makes one node of a product and the sum or difference that alone needs it.
  static void contract(Group& group) {
    const DType own = group.compute_class == ComputeClass::f64 ? DType::f64 : DType::f32;
    const std::vector<Node> nodes = std::move(group.nodes);
    const auto is = [&](const Node& node, Op op) {
      return node.kind == NodeKind::compute && node.op == op && node.dtype == own;
    };
    const auto arity = [](const Node& node) {
      return node.kind == NodeKind::compute                                ? op_info(node.op).arity
             : node.kind == NodeKind::cast || node.kind == NodeKind::store ? 1
                                                                           : 0;
    };
    std::vector<int> uses(nodes.size(), 0);
    for (const Node& node : nodes) {
      const int n = arity(node);
      if (n > 0) ++uses[node.a];
      if (n > 1) ++uses[node.b];
      if (n > 2) ++uses[node.c];
    }
    // The product that each node takes in, itself if none.
    std::vector<size_t> product(nodes.size());
    std::vector<bool> gone(nodes.size(), false);
    for (size_t i = 0; i < nodes.size(); ++i) {
      product[i] = i;
      if (!is(nodes[i], Op::add) && !is(nodes[i], Op::sub)) continue;
      for (const uint16_t v : {nodes[i].a, nodes[i].b}) {
        if (product[i] != i || uses[v] != 1 || !is(nodes[v], Op::mul)) continue;
        product[i] = v;
        gone[v] = true;
      }
    }
    group.nodes.clear();
    std::vector<uint16_t> renamed(nodes.size());
    const auto push = [&](const Node& node) {
      group.nodes.push_back(node);
      return static_cast<uint16_t>(group.nodes.size() - 1);
    };
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (gone[i]) continue;
      Node node = nodes[i];
      const int n = arity(node);
      if (product[i] != i) {
        const Node& taken = nodes[product[i]];
        const bool first = node.a == product[i];
        uint16_t x = renamed[taken.a], z = renamed[first ? node.b : node.a];
        if (node.op == Op::sub) {
          uint16_t& negated = first ? z : x;
          negated = push({NodeKind::compute, Op::neg, own, negated});
        }
        renamed[i] = push({NodeKind::compute, Op::fma, own, x, renamed[taken.b], z});
        continue;
      }
      if (n > 0) node.a = renamed[node.a];
      if (n > 1) node.b = renamed[node.b];
      if (n > 2) node.c = renamed[node.c];
      renamed[i] = push(node);
    }
  }

  // Blocks share no memory. They are numbered by their first operand, so that equal groups over
  // different blocks are equal.
  uint16_t area(const Batch::Member& member, uint16_t slot) const {
    for (size_t i = 0; i < member.accesses.size(); ++i) {
      if (program_.accesses[member.accesses[i]].slot == slot) return static_cast<uint16_t>(i);
    }
    return 0;
  }

  static std::string signature(const Group& group) {
    std::string text(1, static_cast<char>(group.compute_class));
    const auto append = [&](const auto& items) {
      for (const auto& item : items) {
        text.append(reinterpret_cast<const char*>(&item), sizeof item);
      }
    };
    for (const Operand& operand : group.operands) {
      const uint16_t fields[] = {static_cast<uint16_t>(operand.dtype),
                                 static_cast<uint16_t>(operand.layout), operand.area};
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

  void batch(std::vector<Batch>& groups, const std::vector<size_t>& levels, size_t most,
             Plan& plan) const {
    std::vector<std::vector<size_t>> by_level(most + 1);
    for (size_t i = 0; i < groups.size(); ++i) {
      if (!groups[i].members.empty()) by_level[levels[i]].push_back(i);
    }
    for (const auto& level : by_level) {
      std::map<std::pair<uint16_t, std::string>, size_t> known;
      for (const size_t i : level) {
        const auto [found, fresh] =
            known.try_emplace({drafts_[i].turn, signature(groups[i].group)}, plan.batches.size());
        if (fresh) {
          plan.batches.push_back(std::move(groups[i]));
        } else {
          plan.batches[found->second].members.push_back(std::move(groups[i].members.front()));
        }
      }
    }
  }

  void find_scratch(Plan& plan) const {
    std::vector<bool> used(program_.slots.size(), false), own(used);
    std::vector<size_t> turns(used.size(), 0);  // 1 + the one that stores to it
    for (const Batch& batch : plan.batches) {
      for (const auto& member : batch.members) {
        for (const uint16_t access : member.accesses) used[program_.accesses[access].slot] = true;
        for (const Node& node : batch.group.nodes) {
          if (node.kind != NodeKind::load) continue;
          own[program_.accesses[member.accesses[node.a]].slot] = true;
        }
      }
    }
    for (const Value& value : values_) {
      if (!value.wanted) continue;
      const uint16_t slot = program_.accesses[value.access].slot;
      const size_t turn = drafts_[value.group].turn + size_t{1};
      if (turns[slot] != 0 && turns[slot] != turn) own[slot] = true;
      turns[slot] = turn;
    }
    for (size_t i = 0; i < used.size(); ++i) {
      const SlotKey& slot = program_.slots[i];
      if (!used[i] || !slot.inside || slot.live) continue;
      if (!own[i] && plan.discarded.size() < turns[i]) plan.discarded.resize(turns[i]);
      auto& memory = own[i] ? plan.scratch : plan.discarded[turns[i] - 1];
      memory.push_back(static_cast<uint16_t>(i));
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
  std::vector<Value> values_;
  std::vector<Draft> drafts_;
  uint16_t turn_ = 0;
  size_t turn_begin_ = 0;  // its first group
};

}  // namespace

ComputeClass class_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return ComputeClass::f64;
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u8: return ComputeClass::i64;
    default: return ComputeClass::f32;
  }
}

Plan canonicalise(const Program& program) {
#ifdef NDEBUG
  return Canonicaliser(program).run();
#else
  validate(program);
  Plan plan = Canonicaliser(program).run();
  validate(plan, program);
  return plan;
#endif
}

std::vector<uint8_t> traversals(const Group& group) {
  std::vector<bool> loaded(group.operands.size()), stored(group.operands.size());
  for (const Node& node : group.nodes) {
    if (node.kind == NodeKind::load) loaded[node.a] = true;
    if (node.kind == NodeKind::store) stored[node.b] = true;
  }
  std::vector<uint8_t> result(group.operands.size());
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<uint8_t>(loaded[i] + stored[i]);
  }
  return result;
}

namespace {

// "%3 = mul.f32 %0, 2", one line for each node that is not a constant.
std::vector<std::string> code_lines(const Group& group, const Batch::Member& member,
                                    const Program& program) {
  std::vector<std::string> lines, names(group.nodes.size());
  int values = 0;
  for (size_t i = 0; i < group.nodes.size(); ++i) {
    const Node& node = group.nodes[i];
    const auto access = [&](uint16_t operand) {
      return describe_access(program, member.accesses[operand], member.space);
    };
    if (node.kind == NodeKind::immediate) {
      names[i] = describe_immediate(program.immediates[member.immediates[node.a]], node.dtype);
      continue;
    }
    if (node.kind == NodeKind::store) {
      lines.push_back("store " + access(node.b) + ", " + names[node.a]);
      continue;
    }
    names[i] = "%" + std::to_string(values++);
    const auto typed = [&](const char* name) {
      return std::string(name) + "." + dtype_name(node.dtype);
    };
    std::string text;
    if (node.kind == NodeKind::load) {
      text = typed("load") + " " + access(node.a);
    } else if (node.kind == NodeKind::cast) {
      text = typed("cast") + " " + names[node.a];
    } else {
      const OpInfo& info = op_info(node.op);
      text = typed(info.name) + " " + names[node.a];
      if (info.arity > 1) text += ", " + names[node.b];
      if (info.arity > 2) text += ", " + names[node.c];
    }
    lines.push_back(names[i] + " = " + text);
  }
  return lines;
}

}  // namespace

std::vector<PassText> describe(const Plan& plan, const Program& program) {
  std::vector<PassText> passes;
  for (const Batch& batch : plan.batches) {
    constexpr const char* kClasses[] = {"f32", "f64", "i64"};
    const std::string name = kClasses[static_cast<size_t>(batch.group.compute_class)];
    PassText pass;
    pass.tensors = batch.members.size();
    int64_t smallest = std::numeric_limits<int64_t>::max(), largest = 0;
    for (const auto& member : batch.members) {
      const int64_t count = program.counts[member.space];
      smallest = std::min(smallest, count);
      largest = std::max(largest, count);
      std::vector<bool> loaded(batch.group.operands.size()), stored(loaded);
      for (const Node& node : batch.group.nodes) {
        if (node.kind == NodeKind::load) loaded[node.a] = true;
        if (node.kind == NodeKind::store) stored[node.b] = true;
      }
      for (size_t i = 0; i < loaded.size(); ++i) {
        const size_t bytes = footprint(program, member.accesses[i]);
        if (loaded[i]) pass.loaded += bytes;
        if (stored[i]) pass.stored += bytes;
      }
    }
    pass.space = name + "[" + std::to_string(smallest) + "]";
    if (smallest != largest) pass.space += " to " + name + "[" + std::to_string(largest) + "]";
    pass.lines = code_lines(batch.group, batch.members.front(), program);
    passes.push_back(std::move(pass));
  }
  return passes;
}

std::string to_string(const Plan& plan, const Program& program) {
  std::string text;
  size_t number = 0;
  for (const PassText& pass : describe(plan, program)) {
    text += "pass " + std::to_string(++number) + ": ";
    if (pass.tensors > 1) text += std::to_string(pass.tensors) + " tensors of ";
    text += pass.space + ", " + std::to_string(pass.loaded) + " B loaded, " +
            std::to_string(pass.stored) + " B stored\n";
    for (const std::string& line : pass.lines) text += "  " + line + "\n";
  }
  return text;
}

}  // namespace hologram
