#include "atlas/canonicalise.h"

#include "atlas/checker.h"
#include "atlas/draft.h"

namespace hologram {
namespace {

Plan plan_of(const Program& program) {
  Drafts drafts = group_instructions(program);
  std::vector<Batch> groups = drop_dead_code(program, drafts);
  Plan plan = batch_groups(program, drafts, std::move(groups));
  if (program.contracts) find_epilogues(program, plan);
  return plan;
}

}  // namespace

ComputeType compute_type_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return ComputeType::f64;
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u8: return ComputeType::i64;
    default: return ComputeType::f32;
  }
}

Plan canonicalise(const Program& program) {
#ifdef NDEBUG
  return plan_of(program);
#else
  validate(program);
  Plan plan = plan_of(program);
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

}  // namespace hologram
