#include "cpu/row_group.h"

#include <algorithm>

#include "atlas/error.h"
#include "cpu/group_compiler.h"

namespace hologram::cpu {
namespace {

// A group without some of its stores.
template <class IsGone>
Group without(const Group& group, IsGone&& is_gone) {
  Group left = group;
  left.nodes.clear();
  std::vector<uint16_t> numbers;  // of the nodes, in what is left
  for (Node node : group.nodes) {
    numbers.push_back(static_cast<uint16_t>(left.nodes.size()));
    if (is_gone(node)) continue;
    const int arity = arity_of(node);
    if (arity > 0) node.a = numbers[node.a];
    if (arity > 1) node.b = numbers[node.b];
    if (arity > 2) node.c = numbers[node.c];
    left.nodes.push_back(node);
  }
  return left;
}

}  // namespace

RowGroup::RowGroup(const Group& whole, Isa isa) : group(whole), isa_(isa) {
  const auto& operands = group.operands;
  written.resize(operands.size());
  for (const Operand& operand : operands) {
    const bool one = operand.layout == Layout::scalar || operand.spread == kOne;
    spreads_rows = spreads_rows || (!one && (operand.spread & kColumns) == 0);
  }
  for (const Node& node : group.nodes) {
    over_columns = over_columns || node.kind == NodeKind::pick;
    if (node.kind == NodeKind::fold) {
      over_columns = over_columns || node.b == kRows;
      over_rows = over_rows || node.b != kRows;
    }
    if (node.kind == NodeKind::scan) (node.b == kMiddle ? scans_down : scans_along) = true;
    if (node.kind != NodeKind::store) continue;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].area == operands[node.b].area) written[i] = true;
    }
    stores_rows = stores_rows || operands[node.b].spread == kRows;
  }
  kernels = &kernels_of(group.compute_type, isa);
  for (const Node& node : group.nodes) {
    if ((node.kind == NodeKind::fold || node.kind == NodeKind::pick) &&
        (static_cast<size_t>(node.op) >= kOpInfos.size() ||
         kernels->folds[static_cast<size_t>(node.op)].join == nullptr)) {
      throw Error("cannot compute the group: a fold that its compute type does not have");
    }
    if (node.kind != NodeKind::store || group.nodes[node.a].kind != NodeKind::scan) continue;
    const Node& scan = group.nodes[node.a];
    const Operand& to = operands[node.b];
    if (!takes_scan(to.dtype, scan.dtype) || to.layout != Layout::dense || to.spread != kEach ||
        static_cast<size_t>(scan.op) >= kOpInfos.size() ||
        kernels->scans[static_cast<size_t>(scan.op)].along.of_own[static_cast<size_t>(to.dtype)] ==
            nullptr) {
      throw Error("cannot compute the group: a scan that its compute type does not have");
    }
  }
  const Stages parts = split(group, Manner::keeping);
  only_scans_down =
      scans_down && !scans_along && parts.stages.size() == 1 && parts.stages[0].only_scans();
  for (const Fold& fold : parts.folds) {
    auto& stores = results.emplace_back();
    for (const uint16_t operand : fold.stored) {
      const DType own = kernels->own, to = operands[operand].dtype;
      Group copy{group.compute_type, {{own, Layout::dense, 0}, {to, Layout::dense, 1}}, {}};
      copy.nodes.push_back({NodeKind::load, Op{}, own, 0});
      copy.nodes.push_back({NodeKind::store, Op{}, to, 0, 1});
      stores.push_back(GroupCompiler(copy, isa, true).compile());
    }
  }
}

const RowGroup::Way& RowGroup::way(Manner manner) const {
  const auto i = static_cast<size_t>(manner);
  if (const Way* made = ready_[i].load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(mutex_);
  if (ways_[i] == nullptr) {
    ways_[i] = std::make_unique<Way>(compile(manner));
    ready_[i].store(ways_[i].get(), std::memory_order_release);
  }
  return *ways_[i];
}

RowGroup::Way RowGroup::compile(Manner manner) const {
  Stages parts = split(group, manner);
  Way way;
  way.folds = std::move(parts.folds);
  way.scans = parts.scans;
  way.row_buffers = parts.row_buffers;
  way.element_buffers = parts.element_buffers;
  way.passing_buffers = parts.passing_buffers;
  way.row_numbers = parts.row_numbers;
  way.has_columns = parts.has_columns;
  for (Stage& stage : parts.stages) {
    if (manner != Manner::short_rows) split_folds(stage, manner == Manner::folding, way);
    if (stage.group.nodes.empty() && stage.folds.empty() && stage.scans.empty()) continue;
    auto code = GroupCompiler(stage.group, isa_, true).compile();
    add_stage(std::move(stage), std::move(code), way);
  }
  find_pairs(way);
  return way;
}

void RowGroup::find_pairs(Way& way) const {
  for (size_t i = 0; i + 1 < way.stages.size(); ++i) {
    StageCode& fold = way.stages[i];
    const StageCode& next = way.stages[i + 1];
    if (fold.loop == nullptr || fold.loop->over_rows || next.in_place || next.over_rows ||
        next.is_empty || next.loop != nullptr || next.picks || !next.folds.empty() ||
        !next.scans.empty()) {
      continue;
    }
    for (int p = 0; p < kernels->pair_count; ++p) {
      const FoldThenLoop& pair = kernels->pairs[p];
      if (pair.fold == fold.loop->run && pair.loop == next.code->run_) fold.pair = &pair;
    }
  }
}

void RowGroup::add_stage(Stage&& stage, std::unique_ptr<CompiledGroup> code, Way& way) const {
  const size_t own = group.operands.size();
  StageCode made;
  made.code = std::move(code);
  made.over_rows = stage.over_rows;
  made.is_empty = stage.group.nodes.empty();
  made.more = std::move(stage.more);
  made.folds = std::move(stage.folds);
  made.scans = std::move(stage.scans);
  made.folds_rows =
      made.is_empty && made.scans.empty() && std::ranges::all_of(made.folds, [&](uint16_t number) {
        const Fold& fold = way.folds[number];
        return fold.from.role == Role::operand && !fold.over_rows && !fold.at &&
               group.operands[fold.from.index].spread == kEach;
      });
  std::vector<bool> is_spread(way.row_buffers);
  for (const StageCode& before : way.stages) {
    for (const auto& [pointer, buffer] : before.spreads) is_spread[buffer] = true;
  }
  for (size_t i = 0; i < made.more.size(); ++i) {
    const StageOperand& operand = made.more[i];
    if (operand.role != Role::spread_buffer || is_spread[operand.index]) continue;
    is_spread[operand.index] = true;
    made.spreads.emplace_back(static_cast<uint16_t>(own + i), operand.index);
  }
  for (const OperandUse& use : made.code->uses_) {
    if (use.operand >= own || !use.stored) continue;
    for (const OperandUse& other : made.code->uses_) {
      made.in_place =
          made.in_place || (other.operand < own && other.loaded &&
                            group.operands[other.operand].area == group.operands[use.operand].area);
    }
  }
  way.stages.push_back(std::move(made));
}

// Makes stages of their own of a stage's picks, and of its folds for which there are loops. They
// come before what is left of it.
void RowGroup::split_folds(Stage& stage, bool has_loops, Way& way) const {
  const size_t own = group.operands.size();
  const std::vector<uint16_t> folds = stage.folds;
  for (const uint16_t fold : folds) {
    const StageOperand from = way.folds[fold].from;
    const auto reads = [&](uint16_t other) {
      const StageOperand& its = way.folds[other].from;
      return its.role == from.role && its.index == from.index;
    };
    const auto scans = [&](const Scan& scan) {
      return scan.from.role == from.role && scan.from.index == from.index;
    };
    const bool picks = way.folds[fold].at.has_value();
    if (from.role != Role::passing_buffer || !(picks || has_loops) ||
        std::ranges::count_if(stage.folds, reads) != 1 || std::ranges::any_of(stage.scans, scans)) {
      continue;
    }
    const auto passes = [&](const Node& node) {
      if (node.kind != NodeKind::store || node.b < own) return false;
      const StageOperand& to = stage.more[node.b - own];
      return to.role == from.role && to.index == from.index;
    };
    const auto is_other = [&](const Node& node) {
      return node.kind == NodeKind::store && !passes(node);
    };
    Stage alone{stage.over_rows, without(stage.group, is_other), stage.more, {fold}, {}};
    auto code = GroupCompiler(alone.group, isa_, true).compile();
    const FoldLoop* const loop = picks ? nullptr : loop_of(*code, way.folds[fold]);
    if (!picks && loop == nullptr) continue;
    add_stage(std::move(alone), std::move(code), way);
    way.stages.back().loop = loop;
    way.stages.back().picks = picks;
    std::erase(stage.folds, fold);
    stage.group = without(stage.group, passes);
    const auto stores = [](const Node& node) { return node.kind == NodeKind::store; };
    if (std::ranges::none_of(stage.group.nodes, stores)) stage.group.nodes.clear();
  }
}

// The loop that folds what code stores, if there is one.
const FoldLoop* RowGroup::loop_of(const CompiledGroup& code, const Fold& fold) const {
  // Without the store and the end. In a loop every operand runs on, which slots do not.
  const size_t length = code.code_.size() - 2;
  const auto in_slot = [&](const MicroOp& i) {
    return i.x.pointer == code.operands_ || i.y.pointer == code.operands_;
  };
  if (std::ranges::any_of(code.code_, in_slot)) return nullptr;
  for (int i = 0; i < kernels->fold_loop_count; ++i) {
    const FoldLoop& loop = kernels->fold_loops[i];
    if (loop.op == fold.op && loop.over_rows == fold.over_rows &&
        static_cast<size_t>(loop.length) == length &&
        std::equal(code.code_.begin(), code.code_.end() - 2, loop.code,
                   [](const MicroOp& a, AnyCode b) { return a.code == b; })) {
      return &loop;
    }
  }
  return nullptr;
}

size_t RowGroup::bytes() const noexcept {
  size_t sum = sizeof *this + 2 * group.operands.size() * sizeof group.operands[0] +
               group.nodes.size() * sizeof(Node);
  for (const auto& way : ready_) {
    const Way* const made = way.load(std::memory_order_acquire);
    if (made == nullptr) continue;
    for (const StageCode& stage : made->stages) sum += sizeof stage + stage.code->bytes();
  }
  for (const auto& stores : results) {
    for (const auto& store : stores) sum += store->bytes();
  }
  return sum;
}

}  // namespace hologram::cpu
