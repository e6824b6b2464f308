#include "cpu/stages.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace hologram::cpu {
namespace {

// About what a node costs for each element, in arithmetic instructions.
int cost_of(const Group& group, const Node& node) {
  if (node.kind == NodeKind::load) return group.operands[node.a].dtype == DType::f16 ? 2 : 0;
  if (node.kind == NodeKind::random) return 10;
  if (node.kind != NodeKind::compute) return 1;
  switch (op_info(node.op).cost) {
    case Cost::short_function: return 10;
    case Cost::function: return 20;
    case Cost::light: return 2;
    default: return 1;
  }
}
// From here on a value is worth a store and a load; in blocks of short rows, which stay in the
// nearest cache.
constexpr int kDear = 8, kDearInBlock = 2;

class Splitting {
 public:
  Splitting(const Group& group, Manner manner)
      : group_(group), manner_(manner), own_(own_dtype(group.compute_type)) {}

  Stages run() {
    find_levels();
    place_sinks();
    find_uses();
    // From the last stage on: it says what it reads before those are put together that compute it.
    const size_t count = 2 * static_cast<size_t>(last_) + 3;
    std::vector<Stage> stages(count);
    for (size_t i = count; i-- > 0;) stages[i] = build(i);
    for (Stage& stage : stages) {
      if (stage.group.nodes.empty() && stage.folds.empty() && stage.scans.empty()) continue;
      result_.stages.push_back(std::move(stage));
    }
    return std::move(result_);
  }

 private:
  static uint16_t argument(const Node& node, int k) {
    return k == 0 ? node.a : k == 1 ? node.b : node.c;
  }
  static bool is_fold(const Node& node) {
    return node.kind == NodeKind::fold || node.kind == NodeKind::pick;
  }
  static constexpr bool has_columns(Spread spread) { return (spread & kColumns) != 0; }

  // Of each value its spread, and the turn in which it is there: the turn t is a stage over rows,
  // then one over elements.
  void find_levels() {
    const auto& nodes = group_.nodes;
    spreads_.resize(nodes.size());
    is_folded_.resize(nodes.size());
    turns_.resize(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      Spread spread = kOne;
      int turn = 0;
      for (int k = 0; k < arity_of(node); ++k) {
        spread |= spreads_[argument(node, k)];
        turn = std::max(turn, turns_[argument(node, k)]);
      }
      if (node.kind == NodeKind::load) {
        const Operand& operand = group_.operands[node.a];
        spread = operand.layout == Layout::scalar ? kOne : operand.spread;
      }
      last_ = std::max(last_, turn);
      if (node.kind == NodeKind::position) spread = static_cast<Spread>(node.b);
      if (node.kind == NodeKind::scan || node.kind == NodeKind::random) spread = kEach;
      if (is_fold(node)) {
        spread = node.kind == NodeKind::pick ? kRows : static_cast<Spread>(node.b);
        if (spread == kRows) ++turn;
        is_folded_[node.a] = true;
      }
      spreads_[i] = spread;
      turns_[i] = turn;
    }
    for (const int turn : turns_) last_ = std::max(last_, turn);
  }

  // A stage by its turn: rows 2 t, elements 2 t + 1.
  static size_t rows_of(int turn) { return 2 * static_cast<size_t>(turn); }
  static size_t elements_of(int turn) { return 2 * static_cast<size_t>(turn) + 1; }

  bool is_loaded(uint16_t area) const {
    return std::ranges::any_of(group_.nodes, [&](const Node& node) {
      return node.kind == NodeKind::load && group_.operands[node.a].area == area;
    });
  }

  bool is_stored(uint16_t area) const {
    return std::ranges::any_of(group_.nodes, [&](const Node& node) {
      return node.kind == NodeKind::store && group_.operands[node.b].area == area;
    });
  }

  // In which stage what is stored or folded is.
  void place_sinks() {
    sinks_.resize(2 * static_cast<size_t>(last_) + 3);
    for (size_t i = 0; i < group_.nodes.size(); ++i) {
      const Node& node = group_.nodes[i];
      if (is_fold(node)) {
        const bool picks = node.kind == NodeKind::pick;
        const int turn = picks ? std::max(turns_[node.a], turns_[node.b]) : turns_[node.a];
        sinks_[elements_of(turn)].push_back(static_cast<uint16_t>(i));
        Fold fold{node.op, !picks && node.b != kRows, {}, 0, {}, {}};
        if (!fold.over_rows) fold.result = result_.row_buffers++;
        folds_[i] = static_cast<uint16_t>(result_.folds.size());
        if (!fold.over_rows) row_buffers_[i] = fold.result;
        result_.folds.push_back(fold);
      }
      if (node.kind != NodeKind::store) continue;
      const Node& value = group_.nodes[node.a];
      if (value.kind == NodeKind::fold && value.b != kRows) {
        result_.folds[folds_.at(node.a)].stored.push_back(node.b);
        continue;
      }
      // After all that reads what was there before.
      const Operand& operand = group_.operands[node.b];
      const bool waits = is_loaded(operand.area);
      const bool elements = has_columns(operand.spread);
      const int turn = waits ? last_ : turns_[node.a];
      sinks_[elements ? elements_of(turn) : rows_of(waits ? turn + 1 : turn)].push_back(
          static_cast<uint16_t>(i));
    }
  }

  // In which stage each value of elements is computed first: not before something needs it.
  void find_uses() {
    used_.assign(group_.nodes.size(), sinks_.size());
    for (size_t stage = 1; stage < sinks_.size(); stage += 2) {
      for (const uint16_t sink : sinks_[stage]) use(group_.nodes[sink].a, stage);
    }
  }
  void use(uint16_t value, size_t stage) {
    const Node& node = group_.nodes[value];
    if (used_[value] <= stage || is_fold(node)) return;
    used_[value] = stage;
    for (int k = 0; k < arity_of(node); ++k) use(argument(node, k), stage);
  }

  // ---- one stage ----

  struct Building {
    Stage stage;
    size_t number;
    std::map<uint16_t, uint16_t> nodes;                      // of the whole group
    std::map<std::pair<Role, uint16_t>, uint16_t> operands;  // of `more`
    std::map<uint16_t, uint16_t> passed;                     // buffers by value
    uint16_t passing = 0;
  };

  Stage build(size_t number) {
    Building b{{}, number, {}, {}, {}};
    b.stage.over_rows = number % 2 == 0;
    b.stage.group.compute_type = group_.compute_type;
    b.stage.group.immediates = group_.immediates;
    b.stage.group.operands = group_.operands;
    for (Operand& operand : b.stage.group.operands) {
      if (operand.layout == Layout::scalar) continue;
      if (!b.stage.over_rows && !has_columns(operand.spread)) operand.layout = Layout::scalar;
    }
    std::vector<uint16_t> kept;
    if (b.stage.over_rows) {
      for (const auto& [value, buffer] : row_buffers_) {
        const bool folded = is_fold(group_.nodes[value]);
        if (!folded && rows_of(turns_[value]) == number)
          kept.push_back(static_cast<uint16_t>(value));
      }
    } else {
      for (const auto& [value, buffer] : element_buffers_) {
        if (used_[value] == number) kept.push_back(static_cast<uint16_t>(value));
      }
    }
    std::ranges::sort(kept);
    for (const uint16_t value : kept) {
      const uint16_t from = need(b, value);
      const uint16_t to = b.stage.over_rows
                              ? buffer(b, Role::row_buffer, row_buffers_.at(value))
                              : buffer(b, Role::element_buffer, element_buffers_.at(value));
      b.stage.group.nodes.push_back({NodeKind::store, Op{}, own_, from, to});
    }
    for (const uint16_t sink : sinks_[number]) {
      Node node = group_.nodes[sink];
      if (is_fold(node)) {
        const uint16_t fold = folds_.at(sink);
        const bool picks = node.kind == NodeKind::pick;
        result_.folds[fold].from = source_of(b, node.a, picks);
        if (picks) result_.folds[fold].at = place_of(node.b);
        b.stage.folds.push_back(fold);
        continue;
      }
      if (const Node& value = group_.nodes[node.a]; value.kind == NodeKind::scan) {
        b.stage.scans.push_back({value.op, value.dtype, value.b == kMiddle, scanned(b, value),
                                 node.b, result_.scans++});
        continue;
      }
      node.a = need(b, node.a);
      b.stage.group.nodes.push_back(node);
    }
    result_.passing_buffers = std::max(result_.passing_buffers, b.passing);
    return std::move(b.stage);
  }

  // Where a fold finds the elements of a value.
  StageOperand source_of(Building& b, uint16_t value, bool picks) {
    const Node& node = group_.nodes[value];
    if (node.kind == NodeKind::load) {
      const Operand& operand = group_.operands[node.a];
      const bool half = own_ == DType::f32 && (dtype_bit(operand.dtype) & kHalves) != 0;
      const bool exact = operand.dtype == node.dtype || (half && node.dtype == own_);
      const bool lies = operand.spread == kEach || (picks && has_columns(operand.spread));
      if (operand.layout == Layout::dense && lies && exact && (half || operand.dtype == own_)) {
        return {Role::operand, node.a};
      }
    }
    return in_buffer(b, value);
  }
  // Where a scan finds the elements of its value.
  StageOperand scanned(Building& b, const Node& scan) {
    const Node& node = group_.nodes[scan.a];
    if (node.kind == NodeKind::load) {
      const Operand& operand = group_.operands[node.a];
      if (operand.layout == Layout::dense && operand.spread == kEach &&
          operand.dtype == scan.dtype && node.dtype == scan.dtype && !is_stored(operand.area)) {
        return {Role::operand, node.a};
      }
    }
    return in_buffer(b, scan.a);
  }
  StageOperand in_buffer(Building& b, uint16_t value) {
    if (const auto kept = element_buffers_.find(value); kept != element_buffers_.end()) {
      return {Role::element_buffer, kept->second};
    }
    const auto [found, fresh] = b.passed.try_emplace(value, b.passing);
    const StageOperand from{Role::passing_buffer, found->second};
    if (fresh) {
      ++b.passing;
      const uint16_t made = need(b, value), to = buffer(b, from.role, from.index);
      b.stage.group.nodes.push_back({NodeKind::store, Op{}, own_, made, to});
    }
    return from;
  }

  uint16_t buffer(Building& b, Role role, uint16_t index) {
    const auto next = static_cast<uint16_t>(b.stage.group.operands.size());
    const auto [found, fresh] = b.operands.try_emplace({role, index}, next);
    if (fresh) {
      // Apart from all others.
      const bool splat = role == Role::row_buffer && !b.stage.over_rows;
      b.stage.group.operands.push_back(
          {own_, splat ? Layout::scalar : Layout::dense, next, splat ? kRows : kEach});
      b.stage.more.push_back({role, index});
    }
    return found->second;
  }

  static uint16_t push(Building& b, const Node& node) {
    b.stage.group.nodes.push_back(node);
    return static_cast<uint16_t>(b.stage.group.nodes.size() - 1);
  }

  // A value of the whole group in a stage.
  uint16_t need(Building& b, uint16_t value) {
    if (const auto found = b.nodes.find(value); found != b.nodes.end()) return found->second;
    const uint16_t made = make(b, value);
    b.nodes[value] = made;
    return made;
  }

  uint16_t make(Building& b, uint16_t value) {
    const Node& node = group_.nodes[value];
    const bool is_leaf = node.kind == NodeKind::load || node.kind == NodeKind::immediate;
    // What is computed of values that are the same for all elements is so once for each row.
    const bool by_row = !has_columns(spreads_[value]) && (spreads_[value] != kOne || !is_leaf);
    const bool is_short = manner_ == Manner::short_rows && !b.stage.over_rows;
    const auto from_buffer = [&](Role role, uint16_t index) {
      if (is_short && role == Role::row_buffer) role = Role::spread_buffer;
      const bool splat = role == Role::row_buffer && !b.stage.over_rows;
      const DType dtype = splat || node.dtype == DType::b8 ? node.dtype : own_;
      return push(b, {NodeKind::load, Op{}, dtype, buffer(b, role, index)});
    };
    if (is_fold(node) || (node.kind == NodeKind::position && node.b == kRows)) {
      return from_buffer(Role::row_buffer, place_of(value));
    }
    if (node.kind == NodeKind::position) {
      result_.has_columns = true;
      if (is_short) return from_buffer(Role::columns, 0);
      return push(b, {NodeKind::position, Op{}, own_, buffer(b, Role::columns, 0)});
    }
    if (!b.stage.over_rows && by_row) {
      // A splat: converted before, over rows.
      const bool as_it_is =
          !is_short && is_leaf && node.dtype == own_ && group_.operands[node.a].dtype == own_;
      if (!as_it_is) return from_buffer(Role::row_buffer, row_buffer_of(value));
    } else if (b.stage.over_rows && !is_leaf && spreads_[value] != kOne &&
               rows_of(turns_[value]) != b.number) {
      return from_buffer(Role::row_buffer, row_buffer_of(value));
    } else if (!b.stage.over_rows && !is_leaf && used_[value] < b.number &&
               has_columns(spreads_[value]) && is_kept(b, value)) {
      return from_buffer(Role::element_buffer, element_buffer_of(value));
    }
    Node copy = node;
    if (arity_of(node) > 0) copy.a = need(b, node.a);
    if (arity_of(node) > 1) copy.b = need(b, node.b);
    if (arity_of(node) > 2) copy.c = need(b, node.c);
    return push(b, copy);
  }

  // Whether a later stage finds a value of elements in a buffer.
  bool is_kept(const Building& b, uint16_t value) const {
    switch (manner_) {
      case Manner::computing: return false;
      case Manner::keeping:
      case Manner::folding: return cost(b, value) >= kDear;
      case Manner::short_rows: break;
    }
    // What is folded is in a buffer already.
    return is_folded_[value] || cost(b, value) >= kDearInBlock;
  }
  // What it costs to compute a value of elements in a stage once more.
  int cost(const Building& b, uint16_t value) const {
    const Node& node = group_.nodes[value];
    if (!has_columns(spreads_[value]) || b.nodes.contains(value)) return 0;
    int sum = cost_of(group_, node);
    for (int k = 0; k < arity_of(node) && sum < kDear; ++k) sum += cost(b, argument(node, k));
    return sum;
  }

  // The row buffer of a value that has no columns.
  uint16_t place_of(uint16_t value) {
    if (group_.nodes[value].kind != NodeKind::position) return row_buffer_of(value);
    if (!result_.row_numbers) result_.row_numbers = result_.row_buffers++;
    return *result_.row_numbers;
  }
  uint16_t row_buffer_of(uint16_t value) {
    const auto [found, fresh] = row_buffers_.try_emplace(value, result_.row_buffers);
    if (fresh) ++result_.row_buffers;
    return found->second;
  }
  uint16_t element_buffer_of(uint16_t value) {
    const auto [found, fresh] = element_buffers_.try_emplace(value, result_.element_buffers);
    if (fresh) ++result_.element_buffers;
    return found->second;
  }

  const Group& group_;
  const Manner manner_;
  const DType own_;
  std::vector<Spread> spreads_;
  std::vector<int> turns_;
  std::vector<size_t> used_;
  std::vector<bool> is_folded_;
  int last_ = 0;
  std::vector<std::vector<uint16_t>> sinks_;  // of each stage
  std::map<size_t, uint16_t> folds_, row_buffers_, element_buffers_;
  Stages result_;
};

}  // namespace

Stages split(const Group& group, Manner manner) {
  return Splitting(group, manner).run();
}

}  // namespace hologram::cpu
