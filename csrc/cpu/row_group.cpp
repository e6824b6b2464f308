#include "cpu/row_group.h"

#include <algorithm>

#include "atlas/error.h"
#include "cpu/group_compiler.h"

namespace hologram::cpu {

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
  const auto& stages = way(Manner::short_rows).stages;
  only_scans_down = scans_down && !scans_along && stages.size() == 1 && stages[0].only_scans();
  for (const Fold& fold : way(Manner::short_rows).folds) {
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
  const size_t own = group.operands.size();
  Stages parts = split(group, manner);
  Way way;
  way.folds = std::move(parts.folds);
  way.scans = parts.scans;
  way.row_buffers = parts.row_buffers;
  way.element_buffers = parts.element_buffers;
  way.passing_buffers = parts.passing_buffers;
  way.row_numbers = parts.row_numbers;
  way.has_columns = parts.has_columns;
  std::vector<bool> is_spread(way.row_buffers);
  for (Stage& stage : parts.stages) {
    StageCode made;
    made.code = GroupCompiler(stage.group, isa_, true).compile();
    made.over_rows = stage.over_rows;
    made.is_empty = stage.group.nodes.empty();
    made.more = std::move(stage.more);
    made.folds = std::move(stage.folds);
    made.scans = std::move(stage.scans);
    for (size_t i = 0; i < made.more.size(); ++i) {
      const StageOperand& operand = made.more[i];
      if (operand.role != Role::spread_buffer || is_spread[operand.index]) continue;
      is_spread[operand.index] = true;
      made.spreads.emplace_back(static_cast<uint16_t>(own + i), operand.index);
    }
    for (const OperandUse& use : made.code->uses_) {
      if (use.operand >= own || !use.stored) continue;
      for (const OperandUse& other : made.code->uses_) {
        made.in_place = made.in_place ||
                        (other.operand < own && other.loaded &&
                         group.operands[other.operand].area == group.operands[use.operand].area);
      }
    }
    way.stages.push_back(std::move(made));
  }
  return way;
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
