#include "cpu/row_group.h"

#include <algorithm>
#include <utility>

#include "cpu/group_compiler.h"

namespace hologram::cpu {

namespace {

// From here on the last tile of a row does not matter.
constexpr int64_t kManyTiles = 4;

}  // namespace

const RowGroup& RowGroup::for_columns(int64_t columns) const {
  const int64_t lanes = kernels->lanes, left = columns % lanes;
  if (isa_ != Isa::avx512 || left == 0 || left > lanes / 2 || columns > kManyTiles * lanes) {
    return *this;
  }
  std::call_once(narrow_once_, [&] { narrow_ = std::make_unique<RowGroup>(group_, Isa::avx2); });
  return *narrow_;
}

RowGroup::RowGroup(const Group& group, Isa isa)
    : operands(group.operands), group_(group), isa_(isa) {
  written.resize(operands.size());
  for (const Node& node : group.nodes) {
    if (node.kind == NodeKind::fold) {
      over_columns = over_columns || node.b == kRows;
      over_rows = over_rows || node.b != kRows;
    }
    if (node.kind != NodeKind::store) continue;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].area == operands[node.b].area) written[i] = true;
    }
    stores_rows = stores_rows || operands[node.b].spread == kRows;
  }
  keeping = compile(group, isa, true);
  if (keeping.element_buffers != 0) computing = compile(group, isa, false);
  for (const Fold& fold : keeping.folds) {
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

RowGroup::Way RowGroup::compile(const Group& group, Isa isa, bool keeps) {
  Stages parts = split(group, keeps);
  Way way;
  way.folds = std::move(parts.folds);
  way.row_buffers = parts.row_buffers;
  way.element_buffers = parts.element_buffers;
  for (Stage& stage : parts.stages) {
    StageCode made;
    made.code = GroupCompiler(stage.group, isa, true).compile();
    kernels = made.code->kernels_;
    made.over_rows = stage.over_rows;
    made.more = std::move(stage.more);
    made.folds = std::move(stage.folds);
    for (const OperandUse& use : made.code->uses_) {
      if (use.operand >= operands.size() || !use.stored) continue;
      for (const OperandUse& other : made.code->uses_) {
        made.in_place =
            made.in_place || (other.operand < operands.size() && other.loaded &&
                              operands[other.operand].area == operands[use.operand].area);
      }
    }
    // Folds over columns leave out the lanes behind the end of the row.
    made.masked = made.code->code_;
    const auto mask = std::ranges::find(made.more, Role::mask, &StageOperand::role);
    for (MicroOp& op : made.masked) {
      for (const uint16_t fold : made.folds) {
        const FoldKernels& fold_kernels = kernels->folds[static_cast<size_t>(way.folds[fold].op)];
        if (way.folds[fold].over_rows || op.code != fold_kernels.into || op.x.mask == -1) continue;
        op.code = fold_kernels.masked;
        op.y = {
            static_cast<int32_t>(operands.size() + static_cast<size_t>(mask - made.more.begin())),
            0, 0};
        break;
      }
    }
    way.stages.push_back(std::move(made));
  }
  return way;
}

size_t RowGroup::bytes() const noexcept {
  size_t sum =
      sizeof *this + 2 * operands.size() * sizeof operands[0] + group_.nodes.size() * sizeof(Node);
  for (const Way* way : {&keeping, &computing}) {
    for (const StageCode& stage : way->stages) {
      sum += stage.code->bytes() + stage.masked.size() * sizeof stage.masked[0];
    }
  }
  for (const auto& stores : results) {
    for (const auto& store : stores) sum += store->bytes();
  }
  return sum;
}

}  // namespace hologram::cpu
