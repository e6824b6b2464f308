// What the nodes of a step become: declared values, and stores.
#include <set>
#include <utility>

#include "gpu/emitter.h"
#include "gpu/op_text.h"
#include "gpu/rounding.h"

namespace hologram::gpu {

std::string Emitter::use(uint16_t node) {
  if (nodes_[node].kind == NodeKind::immediate) {
    return parameter({Parameter::Kind::immediate, 0, nodes_[node].a});
  }
  if (is_two(node)) {
    if (is_pair(node)) return (lane_ == 0 ? "hg_low(" : "hg_high(") + half(node) + ")";
    if (is_in_half(node)) return "hg_convert<" + own_ + ">(" + half(node) + lane() + ")";
    return value(node) + lane();
  }
  return is_in_half(node) ? "hg_convert<" + own_ + ">(" + half(node) + ")" : value(node);
}

bool Emitter::is_in_half(uint16_t i) const {
  const Node& node = nodes_[i];
  return type_ == ComputeType::f32 && (dtype_bit(node.dtype) & kHalves) != 0 &&
         node.kind != NodeKind::pick && is_rounded(nodes_, i, steps_.operands, type_);
}

std::string Emitter::in_half(uint16_t i, const std::string& x) const {
  const Node& node = nodes_[i];
  if (is_rounded_result(i)) return "hg_bf16_of_result(" + x + ")";
  return "hg_convert<" + type_text(node.dtype) + ">(" + x + ")";
}

std::string Emitter::rounded(uint16_t i, const std::string& x) const {
  return is_rounded(nodes_, i, steps_.operands, type_) ? rounded_text(x, type_, nodes_[i].dtype)
                                                       : x;
}

std::string Emitter::loaded(const Node& node, const std::string& element) {
  const DType from = steps_.operands[node.a].dtype;
  return from == own_dtype(type_) ? element : "hg_convert<" + own_ + ">(" + element + ")";
}

// Elements that one call of the generator makes.
unsigned Emitter::drawn_at_once(const Node& node) const {
  const bool is_long = type_ == ComputeType::f64 || static_cast<Draw>(node.b) == Draw::long_integer;
  return is_long ? 2 : 4;
}

std::string Emitter::bits(const Node& node, int i) {
  return parameter({Parameter::Kind::bits, 8, static_cast<uint16_t>(node.a + i)});
}

std::string Emitter::drawn(uint16_t i) {
  const Node& node = nodes_[i];
  const std::string at_once = number(drawn_at_once(node)) + "u";
  std::string from;
  if (has_words(node)) {
    from = "(w" + number(i) + "[k / " + at_once + "], k % " + at_once;
  } else {
    const std::string e = "hg_u64(" + place('e') + ")";
    from = "(hg_philox(" + bits(node, 0) + ", " + bits(node, 1) + " + " + e + " / " + at_once +
           "), hg_u32(" + e + " % " + at_once + ")";
  }
  const std::string suffix = type_ == ComputeType::f64 ? "_f64" : "";
  switch (static_cast<Draw>(node.b)) {
    case Draw::uniform:
      if (type_ == ComputeType::f64) return "hg_uniform_f64" + from + ")";
      return "hg_uniform" + from + ", " + number(static_cast<uint64_t>(digits_of(node.dtype))) +
             "u)";
    case Draw::normal: return "hg_normal" + suffix + from + ")";
    case Draw::integer: return "hg_integer" + from + ", " + bits(node, 2) + ")";
    case Draw::long_integer: break;
  }
  return "hg_long_integer" + from + ", " + bits(node, 2) + ")";
}

// Whether the words of a thread's vector are made before its elements are.
bool Emitter::has_words(const Node& node) const {
  return step_.skeleton == Skeleton::elements && kernel_.vector % drawn_at_once(node) == 0;
}

void Emitter::emit_words(const std::vector<bool>& needed) {
  for (uint16_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!needed[i] || node.kind != NodeKind::random || !has_words(node)) continue;
    const unsigned at_once = drawn_at_once(node);
    const std::string words = "w" + number(i);
    line("hg_words " + words + "[" + number(kernel_.vector / at_once) + "];");
    line("HG_UNROLL");
    line("for (hg_u32 q = 0; q < " + number(kernel_.vector / at_once) + "u; ++q) " + words +
         "[q] = hg_philox(" + bits(node, 0) + ", " + bits(node, 1) + " + (hg_u64(e0) / " +
         number(at_once) + "u + q));");
  }
}

std::string Emitter::few_of(uint16_t i) {
  const uint16_t which = nodes_[i].a;
  if (has_neighbours_ && is_of_elements(i)) return "x" + operand(which) + "[u]";
  return in_vectors(which) ? "x" + operand(which) + of_vector() : "";
}

std::string Emitter::node_text(uint16_t i) {
  const Node& node = nodes_[i];
  std::string x;
  switch (node.kind) {
    case NodeKind::load: {
      const std::string few = few_of(i);
      x = loaded(node, few.empty() ? operand(node.a) + "[" + place_in(node.a) + "]"
                                   : "hg_few_get(" + few + ", " + element() + ")");
      break;
    }
    case NodeKind::compute: {
      if (has_bf16_form(i)) {
        x = std::string("math_") + op_info(node.op).name + "_bf16(" + use(node.a) +
            (op_info(node.op).arity > 1 ? ", " + use(node.b) : "") + ")";
        break;
      }
      if (is_by_divisor(i)) {
        x = "hg_divided(" + use(node.a) + ", " + divisor(node) + ")";
        break;
      }
      const int arity = op_info(node.op).arity;
      x = apply(node.op, own_, use(node.a), use(arity > 1 ? node.b : node.a),
                use(arity > 2 ? node.c : node.a));
      break;
    }
    case NodeKind::cast: x = use(node.a); break;
    case NodeKind::position: x = own_ + "(" + place(node.b == kColumns ? 'c' : 'm') + ")"; break;
    case NodeKind::random: x = drawn(i); break;
    default: break;
  }
  return x;
}

void Emitter::emit_node(uint16_t i) {
  const Node& node = nodes_[i];
  if (node.kind == NodeKind::pick) {
    emit_pick(i);
    return emit_divisor(i);
  }
  if (node.kind == NodeKind::immediate || node.kind == NodeKind::store || is_fold_or_scan(node)) {
    return;
  }
  if (is_two(i)) return emit_two(i);
  const std::string x = node_text(i);
  if (is_in_half(i)) {
    line("const " + type_text(node.dtype) + " " + half(i) + " = " + in_half(i, x) + ";");
  } else {
    line("const " + own_ + " " + value(i) + " = " + rounded(i, x) + ";");
  }
  emit_divisor(i);
}

// Whether elements of a row are divided by what the row has one of.
bool Emitter::is_by_divisor(uint16_t i) const {
  const Node& node = nodes_[i];
  return step_.skeleton == Skeleton::rows && type_ == ComputeType::f32 &&
         node.kind == NodeKind::compute && op_info(node.op).has(kQuotient) && is_of_elements(i) &&
         !is_of_elements(node.b) && nodes_[node.b].kind != NodeKind::immediate;
}

// Its name, by what quotients are rounded to.
std::string Emitter::divisor(const Node& quotient) const {
  return (stays_in_bf16(quotient) ? "dh" : "d") + number(quotient.b);
}

void Emitter::emit_divisor(uint16_t i) {
  std::set<std::string> names;
  for (uint16_t k = 0; k < nodes_.size(); ++k) {
    if (is_by_divisor(k) && nodes_[k].b == i) names.insert(divisor(nodes_[k]));
  }
  for (const std::string& name : names) {
    const std::string type = name.starts_with("dh") ? "hg_bf16_divisor" : "hg_divisor";
    line("const " + type + " " + name + " = " + type + "_of(" + use(i) + ");");
  }
}

// The element of the row in the column that the row says: computed there.
void Emitter::emit_pick(uint16_t i) {
  const Node& node = nodes_[i];
  const std::string columns = parameter(Parameter::Kind::columns), at = use(node.b);
  line(own_ + " " + value(i) + " = " + own_ + "(0);");
  open("if (" + at + " >= " + own_ + "(0) && " + at + " < " + own_ + "(" + columns + "))");
  line("const " + index_ + " c = " + index_ + "(" + at + ");");
  // Below, the places are of another element.
  const std::string before = needed_;
  needed_.clear();
  const std::string outside = std::exchange(body_, "");
  std::vector<bool> needed(nodes_.size());
  need(node.a, needed);
  for (uint16_t k = 0; k < i; ++k) {
    if (needed[k] && has_columns(spreads_[k])) emit_node(k);
  }
  const std::string inside = std::exchange(body_, outside);
  const bool has_element = needs('e');
  std::string rest = before;
  for (const char which : needed_) {
    if (which != 'e' && which != 'c' && rest.find(which) == std::string::npos) rest += which;
  }
  needed_ = rest;
  if (has_element) line("const " + index_ + " e = " + place('r') + " * " + columns + " + c;");
  body_ += inside;
  const std::string found = use(node.a);
  // -0 of a row of several becomes +0.
  line("if (" + own_ + "(c) == " + at + ") " + value(i) + " = " + columns + " == 1 ? " + found +
       " : wrap_add(" + found + ", " + own_ + "(0));");
  close();
}

void Emitter::need(uint16_t node, std::vector<bool>& needed) const {
  if (needed[node]) return;
  needed[node] = true;
  if (nodes_[node].kind == NodeKind::fold || nodes_[node].kind == NodeKind::pick ||
      nodes_[node].kind == NodeKind::scan) {
    return;
  }
  for (int k = 0; k < arity_of(nodes_[node]); ++k) need(argument_of(nodes_[node], k), needed);
}

void Emitter::need_through(std::vector<bool>& needed) const {
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (int k = 0; k < arity_of(nodes_[i]); ++k) need(argument_of(nodes_[i], k), needed);
  }
}

void Emitter::emit_row_values(std::vector<bool> needed) {
  need_through(needed);
  emit_values(needed, false);
}

bool Emitter::is_of_elements(uint16_t node) const {
  return !steps_.structured ? spreads_[node] != kOne : has_columns(spreads_[node]);
}

void Emitter::emit_values(const std::vector<bool>& needed, bool of_elements) {
  for (uint16_t i = 0; i < nodes_.size(); ++i) {
    if (needed[i] && is_of_elements(i) == of_elements && !is_fold_or_scan(nodes_[i])) emit_node(i);
  }
}

void Emitter::emit_all(const std::vector<uint16_t>& of) {
  std::vector<bool> needed(nodes_.size());
  for (const uint16_t i : of) need(nodes_[i].a, needed);
  for (uint16_t i = 0; i < nodes_.size(); ++i) {
    if (needed[i] && !is_fold_or_scan(nodes_[i])) emit_node(i);
  }
}

std::string Emitter::stored(const Node& store) {
  const DType to = steps_.operands[store.b].dtype;
  const Node& from = nodes_[store.a];
  if (to == from.dtype && is_in_half(store.a) && !(is_two(store.a) && is_pair(store.a))) {
    return half(store.a) + (is_two(store.a) ? lane() : "");
  }
  const std::string x = use(store.a);
  const bool is_held =
      from.kind == NodeKind::load || from.kind == NodeKind::cast || from.kind == NodeKind::compute;
  if (to == DType::bf16 && from.dtype == to && is_held && type_ == ComputeType::f32) {
    return "hg_bf16_of_held(" + x + ")";
  }
  if (stores_rounded_result(store)) return "hg_bf16_of_result(" + x + ")";
  return to == own_dtype(type_) ? x : "hg_convert<" + type_text(to) + ">(" + x + ")";
}

void Emitter::emit_store(const Node& store) {
  line(operand(store.b) + "[" + place_in(store.b) + "] = " + stored(store) + ";");
}

}  // namespace hologram::gpu
