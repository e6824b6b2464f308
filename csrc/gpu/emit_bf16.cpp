// What of bf16 has texts of its own, and values of two elements at a time.
#include <utility>

#include "gpu/emitter.h"
#include "gpu/op_text.h"

namespace hologram::gpu {
namespace {

// Whether it is a number that bf16 has.
bool is_of_bf16(const Node& node) {
  const bool is_held = node.kind == NodeKind::load || node.kind == NodeKind::cast ||
                       node.kind == NodeKind::compute ||
                       (node.kind == NodeKind::immediate && node.b != 0);
  return is_held && node.dtype == DType::bf16;
}

// Whether a NaN would be one that arithmetic has made, or a function: not one of memory.
bool is_result(const Node& node) {
  return node.kind == NodeKind::compute && op_info(node.op).exact == Exact::no;
}

std::string pair_text(bool of_results, const std::string& low, const std::string& high,
                      const std::string& a, const std::string& b) {
  return of_results ? "hg_pair_of_results(" + a + ", " + b + ")"
                    : "hg_pair(" + low + ", " + high + ")";
}

}  // namespace

bool Emitter::takes_bf16(const Node& node) const {
  for (int k = 0; k < op_info(node.op).arity; ++k) {
    if (!is_of_bf16(nodes_[argument_of(node, k)])) return false;
  }
  return type_ == ComputeType::f32;
}

bool Emitter::stays_in_bf16(const Node& node) const {
  return node.dtype == DType::bf16 && takes_bf16(node);
}

bool Emitter::has_bf16_form(uint16_t i) const {
  const Node& node = nodes_[i];
  return op_info(node.op).has(kForBf16) && takes_bf16(node) && becomes_bf16(i);
}

// Whether all that is made of a value is that it is rounded.
bool Emitter::becomes_bf16(uint16_t i) const {
  if (nodes_[i].dtype == DType::bf16) return true;
  bool is_used = false;
  for (const Node& node : nodes_) {
    for (int k = 0; k < arity_of(node); ++k) {
      if (argument_of(node, k) != i) continue;
      const bool is_stored = node.kind == NodeKind::store;
      const DType dtype = is_stored ? steps_.operands[node.b].dtype : node.dtype;
      if ((!is_stored && node.kind != NodeKind::cast) || dtype != DType::bf16) return false;
      is_used = true;
    }
  }
  return is_used;
}

// Whether a result (is_result) is all that becomes bf16.
bool Emitter::is_rounded_result(uint16_t i) const {
  const Node& node = nodes_[i];
  const Node& from = node.kind == NodeKind::cast ? nodes_[node.a] : node;
  const bool is_own = &from == &node || from.dtype == own_dtype(type_);
  return is_result(from) && is_own && node.dtype == DType::bf16;
}

bool Emitter::stores_rounded_result(const Node& store) const {
  const Node& from = nodes_[store.a];
  return steps_.operands[store.b].dtype == DType::bf16 && type_ == ComputeType::f32 &&
         from.dtype == DType::f32 && is_result(from);
}

// ---- two elements at a time ----
//
// Where values are rounded to bf16, a turn of the loop over a thread's elements is of two
// neighbours, and what is rounded lies in one word: one instruction rounds both, and adds or
// multiplies both where the operands are such words, too (dialect/pairs.h).

// Whether the elements of the step can be computed so: decided once, as one pass may keep values
// for another.
bool Emitter::computes_two() const {
  if (type_ != ComputeType::f32) return false;
  bool has_pair = false;
  for (uint16_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.kind == NodeKind::pick || node.kind == NodeKind::scan) return false;
    if (!is_of_elements(i)) continue;
    if (node.kind == NodeKind::random || node.kind == NodeKind::position) return false;
    if (step_.skeleton == Skeleton::elements && has_operand(node) &&
        !in_vectors(operand_of(node))) {
      return false;
    }
    has_pair = has_pair || (is_in_half(i) && node.dtype == DType::bf16);
  }
  return has_pair;
}

bool Emitter::is_two(uint16_t i) const {
  return is_of_two_ && is_of_elements(i) && nodes_[i].kind != NodeKind::immediate;
}

bool Emitter::is_pair(uint16_t i) const {
  const Node& node = nodes_[i];
  if (!is_two_ || !is_of_elements(i)) return false;
  if (node.kind == NodeKind::load) {
    return node.dtype == DType::bf16 && steps_.operands[node.a].dtype == DType::bf16;
  }
  return is_in_half(i) && node.dtype == DType::bf16;
}

std::pair<std::string, std::string> Emitter::both(const std::function<std::string()>& text) {
  lane_ = 0;
  std::string first = text();
  lane_ = 1;
  std::string second = text();
  lane_ = 0;
  return {std::move(first), std::move(second)};
}

std::string Emitter::pair_of(uint16_t i) {
  if (is_two(i) && is_pair(i)) return half(i);
  const auto [a, b] = both([&] { return use(i); });
  return "hg_pair_of_held(" + a + ", " + b + ")";
}

void Emitter::emit_two(uint16_t i) {
  const Node& node = nodes_[i];
  if (!is_pair(i)) {
    const auto [a, b] = both([&] { return node_text(i); });
    const bool is_half = is_in_half(i);
    const std::string type = is_half ? type_text(node.dtype) : own_;
    const std::string name = is_half ? half(i) : value(i);
    line("const " + type + " " + name + "a = " + (is_half ? in_half(i, a) : rounded(i, a)) + ";");
    line("const " + type + " " + name + "b = " + (is_half ? in_half(i, b) : rounded(i, b)) + ";");
    return;
  }
  const std::string begin = "const hg_bf16x2 " + half(i) + " = ";
  if (node.kind == NodeKind::load) return line(begin + "hg_few_pair(" + few_of(i) + ", k);");
  if (node.kind == NodeKind::compute && stays_in_bf16(node)) {
    if (op_info(node.op).has(kForPairs)) {
      const std::string second = op_info(node.op).arity > 1 ? ", " + pair_of(node.b) : "";
      return line(begin + "hg_pair_" + op_info(node.op).name + "(" + pair_of(node.a) + second +
                  ");");
    }
    if (is_by_divisor(i)) {
      return line(begin + "hg_pair_divided(" + pair_of(node.a) + ", " + divisor(node) + ");");
    }
  }
  const auto [a, b] = both([&] { return node_text(i); });
  line(begin + pair_text(is_rounded_result(i), in_half(i, a), in_half(i, b), a, b) + ";");
}

void Emitter::emit_few_set(const Node& store) {
  const std::string to = "hg_few_set(y" + operand(store.b) + ", ";
  if (!is_of_two_) return line(to + "k, " + stored(store) + ");");
  if (steps_.operands[store.b].dtype == DType::bf16) {
    const std::string set = "hg_few_set_pair(y" + operand(store.b) + ", k, ";
    if (is_two(store.a) && is_pair(store.a)) return line(set + half(store.a) + ");");
    const auto [a, b] = both([&] { return use(store.a); });
    const auto [low, high] = both([&] { return stored(store); });
    return line(set + pair_text(stores_rounded_result(store), low, high, a, b) + ");");
  }
  const auto [a, b] = both([&] { return stored(store); });
  line(to + "k, " + a + ");");
  line(to + "k + 1u, " + b + ");");
}

}  // namespace hologram::gpu
