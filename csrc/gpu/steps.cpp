#include "gpu/steps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "atlas/error.h"

namespace hologram::gpu {

std::vector<Spread> spreads_of(const std::vector<Node>& nodes, const std::vector<Operand>& operands,
                               bool structured) {
  std::vector<Spread> spreads(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    Spread spread = kOne;
    for (int k = 0; k < arity_of(node); ++k) spread |= spreads[argument_of(node, k)];
    switch (node.kind) {
      case NodeKind::load: {
        const Operand& operand = operands[node.a];
        const Spread dense = structured ? operand.spread : kEach;
        spread = operand.layout == Layout::scalar ? kOne : dense;
        break;
      }
      case NodeKind::position: spread = static_cast<Spread>(node.b); break;
      case NodeKind::random:
      case NodeKind::scan: spread = kEach; break;
      case NodeKind::pick: spread = kRows; break;
      case NodeKind::fold: spread = static_cast<Spread>(node.b); break;
      default: break;
    }
    spreads[i] = spread;
  }
  return spreads;
}

std::vector<int> turns_of(const std::vector<Node>& nodes) {
  std::vector<int> turns(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (int k = 0; k < arity_of(nodes[i]); ++k) {
      turns[i] = std::max(turns[i], turns[argument_of(nodes[i], k)]);
    }
    turns[i] += is_row_fold(nodes[i]);
  }
  return turns;
}

namespace {

using Nodes = std::vector<Node>;
using Set = std::set<uint16_t>;

class Splitting {
 public:
  Splitting(const Group& group, bool long_rows, size_t most_buffers)
      : long_rows_(long_rows), most_buffers_(most_buffers) {
    steps_.compute_type = group.compute_type;
    steps_.structured = is_structured(group);
    steps_.immediates = group.immediates;
    steps_.operands = group.operands;
    steps_.given = group.operands.size();
  }

  Steps run(const Nodes& nodes) {
    lower(nodes);
    defer_stores();
    return std::move(steps_);
  }

 private:
  // What is known of the values of some nodes.
  struct Facts {
    std::vector<Spread> spreads;
    std::vector<int> turns;
    std::vector<bool> picks;  // another element of the row is needed
    std::vector<Set> loads;   // the operands from which a value comes
  };
  Facts facts_of(const Nodes& nodes) const {
    Facts facts{spreads_of(nodes, steps_.operands, steps_.structured), turns_of(nodes), {}, {}};
    facts.picks.resize(nodes.size());
    facts.loads.resize(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      facts.picks[i] = node.kind == NodeKind::pick;
      if (node.kind == NodeKind::load) facts.loads[i].insert(node.a);
      for (int k = 0; k < arity_of(node); ++k) {
        const uint16_t from = argument_of(node, k);
        if (facts.picks[from]) facts.picks[i] = true;
        facts.loads[i].insert(facts.loads[from].begin(), facts.loads[from].end());
      }
    }
    return facts;
  }

  // The nodes of some sinks (stores), with all that they need.
  static Nodes only(const Nodes& nodes, const std::vector<size_t>& sinks) {
    std::vector<bool> needed(nodes.size());
    for (const size_t sink : sinks) needed[sink] = true;
    for (size_t i = nodes.size(); i-- > 0;) {
      if (!needed[i]) continue;
      for (int k = 0; k < arity_of(nodes[i]); ++k) needed[argument_of(nodes[i], k)] = true;
    }
    std::vector<uint16_t> numbers(nodes.size());
    Nodes result;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!needed[i]) continue;
      numbers[i] = static_cast<uint16_t>(result.size());
      Node node = nodes[i];
      const int arity = arity_of(node);
      if (arity > 0) node.a = numbers[node.a];
      if (arity > 1) node.b = numbers[node.b];
      if (arity > 2) node.c = numbers[node.c];
      // Equal texts for equal meanings: what an operation does not have is 0.
      if (node.kind == NodeKind::compute && arity < 2) node.b = 0;
      if (node.kind == NodeKind::compute && arity < 3) node.c = 0;
      result.push_back(node);
    }
    return result;
  }

  uint16_t scratch(Spread spread) {
    const auto number = static_cast<uint16_t>(steps_.operands.size());
    steps_.operands.push_back({own(), Layout::dense, 0, steps_.structured ? spread : kEach});
    return number;
  }
  DType own() const { return own_dtype(steps_.compute_type); }

  void lower(const Nodes& nodes) {
    const Facts facts = facts_of(nodes);
    if (const auto values = to_be_kept(nodes, facts); !values.empty()) {
      keep(nodes, facts, values);
    } else {
      place(nodes, facts);
    }
  }

  // Values that the skeletons cannot compute where they are read.
  std::vector<uint16_t> to_be_kept(const Nodes& nodes, const Facts& facts) const {
    Set kept;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (facts.loads[i].size() <= most_loads()) continue;
      // The largest part of it.
      uint16_t most = nodes[i].a;
      for (int k = 1; k < arity_of(nodes[i]); ++k) {
        const uint16_t other = argument_of(nodes[i], k);
        if (facts.loads[other].size() > facts.loads[most].size()) most = other;
      }
      return {most};
    }
    if (long_rows_) {
      // Those that are read by anything but a store to where they are kept.
      for (const Node& node : nodes) {
        if (node.kind == NodeKind::store && steps_.is_scratch(node.b)) continue;
        for (int k = 0; k < arity_of(node); ++k) {
          const uint16_t value = argument_of(node, k);
          if (is_row_fold(nodes[value]) && facts.turns[value] == 1) kept.insert(value);
        }
      }
      if (!kept.empty()) return {kept.begin(), kept.end()};
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].kind == NodeKind::store && is_only_stored(nodes[nodes[i].a])) {
        find_row_values(nodes, facts, nodes[nodes[i].a].a, kept);
      }
    }
    return {kept.begin(), kept.end()};
  }
  void find_row_values(const Nodes& nodes, const Facts& facts, uint16_t value, Set& kept) const {
    const Node& node = nodes[value];
    if (facts.turns[value] == 0 && !facts.picks[value]) return;
    if (is_row_fold(node) || node.kind == NodeKind::pick) {
      kept.insert(value);
      return;
    }
    for (int k = 0; k < arity_of(node); ++k) {
      find_row_values(nodes, facts, argument_of(node, k), kept);
    }
  }

  // Steps that store values to scratch memory, and then those of the rest, which loads them.
  void keep(const Nodes& nodes, const Facts& facts, const std::vector<uint16_t>& values) {
    Nodes first = nodes, rest = nodes;
    std::vector<size_t> sinks;
    for (const uint16_t value : values) {
      const uint16_t to = scratch(facts.spreads[value]);
      sinks.push_back(first.size());
      first.push_back({NodeKind::store, Op{}, own(), value, to});
      rest[value] = {NodeKind::load, Op{}, own(), to};
    }
    lower(only(first, sinks));
    lower(only(rest, stores_of(rest)));
  }
  static std::vector<size_t> stores_of(const Nodes& nodes) {
    std::vector<size_t> stores;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].kind == NodeKind::store) stores.push_back(i);
    }
    return stores;
  }

  // Skeleton, then the domain or the axis, in the order of execution: the large ones first, which
  // may store in place what nobody else reads.
  struct Class {
    Skeleton skeleton;
    Spread domain = kEach, axis = kColumns;
  };
  Class class_of(const Nodes& nodes, const Facts& facts, size_t store) const {
    const uint16_t value = nodes[store].a;
    const Node& node = nodes[value];
    const Spread spread = steps_.structured ? steps_.operands[nodes[store].b].spread : kEach;
    if (node.kind == NodeKind::scan) return {Skeleton::scan, kEach, static_cast<Spread>(node.b)};
    if (is_only_stored(node)) return {Skeleton::fold_down};
    if (long_rows_ && is_row_fold(node)) return {Skeleton::classes};
    if (facts.turns[value] > 0) return {Skeleton::rows};
    // A row is picked from before any of its elements is stored.
    if (facts.picks[value] && has_columns(spread)) return {Skeleton::rows};
    return {Skeleton::elements, spread};
  }

  void place(const Nodes& nodes, const Facts& facts) {
    std::vector<std::pair<Class, std::vector<size_t>>> classes;
    const auto stores = stores_of(nodes);
    const bool has_rows = std::ranges::any_of(stores, [&](size_t store) {
      return class_of(nodes, facts, store).skeleton == Skeleton::rows;
    });
    for (const size_t store : stores) {
      Class its = class_of(nodes, facts, store);
      // What passes over the same rows goes with it.
      const bool of_rows = its.domain == kEach || its.domain == kRows;
      if (has_rows && its.skeleton == Skeleton::elements && of_rows) its = {Skeleton::rows};
      const auto same = std::ranges::find_if(classes, [&](const auto& other) {
        return other.first.skeleton == its.skeleton && other.first.domain == its.domain &&
               other.first.axis == its.axis;
      });
      if (same != classes.end()) {
        same->second.push_back(store);
      } else {
        classes.push_back({its, {store}});
      }
    }
    const auto rank = [](const Class& its) {
      switch (its.skeleton) {
        case Skeleton::classes: return 0;
        case Skeleton::fold_down: return 1;
        case Skeleton::scan: return 2 + (its.axis == kColumns);
        case Skeleton::rows: return 4;
        case Skeleton::elements: break;
      }
      return 5 + kEach - its.domain;
    };
    std::ranges::stable_sort(
        classes, [&](const auto& a, const auto& b) { return rank(a.first) < rank(b.first); });
    for (const auto& [its, sinks] : classes) add_steps(nodes, facts, its, sinks);
  }

  // As many stores a step as there are buffers for.
  void add_steps(const Nodes& nodes, const Facts& facts, const Class& its,
                 const std::vector<size_t>& sinks) {
    std::vector<size_t> taken;
    Set buffers, values;
    const auto finish = [&] {
      steps_.list.push_back({its.skeleton, its.domain, its.axis, only(nodes, taken)});
      taken.clear(), buffers.clear(), values.clear();
    };
    for (const size_t sink : sinks) {
      Set more = facts.loads[nodes[sink].a];
      more.insert(nodes[sink].b);
      more.insert(buffers.begin(), buffers.end());
      const size_t partials = values.size() + !values.contains(nodes[sink].a);
      const size_t counters = its.skeleton == Skeleton::classes ? 1 : 0;
      const bool has_partials =
          its.skeleton == Skeleton::fold_down || its.skeleton == Skeleton::classes;
      // Partial results are read and written by one kernel too.
      const bool is_full =
          more.size() + (has_partials ? partials + counters : 0) >= most_buffers_ ||
          (has_partials && 2 * partials >= most_buffers_);
      if (!taken.empty() && is_full) {
        finish();
        more = facts.loads[nodes[sink].a];
        more.insert(nodes[sink].b);
      }
      taken.push_back(sink);
      buffers = std::move(more);
      values.insert(nodes[sink].a);
    }
    finish();
  }

  // ---- what is stored too early ----

  // Whether a store may change what a load reads.
  bool may_share(uint16_t store, uint16_t load) const {
    if (store == load) return true;
    if (steps_.is_scratch(store) || steps_.is_scratch(load)) return false;
    const Operand &a = steps_.operands[store], &b = steps_.operands[load];
    return a.area == b.area && dtype_size(a.dtype) == dtype_size(b.dtype);
  }
  bool loads(const Step& step, uint16_t store) const {
    return std::ranges::any_of(step.nodes, [&](const Node& node) {
      return node.kind == NodeKind::load && may_share(store, node.a);
    });
  }

  // Whether threads of one step may read what another one of them has stored: a row has many, of
  // which one stores what there is one of, and each may pick any element. They do not wait for each
  // other but to fold.
  bool races(const Step& step, uint16_t store) const {
    if (step.skeleton != Skeleton::rows || !loads(step, store)) return false;
    if (!has_columns(steps_.operands[store].spread)) return true;
    return std::ranges::any_of(step.nodes,
                               [](const Node& node) { return node.kind == NodeKind::pick; });
  }

  void defer_stores() {
    std::vector<Step> copies;
    for (size_t i = 0; i < steps_.list.size(); ++i) {
      for (Node& node : steps_.list[i].nodes) {
        if (node.kind != NodeKind::store || steps_.is_scratch(node.b)) continue;
        bool is_early = races(steps_.list[i], node.b);
        for (size_t j = i + 1; j < steps_.list.size(); ++j) {
          is_early = is_early || loads(steps_.list[j], node.b);
        }
        if (!is_early) continue;
        const Spread spread = steps_.structured ? steps_.operands[node.b].spread : kEach;
        const uint16_t at = scratch(spread);
        copies.push_back(
            {Skeleton::elements,
             spread,
             kColumns,
             {{NodeKind::load, Op{}, own(), at}, {NodeKind::store, Op{}, node.dtype, 0, node.b}}});
        node.b = at;
        node.dtype = own();
      }
    }
    for (Step& copy : copies) steps_.list.push_back(std::move(copy));
  }

  // Beside the loads there are a store and the parameters, and of a fold over rows its partial
  // results.
  size_t most_loads() const { return most_buffers_ - 3; }

  const bool long_rows_;
  const size_t most_buffers_;
  Steps steps_;
};

}  // namespace

Steps split(const Group& group, bool long_rows, size_t most_buffers) {
  return Splitting(group, long_rows, most_buffers).run(group.nodes);
}

}  // namespace hologram::gpu
