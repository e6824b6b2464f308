#include "gpu/rounding.h"

#include "gpu/steps.h"

namespace hologram::gpu {

bool holds(DType to, DType from) {
  if (from == to || from == DType::b8) return true;
  const bool is_real = (dtype_bit(from) & kReal) != 0;
  const bool is_byte = from == DType::u8 || from == DType::i8;
  switch (to) {
    case DType::f16:
    case DType::bf16:
    case DType::i16: return is_byte;
    case DType::i32: return dtype_size(from) < 4 && !is_real;
    case DType::i64: return !is_real;
    case DType::f32: return dtype_size(from) < 4;
    case DType::f64: return from != DType::i64;
    default: return false;
  }
}

namespace {

// Whether a value is one that its dtype holds: of an immediate nobody knows.
bool is_held(const Node& node) {
  return node.kind != NodeKind::immediate;
}

bool is_result_rounded(const std::vector<Node>& nodes, const Node& node) {
  const OpInfo& info = op_info(node.op);
  if (info.has(kPredicate)) return false;
  if (info.exact == Exact::no) return true;
  if (info.exact == Exact::real && (dtype_bit(node.dtype) & kReal) == 0) return true;
  for (int k = info.has(kCondition) ? 1 : 0; k < info.arity; ++k) {
    const Node& from = nodes[argument_of(node, k)];
    if (!is_held(from) || !holds(node.dtype, from.dtype)) return true;
    // Of b8 no whole number but 0 and 1 is left, but -1 could be made.
    if (node.dtype == DType::b8 || from.dtype == DType::b8) return true;
  }
  return false;
}

}  // namespace

bool is_rounded(const std::vector<Node>& nodes, size_t i, const std::vector<Operand>& operands,
                ComputeType type) {
  const Node& node = nodes[i];
  if (node.dtype == own_dtype(type)) return false;
  switch (node.kind) {
    case NodeKind::load: return !holds(node.dtype, operands[node.a].dtype);
    case NodeKind::cast: return !is_held(nodes[node.a]) || !holds(node.dtype, nodes[node.a].dtype);
    case NodeKind::compute: return is_result_rounded(nodes, node);
    // A uniform one has no more digits than its dtype, and of an integer all are kept.
    case NodeKind::random: return static_cast<Draw>(node.b) == Draw::normal;
    default: return false;
  }
}

}  // namespace hologram::gpu
