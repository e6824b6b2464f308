#include "cpu/check_group.h"

#include <string>

#include "atlas/error.h"
#include "atlas/op_info.h"
#include "cpu/exact.h"

namespace hologram::cpu {

void check(const Group& group, const TypeKernels& kernels) {
  const auto& nodes = group.nodes;
  const DTypeSet exact = exact_dtypes(group.compute_type);
  const auto require = [](bool holds, const char* why) {
    if (!holds) throw Error(std::string("cannot compute the group: ") + why);
  };
  require(nodes.size() <= static_cast<size_t>(kMaxNodes), "too many nodes");
  require(group.operands.size() <= INT16_MAX, "too many operands");
  for (const Operand& operand : group.operands) {
    require(kernels.load[static_cast<size_t>(operand.dtype)] != nullptr, "an operand's dtype");
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    const auto value = [&](uint16_t v) {
      require(v < i && nodes[v].kind != NodeKind::store, "an operand is not an earlier value");
    };
    if (node.kind != NodeKind::store) {
      require((exact & dtype_bit(node.dtype)) != 0, "a dtype outside its compute type");
    }
    switch (node.kind) {
      case NodeKind::load: {
        require(node.a < group.operands.size(), "an operand that is not there");
        const DType from = group.operands[node.a].dtype;
        // Through f32 a tiny f64 would become false, a large one another integer.
        require(group.compute_type != ComputeType::f32 ||
                    (from != DType::f64 && from != DType::i64 && from != DType::i32) ||
                    (dtype_bit(node.dtype) & kReal) != 0,
                "a conversion that the compute type cannot hold");
        require(group.compute_type != ComputeType::i64 || !(dtype_bit(from) & kReal) ||
                    node.dtype != DType::b8,
                "a conversion that the compute type cannot hold");
        break;
      }
      case NodeKind::immediate:
        require(node.a < group.immediates, "an immediate that is not there");
        break;
      case NodeKind::cast: value(node.a); break;
      case NodeKind::store:
        value(node.a);
        require(node.b < group.operands.size(), "an operand that is not there");
        require(group.operands[node.b].layout != Layout::scalar, "a store to a scalar");
        break;
      case NodeKind::position:  // of a stage (cpu/stages.h)
        require(node.a < group.operands.size() && node.dtype == kernels.own &&
                    kernels.position != nullptr,
                "a position that is not there");
        break;
      case NodeKind::random:
        require(node.a + kDrawImmediates <= group.immediates, "an immediate that is not there");
        require(node.b < kDrawCount &&
                    kernels.draws[node.b][static_cast<size_t>(node.dtype)] != nullptr,
                "a draw that its compute type does not have");
        break;
      case NodeKind::pick:
      case NodeKind::scan:
      case NodeKind::fold: require(false, "a fold in a group without dimensions"); break;
      case NodeKind::compute: {
        require(static_cast<size_t>(node.op) < kOpInfos.size(), "an unknown operation");
        const OpInfo& info = op_info(node.op);
        const uint16_t args[] = {node.a, node.b, node.c};
        for (int k = 0; k < info.arity; ++k) value(args[k]);
        require(!info.has(kPredicate) || node.dtype == DType::b8, "a predicate that is not b8");
        for (int k = 0; k < info.arity; ++k) {
          const bool logical = info.has(kCondition) ? k == 0 : info.is_logical();
          require(!logical || nodes[args[k]].dtype == DType::b8, "a truth value that is not b8");
        }
        require(info.has(kPredicate) || info.supports_in_group(node.dtype),
                "an operation without this dtype");
        const bool there = info.arity == 1 ? kernels.unary[static_cast<size_t>(node.op)] != nullptr
                           : info.arity == 2
                               ? kernels.binary[static_cast<size_t>(node.op)][0] != nullptr
                               : kernels.ternary[static_cast<size_t>(node.op)][0][0][0] != nullptr;
        require(there, "an operation that its compute type does not have");
        break;
      }
    }
  }
}

}  // namespace hologram::cpu
