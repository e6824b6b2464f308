#include "gpu/emit.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "atlas/error.h"
#include "atlas/fnv.h"
#include "atlas/op_table.h"
#include "gpu/op_text.h"
#include "gpu/rounding.h"

namespace hologram::gpu {
namespace {

constexpr const char* kPlaceholder = "hg_@";
// Elements of a scan that a thread loads before it stores one.
constexpr unsigned kScanned = 8;
// Of a row in a tile, with a thread each.
constexpr unsigned kScanParts = 8;

std::string number(uint64_t n) {
  return std::to_string(n);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Times its neighbours that a thread keeps from one pass over a row to the next.
constexpr unsigned kKept = 8;

class Emitter {
 public:
  Emitter(const Steps& steps, const Step& step, const Variant& variant, unsigned vector)
      : steps_(steps),
        step_(step),
        nodes_(step.nodes),
        variant_(variant),
        type_(steps.compute_type),
        own_(type_text(type_)),
        index_(variant.wide ? "hg_u64" : "hg_u32"),
        spreads_(spreads_of(nodes_, steps.operands, steps.structured)),
        turns_(turns_of(nodes_)) {
    kernel_.vector = vector;
    kernel_.needs_f64 = type_ == ComputeType::f64;
  }

  Kernel run() {
    if (variant_.joins) {
      joins();
    } else {
      switch (step_.skeleton) {
        case Skeleton::elements: elements(); break;
        case Skeleton::rows: rows(); break;
        case Skeleton::classes: classes(); break;
        case Skeleton::fold_down: fold_down(); break;
        case Skeleton::scan: scan(); break;
      }
    }
    return finish();
  }

 private:
  // ---- text ----

  void line(const std::string& text) { body_ += std::string(2 * depth_, ' ') + text + "\n"; }
  void open(const std::string& text) {
    line(text + " {");
    ++depth_;
  }
  void close() {
    --depth_;
    line("}");
  }
  static std::string value(uint16_t node) { return "v" + number(node); }
  static std::string fold(uint16_t node) { return "f" + number(node); }

  std::string apply(Op op, const std::string& type, const std::string& x, const std::string& y,
                    const std::string& z) {
    if (std::ranges::find(kernel_.ops, op) == kernel_.ops.end()) kernel_.ops.push_back(op);
    return std::string("hg_op_") + op_info(op).name + "<" + type + ">(" + x + ", " + y + ", " + z +
           ")";
  }
  // Of a fold, in its order: x comes before y.
  std::string join(Op op, const std::string& x, const std::string& y) {
    return apply(op, own_, x, y, own_ + "(0)");
  }

  // ---- arguments ----

  std::string buffer(const Buffer& its) { return "b" + number(kernel_.place_of(its)); }
  std::string operand(uint16_t which) { return buffer({false, which}); }
  std::string part(uint16_t which) { return buffer({true, which}); }

  // Parameters are named before all are known; fields are in the order in which they are needed.
  static std::string field(size_t at) { return "p" + number(at); }
  std::string parameter(Parameter its) {
    if (its.kind == Parameter::Kind::immediate)
      its.bytes = type_ == ComputeType::f32 ? 4 : 8;
    else if (its.kind == Parameter::Kind::bits || variant_.wide)
      its.bytes = 8;
    return "p." + field(kernel_.place_of(its));
  }
  std::string parameter(Parameter::Kind kind) { return parameter(Parameter{kind}); }
  std::string field_type(const Parameter& its) const {
    switch (its.kind) {
      case Parameter::Kind::immediate: return own_;
      case Parameter::Kind::bits: return "hg_u64";
      case Parameter::Kind::stride: return variant_.wide ? "hg_i64" : "hg_i32";
      default: return index_;
    }
  }

  // ---- where elements are ----
  //
  // e: the element of the space, c: its column, r: its row of all planes, m: that in its plane,
  // l: the plane. What of these a kernel needs is put before its body.

  std::string place(char which) {
    needed_ += needed_.find(which) == std::string::npos ? std::string(1, which) : "";
    return {which};
  }
  std::string place_of(Spread spread) {
    const auto columns = [&] { return parameter(Parameter::Kind::columns); };
    switch (spread) {
      case kOne: return "0";
      case kPlanes: return place('l');
      case kMiddle: return place('m');
      case kRows: return place('r');
      case kColumns: return place('c');
      case kPlanesAndColumns: return place('l') + " * " + columns() + " + " + place('c');
      case kMiddle | kColumns: return place('m') + " * " + columns() + " + " + place('c');
      default: return place('e');
    }
  }
  bool needs(char which) const { return needed_.find(which) != std::string::npos; }
  // Declares what is needed of them, given the row.
  std::string row_places(const std::string& indent = "") {
    std::string text;
    if (!needs('m') && !needs('l')) return text;
    const std::string rows = parameter(Parameter::Kind::rows);
    if (needs('m')) text += indent + "  const " + index_ + " m = r % " + rows + ";\n";
    if (needs('l')) text += indent + "  const " + index_ + " l = r / " + rows + ";\n";
    return text;
  }

  std::string place_in(uint16_t which) {
    const Operand& its = steps_.operands[which];
    if (its.layout == Layout::scalar) return "0";
    if (its.layout == Layout::strided) {
      is_strided_ = true;
      if (std::ranges::find(strided_, which) == strided_.end()) strided_.push_back(which);
      const auto at = std::ranges::find(strided_, which) - strided_.begin();
      return "s" + number(static_cast<uint64_t>(at));
    }
    return place_of(steps_.structured ? its.spread : kEach);
  }

  // ---- values ----

  // A value as it is used: a name, or a parameter.
  std::string use(uint16_t node) {
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

  // Whether a value that is rounded to a half dtype is kept as its bits: to be stored, or widened
  // where it is used.
  bool is_in_half(uint16_t i) const {
    const Node& node = nodes_[i];
    return type_ == ComputeType::f32 && (dtype_bit(node.dtype) & kHalves) != 0 &&
           node.kind != NodeKind::pick && is_rounded(nodes_, i, steps_.operands, type_);
  }
  static std::string half(uint16_t node) { return "h" + number(node); }
  // Whether it is a number that bf16 has.
  static bool is_of_bf16(const Node& node) {
    const bool is_held = node.kind == NodeKind::load || node.kind == NodeKind::cast ||
                         node.kind == NodeKind::compute;
    return is_held && node.dtype == DType::bf16;
  }
  // Whether numbers that bf16 has become one, rounded to it.
  bool stays_in_bf16(const Node& node) const {
    if (type_ != ComputeType::f32 || node.dtype != DType::bf16) return false;
    for (int k = 0; k < op_info(node.op).arity; ++k) {
      if (!is_of_bf16(nodes_[argument_of(node, k)])) return false;
    }
    return true;
  }
  // Whether a function has a form for that (dialect/functions.h).
  bool has_bf16_form(const Node& node) const {
    return op_info(node.op).has(kForBf16) && stays_in_bf16(node);
  }
  // Whether a NaN would be one that arithmetic has made, or a function: not one of memory.
  bool is_result(const Node& node) const {
    return node.kind == NodeKind::compute && op_info(node.op).exact == Exact::no;
  }
  // Whether that is all that becomes bf16.
  bool is_rounded_result(uint16_t i) const {
    const Node& node = nodes_[i];
    const Node& from = node.kind == NodeKind::cast ? nodes_[node.a] : node;
    const bool is_own = &from == &node || from.dtype == own_dtype(type_);
    return is_result(from) && is_own && node.dtype == DType::bf16;
  }
  std::string in_half(uint16_t i, const std::string& x) const {
    const Node& node = nodes_[i];
    if (is_rounded_result(i)) return "hg_bf16_of_result(" + x + ")";
    return "hg_convert<" + type_text(node.dtype) + ">(" + x + ")";
  }

  // The value of a node, rounded where it has to be.
  std::string rounded(uint16_t i, const std::string& x) const {
    return is_rounded(nodes_, i, steps_.operands, type_) ? rounded_text(x, type_, nodes_[i].dtype)
                                                         : x;
  }

  std::string loaded(const Node& node, const std::string& element) {
    const DType from = steps_.operands[node.a].dtype;
    return from == own_dtype(type_) ? element : "hg_convert<" + own_ + ">(" + element + ")";
  }
  // Elements that one call of the generator makes.
  unsigned drawn_at_once(const Node& node) const {
    const bool is_long =
        type_ == ComputeType::f64 || static_cast<Draw>(node.b) == Draw::long_integer;
    return is_long ? 2 : 4;
  }
  std::string bits(const Node& node, int i) {
    return parameter({Parameter::Kind::bits, 8, static_cast<uint16_t>(node.a + i)});
  }
  std::string drawn(uint16_t i) {
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
  bool has_words(const Node& node) const {
    return step_.skeleton == Skeleton::elements && kernel_.vector % drawn_at_once(node) == 0;
  }
  void emit_words(const std::vector<bool>& needed) {
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

  // The elements of an operand that a thread has side by side, in a register; empty where an
  // element is read by itself.
  std::string few_of(uint16_t i) {
    const uint16_t which = nodes_[i].a;
    if (has_neighbours_ && is_of_elements(i)) return "x" + operand(which) + "[u]";
    return in_vectors(which) ? "x" + operand(which) : "";
  }
  // The value of a node that is neither a fold nor a store, nor a pick, before it is rounded.
  std::string node_text(uint16_t i) {
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
        if (has_bf16_form(node)) {
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

  // Declares the value of a node that is neither a fold nor a store.
  void emit_node(uint16_t i) {
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
  bool is_by_divisor(uint16_t i) const {
    const Node& node = nodes_[i];
    return step_.skeleton == Skeleton::rows && type_ == ComputeType::f32 &&
           node.kind == NodeKind::compute && op_info(node.op).has(kQuotient) && is_of_elements(i) &&
           !is_of_elements(node.b) && nodes_[node.b].kind != NodeKind::immediate;
  }
  // Its name, by what quotients are rounded to.
  std::string divisor(const Node& quotient) const {
    return (stays_in_bf16(quotient) ? "dh" : "d") + number(quotient.b);
  }
  void emit_divisor(uint16_t i) {
    std::set<std::string> names;
    for (uint16_t k = 0; k < nodes_.size(); ++k) {
      if (is_by_divisor(k) && nodes_[k].b == i) names.insert(divisor(nodes_[k]));
    }
    for (const std::string& name : names) {
      const std::string type = name.starts_with("dh") ? "hg_bf16_divisor" : "hg_divisor";
      line("const " + type + " " + name + " = " + type + "_of(" + use(i) + ");");
    }
  }

  // ---- two elements at a time ----
  //
  // Where values are rounded to bf16, a turn of the loop over a thread's elements is of two
  // neighbours, and what is rounded lies in one word: one instruction rounds both, and adds or
  // multiplies both where the operands are such words, too (dialect/pairs.h).

  // Whether the elements of the step can be computed so: decided once, as one pass may keep values
  // for another.
  bool computes_two() const {
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
  // Whether a node has two values where the text is now.
  bool is_two(uint16_t i) const {
    return is_of_two_ && is_of_elements(i) && nodes_[i].kind != NodeKind::immediate;
  }
  // Whether they lie in a word: half(i).
  bool is_pair(uint16_t i) const {
    const Node& node = nodes_[i];
    if (!is_two_ || !is_of_elements(i)) return false;
    if (node.kind == NodeKind::load) {
      return node.dtype == DType::bf16 && steps_.operands[node.a].dtype == DType::bf16;
    }
    return is_in_half(i) && node.dtype == DType::bf16;
  }
  // The element of a turn that the text is of, and what its values' names end in.
  std::string element() const { return lane_ == 0 ? "k" : "k + 1u"; }
  std::string lane() const { return lane_ == 0 ? "a" : "b"; }
  // A text of the one element and of the other.
  template <class Text>
  std::pair<std::string, std::string> both(Text&& text) {
    lane_ = 0;
    std::string first = text();
    lane_ = 1;
    std::string second = text();
    lane_ = 0;
    return {std::move(first), std::move(second)};
  }
  std::string pair_of(uint16_t i) {
    if (is_two(i) && is_pair(i)) return half(i);
    const auto [a, b] = both([&] { return use(i); });
    return "hg_pair_of_held(" + a + ", " + b + ")";
  }
  void emit_two(uint16_t i) {
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
    if (node.kind == NodeKind::compute && op_info(node.op).has(kForPairs) && stays_in_bf16(node)) {
      return line(begin + "hg_pair_" + op_info(node.op).name + "(" + pair_of(node.a) + ", " +
                  pair_of(node.b) + ");");
    }
    const auto [a, b] = both([&] { return node_text(i); });
    line(begin + pair_text(is_rounded_result(i), in_half(i, a), in_half(i, b), a, b) + ";");
  }
  static std::string pair_text(bool of_results, const std::string& low, const std::string& high,
                               const std::string& a, const std::string& b) {
    return of_results ? "hg_pair_of_results(" + a + ", " + b + ")"
                      : "hg_pair(" + low + ", " + high + ")";
  }

  // The element of the row in the column that the row says: computed there.
  void emit_pick(uint16_t i) {
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

  // What is computed for elements, for a value; not through folds, nor picks.
  void need(uint16_t node, std::vector<bool>& needed) const {
    if (needed[node]) return;
    needed[node] = true;
    if (nodes_[node].kind == NodeKind::fold || nodes_[node].kind == NodeKind::pick ||
        nodes_[node].kind == NodeKind::scan) {
      return;
    }
    for (int k = 0; k < arity_of(nodes_[node]); ++k) need(argument_of(nodes_[node], k), needed);
  }

  // What folds and picks are made of as well: also of elements, which they compute themselves.
  void need_through(std::vector<bool>& needed) const {
    for (size_t i = nodes_.size(); i-- > 0;) {
      if (!needed[i]) continue;
      for (int k = 0; k < arity_of(nodes_[i]); ++k) need(argument_of(nodes_[i], k), needed);
    }
  }
  // Declares the values that there are one of for a row, of those that `needed` is made of.
  void emit_row_values(std::vector<bool> needed) {
    need_through(needed);
    emit_values(needed, false);
  }

  // Elements beside rows: what differs from column to column.
  bool is_of_elements(uint16_t node) const {
    return !steps_.structured ? spreads_[node] != kOne : has_columns(spreads_[node]);
  }

  // The values of `needed` that elements have, or that rows have.
  void emit_values(const std::vector<bool>& needed, bool of_elements) {
    for (uint16_t i = 0; i < nodes_.size(); ++i) {
      if (needed[i] && is_of_elements(i) == of_elements && !is_fold_or_scan(nodes_[i]))
        emit_node(i);
    }
  }

  // Whether what has been computed in f32 becomes bf16 only where it is stored.
  bool stores_rounded_result(const Node& store) const {
    const Node& from = nodes_[store.a];
    return steps_.operands[store.b].dtype == DType::bf16 && type_ == ComputeType::f32 &&
           from.dtype == DType::f32 && is_result(from);
  }
  std::string stored(const Node& store) {
    const DType to = steps_.operands[store.b].dtype;
    const Node& from = nodes_[store.a];
    if (to == from.dtype && is_in_half(store.a) && !(is_two(store.a) && is_pair(store.a))) {
      return half(store.a) + (is_two(store.a) ? lane() : "");
    }
    const std::string x = use(store.a);
    const bool is_held = from.kind == NodeKind::load || from.kind == NodeKind::cast ||
                         from.kind == NodeKind::compute;
    if (to == DType::bf16 && from.dtype == to && is_held && type_ == ComputeType::f32) {
      return "hg_bf16_of_held(" + x + ")";
    }
    if (stores_rounded_result(store)) return "hg_bf16_of_result(" + x + ")";
    return to == own_dtype(type_) ? x : "hg_convert<" + type_text(to) + ">(" + x + ")";
  }
  void emit_store(const Node& store) {
    line(operand(store.b) + "[" + place_in(store.b) + "] = " + stored(store) + ";");
  }

  // Puts what an element is to be, or two, among those that a thread stores at once.
  void emit_few_set(const Node& store) {
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

  std::vector<uint16_t> stores() const { return nodes_of(nodes_, NodeKind::store); }
  std::vector<uint16_t> folds_of_step() const { return nodes_of(nodes_, NodeKind::fold); }

  // The number of the thread, of those that have something to do.
  std::string thread_text() {
    const std::string block = variant_.many ? "HG_BID - hg_u32(row->block)" : "HG_BID";
    return "  const " + index_ + " t = " + index_ + "(" + block + ") * HG_BDIM + HG_LID;\n";
  }
  std::string return_text(const std::string& which) {
    return "  if (" + which + " >= " + parameter(Parameter::Kind::threads) + ") return;\n";
  }

  // ---- elements ----

  // Whether an operand is read or written a vector at a time.
  bool in_vectors(uint16_t which) const {
    if (kernel_.vector == 1 || step_.skeleton != Skeleton::elements) return false;
    const Operand& its = steps_.operands[which];
    if (its.layout != Layout::dense) return false;
    return !steps_.structured || has_columns(its.spread);
  }
  void elements() {
    const unsigned n = kernel_.vector;
    std::vector<bool> needed(nodes_.size());
    for (const uint16_t store : stores()) need(nodes_[store].a, needed);
    depth_ = 1;
    emit_row_values(needed);
    if (n == 1) {
      emit_values(needed, true);
      for (const uint16_t store : stores()) emit_store(nodes_[store]);
    } else {
      vectors(needed);
    }
    elements_prologue();
  }

  void elements_prologue() {
    std::string text = thread_text();
    if (kernel_.vector == 1) {
      text += return_text("t") + "  const " + index_ + " e = t;\n";
    } else {
      const std::string vector = number(kernel_.vector) + "u";
      text += "  const " + index_ + " e0 = t * " + vector + ";\n" + return_text("e0");
      const std::string threads = parameter(Parameter::Kind::threads);
      text += "  const hg_u32 left = " + threads + " - e0 < " + vector + " ? hg_u32(" + threads +
              " - e0) : " + vector + ";\n";
    }
    const std::string e = kernel_.vector == 1 ? "e" : "e0", c = kernel_.vector == 1 ? "c" : "c0";
    if (steps_.structured && !has_columns(step_.domain)) {
      if (needs('r') || needs('m') || needs('l')) {
        text += "  const " + index_ + " r = e;\n" + row_places();
      }
    } else if (needs('r') || needs('c') || needs('m') || needs('l')) {
      const std::string columns = parameter(Parameter::Kind::columns);
      if (needs('c')) text += "  const " + index_ + " " + c + " = " + e + " % " + columns + ";\n";
      if (needs('r') || needs('m') || needs('l')) {
        text += "  const " + index_ + " r = " + e + " / " + columns + ";\n" + row_places();
      }
    }
    if (is_strided_) text += strided_places();
    body_ = text + body_;
  }

  // Where the element of each strided operand lies.
  std::string strided_places() {
    const std::string step = variant_.wide ? "hg_i64" : "hg_i32";
    std::string text = "  " + index_ + " rest = e;\n";
    for (size_t k = 0; k < strided_.size(); ++k) text += "  " + step + " s" + number(k) + " = 0;\n";
    for (int d = variant_.rank - 1; d >= 0; --d) {
      const auto dimension = static_cast<uint8_t>(d);
      const std::string at = "d" + number(dimension);
      if (d == 0) {
        text += "  const " + step + " " + at + " = " + step + "(rest);\n";
      } else {
        const std::string size = parameter({Parameter::Kind::size, 4, 0, dimension});
        text += "  const " + step + " " + at + " = " + step + "(rest % " + size + ");\n";
        text += "  rest /= " + size + ";\n";
      }
      for (size_t k = 0; k < strided_.size(); ++k) {
        const std::string stride = parameter({Parameter::Kind::stride, 4, strided_[k], dimension});
        text += "  s" + number(k) + " += " + at + " * " + stride + ";\n";
      }
    }
    return text;
  }

  // The first element of a thread's in an operand.
  std::string first_place(uint16_t which) {
    const std::string columns =
        steps_.structured ? parameter(Parameter::Kind::columns) : std::string();
    switch (steps_.structured ? steps_.operands[which].spread : kEach) {
      case kColumns: place('c'); return "c0";
      case kPlanesAndColumns: place('c'); return place('l') + " * " + columns + " + c0";
      case kMiddle | kColumns: place('c'); return place('m') + " * " + columns + " + c0";
      default: return "e0";
    }
  }

  void vectors(const std::vector<bool>& needed) {
    const std::string vector = number(kernel_.vector) + "u";
    std::vector<uint16_t> in, out;
    for (uint16_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      if (node.kind == NodeKind::load && needed[i] && in_vectors(node.a)) in.push_back(node.a);
      if (node.kind == NodeKind::store && in_vectors(node.b)) out.push_back(node.b);
    }
    std::ranges::stable_sort(in);
    in.erase(std::unique(in.begin(), in.end()), in.end());
    const auto declare = [&](const std::string& name, uint16_t which) {
      line("hg_few<" + type_text(steps_.operands[which].dtype) + ", " + vector + "> " + name +
           operand(which) + ";");
    };
    for (const uint16_t which : in) declare("x", which);
    for (const uint16_t which : out) declare("y", which);
    if (!in.empty()) {
      open("if (left == " + vector + ")");
      for (const uint16_t which : in) {
        line("hg_load_few(x" + operand(which) + ", " + operand(which) + " + (" +
             first_place(which) + "));");
      }
      close();
      open("else");
      for (const uint16_t which : in) {
        line("hg_load_part(x" + operand(which) + ", " + operand(which) + " + (" +
             first_place(which) + "), left);");
      }
      close();
    }
    emit_words(needed);
    is_two_ = computes_two();
    each_element(kernel_.vector);
    is_of_two_ = is_two_;
    const size_t begin = body_.size();
    const std::string before = std::exchange(needed_, std::string());
    emit_values(needed, true);
    for (const uint16_t store : stores()) emit_few_set(nodes_[store]);
    is_of_two_ = false;
    const std::string indent(2 * depth_, ' ');
    std::string places;
    if (needs('e')) places += indent + "const " + index_ + " e = e0 + k;\n";
    if (needs('c')) places += indent + "const " + index_ + " c = c0 + k;\n";
    for (const char which : before) place(which);
    body_.insert(begin, places);
    close();
    open("if (left == " + vector + ")");
    for (const uint16_t which : out) {
      line("hg_store_few(" + operand(which) + " + (" + first_place(which) + "), y" +
           operand(which) + ");");
    }
    close();
    open("else");
    for (const uint16_t which : out) {
      line("hg_store_part(" + operand(which) + " + (" + first_place(which) + "), y" +
           operand(which) + ", left);");
    }
    close();
  }
  // Of so many of a thread's; unrolled, so that the elements stay in registers.
  void each_element(unsigned count) {
    line("HG_UNROLL");
    open("for (hg_u32 k = 0; k < " + number(count) + "u; " + (is_two_ ? "k += 2u" : "++k") + ")");
  }

  // ---- joining neighbours ----
  //
  // What comes one after the other is joined as it comes: as the bits of a binary number, each
  // standing for twice as many as the one below it.

  void declare_stack(uint16_t i) {
    line(own_ + " " + fold(i) + "s[48];");
    line("hg_u32 " + fold(i) + "d = 0;");
  }
  // `x` is number `at`.
  void push(uint16_t i, Op op, const std::string& x, const std::string& at) {
    const std::string stack = fold(i) + "s", depth = fold(i) + "d";
    open("");
    line(own_ + " y = " + x + ";");
    line("for (" + index_ + " q = " + at +
         "; (q & 1) != 0; q >>= 1) y = " + join(op, stack + "[--" + depth + "]", "y") + ";");
    line(stack + "[" + depth + "++] = y;");
    close();
  }
  void pop_all(uint16_t i, Op op, const std::string& name) {
    const std::string stack = fold(i) + "s", depth = fold(i) + "d";
    line(own_ + " " + name + " = " + stack + "[--" + depth + "];");
    line("while (" + depth + " != 0) " + name + " = " +
         join(op, stack + "[--" + depth + "]", name) + ";");
  }

  // ---- rows ----

  unsigned accumulators() const { return accumulators_of(type_); }
  bool is_warp() const { return variant_.team == Team::warp; }
  unsigned accumulators_of_thread() const { return accumulators() / kWarp; }

  void rows() {
    depth_ = 1;
    std::vector<bool> needed(nodes_.size());
    std::vector<uint16_t> of_elements, of_rows;
    for (const uint16_t store : stores()) {
      need(nodes_[store].a, needed);
      const bool each = has_columns(steps_.operands[nodes_[store].b].spread);
      (each ? of_elements : of_rows).push_back(store);
    }
    need_through(needed);
    const int last = *std::ranges::max_element(turns_);
    const auto folds_of = [&](int turn) {
      return nodes_where(nodes_, [&](const Node& node, uint16_t i) {
        return is_row_fold(node) && turns_[i] == turn;
      });
    };
    std::vector<std::vector<uint16_t>> passes;
    for (int turn = 1; turn <= last + 1; ++turn) {
      if (const auto folds = folds_of(turn); !folds.empty()) passes.push_back(values_of(folds, {}));
    }
    if (!of_elements.empty()) passes.push_back(values_of({}, of_elements));
    is_two_ = computes_two();
    choose_held(passes);
    for (int turn = 0; turn <= last; ++turn) {
      for (uint16_t i = 0; i < nodes_.size(); ++i) {
        if (needed[i] && turns_[i] == turn && !is_of_elements(i) && !is_fold_or_scan(nodes_[i])) {
          emit_node(i);
        }
      }
      const auto folds = folds_of(turn + 1);
      if (!folds.empty()) pass(folds, {});
      for (const uint16_t i : folds) emit_divisor(i);
    }
    if (!of_elements.empty()) pass({}, of_elements);
    if (!of_rows.empty()) {
      open(is_warp() ? "if (HG_LANE == 0)" : "if (HG_LID == 0)");
      for (const uint16_t store : of_rows) emit_store(nodes_[store]);
      close();
    }
    std::string text = has_shared_ ? shared_text() : "";
    text += held_text();
    if (is_warp()) {
      text += "  const " + index_ + " r = " + index_ +
              "(HG_BID) * (HG_BDIM / HG_WARP) + HG_WARP_ID;\n" + return_text("r");
    } else {
      text += "  const " + index_ + " r = HG_BID;\n";
    }
    body_ = text + row_places() + body_;
  }

  // A number of each warp of a block.
  std::string shared_text() const {
    return "  HG_SHARED(" + own_ + ", shared, " + number(most_threads(type_) / kWarp) + ")\n";
  }

  // ---- what stays in registers ----
  //
  // A warp that goes through a row several times keeps a value of its first elements from one pass
  // to the next: the last one from which all later passes can compute what they need without a load
  // of what rows have of their own. So neither memory is read again nor a function computed again.

  struct Held {
    std::optional<uint16_t> read, written;  // by a pass
  };

  // What a pass computes for elements, given one value.
  std::vector<bool> needed_beside(const std::vector<uint16_t>& values,
                                  std::optional<uint16_t> given) const {
    std::vector<bool> needed(nodes_.size());
    if (given) needed[*given] = true;
    for (const uint16_t i : values) need(i, needed);
    if (given) needed[*given] = false;
    return needed;
  }
  bool loads_rows(const std::vector<bool>& needed) const {
    for (uint16_t i = 0; i < nodes_.size(); ++i) {
      if (!needed[i] || !is_of_elements(i)) continue;
      if (nodes_[i].kind == NodeKind::random) return true;
      if (nodes_[i].kind == NodeKind::load && (spreads_[i] & kRows) != 0) return true;
    }
    return false;
  }
  // `passes`: the values of elements that each of them folds or stores.
  void choose_held(const std::vector<std::vector<uint16_t>>& passes) {
    helds_.assign(passes.size(), {});
    if (!is_warp() || variant_.several || !variant_.vectors || type_ != ComputeType::f32) return;
    const auto serves = [&](uint16_t value, size_t from) {
      bool is_read = false;
      for (size_t q = from; q < passes.size(); ++q) {
        if (loads_rows(needed_beside(passes[q], value))) return false;
        is_read = is_read || needed_beside(passes[q], std::nullopt)[value];
      }
      return is_read;
    };
    for (size_t p = 0; p + 1 < passes.size(); ++p) {
      std::vector<bool> computed = needed_beside(passes[p], helds_[p].read);
      if (helds_[p].read) computed[*helds_[p].read] = true;
      for (size_t i = nodes_.size(); i-- > 0;) {
        const auto value = static_cast<uint16_t>(i);
        const NodeKind kind = nodes_[i].kind;
        const bool may_be =
            kind == NodeKind::load || kind == NodeKind::compute || kind == NodeKind::cast;
        if (!computed[i] || !may_be || !is_of_elements(value) || !serves(value, p + 1)) continue;
        helds_[p].written = helds_[p + 1].read = value;
        break;
      }
    }
  }
  std::string held(uint16_t value) const {
    return "kept" + number(value) + "[" + held_index_ + "][" +
           (is_pair(value) ? "k / 2u" : element()) + "]";
  }
  std::string held_name(uint16_t i) const {
    const std::string name = is_in_half(i) || is_pair(i) ? half(i) : value(i);
    return name + (is_two(i) && !is_pair(i) ? lane() : "");
  }
  std::string held_type(uint16_t i) const {
    return is_pair(i) ? "hg_bf16x2" : is_in_half(i) ? type_text(nodes_[i].dtype) : own_;
  }
  // Emits a line for each name that the value has in a turn.
  template <class Text>
  void each_held(uint16_t i, Text&& text) {
    if (!is_two(i) || is_pair(i)) return line(text());
    const auto [a, b] = both(text);
    line(a);
    line(b);
  }
  bool reads_held(const std::vector<uint16_t>& folds, const std::vector<uint16_t>& stored) const {
    return needed_beside(values_of(folds, stored), std::nullopt)[*held_.read];
  }
  // What folds and stores take in.
  std::vector<uint16_t> values_of(const std::vector<uint16_t>& folds,
                                  const std::vector<uint16_t>& stored) const {
    std::vector<uint16_t> values;
    for (const uint16_t i : folds) values.push_back(nodes_[i].a);
    for (const uint16_t i : stored) values.push_back(nodes_[i].a);
    return values;
  }
  std::string held_text() const {
    std::string text;
    std::set<uint16_t> all;
    for (const Held& its : helds_) {
      if (its.written && all.insert(*its.written).second) {
        text += "  " + held_type(*its.written) + " kept" + number(*its.written) + "[" +
                number(kKept) + "][" +
                number(accumulators_of_thread() / (is_pair(*its.written) ? 2 : 1)) + "];\n";
      }
    }
    return text;
  }

  // Over the elements of a row, by classes.
  void pass(const std::vector<uint16_t>& folds, const std::vector<uint16_t>& stored) {
    held_ = helds_[pass_++];
    const std::string of_class = number(static_cast<uint64_t>(class_elements(type_))) + "u";
    const std::string columns = parameter(Parameter::Kind::columns);
    if (variant_.several) {
      for (const uint16_t i : folds) declare_stack(i);
      // A block has a class for each of its warps.
      const std::string at_once = is_warp() ? "1u" : "HG_BDIM / HG_WARP";
      open("for (" + index_ + " first = 0; first * " + of_class + " < " + columns +
           "; first += " + at_once + ")");
      line("const " + index_ + " begin = (first" + (is_warp() ? "" : " + HG_WARP_ID") + ") * " +
           of_class + ";");
      line("const " + index_ + " end = begin + " + of_class + " < " + columns + " ? begin + " +
           of_class + " : " + columns + ";");
      of_one_class(folds, stored, [&](uint16_t i) {
        const Op op = nodes_[i].op;
        if (is_warp()) return push(i, op, value(i) + "c", "first");
        join_warps(i, columns, of_class);
        push(i, op, value(i) + "c", "first / (HG_BDIM / HG_WARP)");
      });
      close();
      for (const uint16_t i : folds) pop_all(i, nodes_[i].op, value(i));
    } else {
      for (const uint16_t i : folds) line(own_ + " " + value(i) + ";");
      open("");
      line("const " + index_ + " begin = 0;");
      line("const " + index_ + " end = " + columns + ";");
      of_one_class(folds, stored, [&](uint16_t i) { line(value(i) + " = " + value(i) + "c;"); });
      close();
    }
  }

  // Joins neighbours of the results of a block's warps, from class `first` on: what has none on its
  // right stays. All threads have the whole.
  void join_warps(uint16_t i, const std::string& columns, const std::string& of_class) {
    const std::string at_once = "HG_BDIM / HG_WARP";
    const Op op = nodes_[i].op;
    const std::string x = value(i) + "c";
    has_shared_ = true;
    line("if (HG_LANE == 0) shared[HG_WARP_ID] = " + x + ";");
    line("HG_SYNC();");
    line(x + " = shared[HG_LANE < " + at_once + " ? HG_LANE : 0u];");
    line("HG_UNROLL");
    open("for (hg_u32 k = 1u; k < HG_WARP; k <<= 1)");
    line("const " + own_ + " other = hg_shfl_xor(" + x + ", k);");
    line("const bool is_low = (HG_LANE & k) == 0u;");
    line("const " + own_ + " low = is_low ? " + x + " : other;");
    line("const hg_u32 right = (HG_LANE | k) & ~(k - 1u);");
    line("const bool is_there = right < " + at_once + " && (first + right) * " + of_class + " < " +
         columns + ";");
    line(x + " = is_there ? " + join(op, "low", "is_low ? other : " + x) + " : low;");
    close();
    line("HG_SYNC();");
  }

  // Of what elements have.
  bool has_no_functions(const std::vector<bool>& needed) const {
    return std::ranges::none_of(nodes_where(nodes_,
                                            [&](const Node& node, uint16_t i) {
                                              return needed[i] && node.kind == NodeKind::compute &&
                                                     is_of_elements(i);
                                            }),
                                [&](uint16_t i) {
                                  const Cost cost = op_info(nodes_[i].op).cost;
                                  return cost == Cost::function || cost == Cost::short_function;
                                });
  }

  // A warp's, from `begin` to `end`. take(i) emits what takes the result of a fold, v<i>c.
  template <class Take>
  void of_one_class(const std::vector<uint16_t>& folds, const std::vector<uint16_t>& stored,
                    Take&& take) {
    const unsigned n = accumulators_of_thread();
    for (const uint16_t i : folds) {
      line(own_ + " " + fold(i) + "[" + number(n) + "];");
      line("HG_UNROLL");
      line("for (hg_u32 k = 0; k < " + number(n) + "u; ++k) " + fold(i) +
           "[k] = " + identity_text(op_info(nodes_[i].op), type_) + ";");
    }
    const std::vector<uint16_t> values = values_of(folds, stored);
    const std::vector<bool> needed = needed_beside(values, std::nullopt);
    const unsigned several = several_of(needed);
    const std::string at_once = number(several * accumulators()) + "u";
    line(index_ + " at = begin;");
    if (held_.read || held_.written) {
      const std::vector<bool> computed = needed_beside(values, held_.read);
      const unsigned step = several_of(computed);
      open("if (at + " + number(kKept * accumulators()) + "u <= end)");
      if (step < kKept) {
        line("HG_UNROLL");
        open("for (hg_u32 g = 0; g < " + number(kKept / step) + "u; ++g)");
      }
      held_index_ = step < kKept ? "g * " + number(step) + "u + u" : "u";
      neighbours(computed, folds, stored, step, false);
      held_index_.clear();
      line("at += " + number(step * accumulators()) + "u;");
      if (step < kKept) close();
      close();
    }
    open("for (; at + " + at_once + " <= end; at += " + at_once + ")");
    neighbours(needed, folds, stored, several, false);
    close();
    open("for (; at < end; at += " + number(accumulators()) + "u)");
    open("if (at + HG_LANE * " + number(n) + "u < end)");
    neighbours(needed, folds, stored, 1, true);
    close();
    close();
    for (const uint16_t i : folds) {
      warp_tree(i);
      take(i);
    }
  }

  // A thread has neighbours, of which it reads as many as it can before it needs the first.
  unsigned several_of(const std::vector<bool>& needed) const {
    const size_t operands = operands_of_elements(needed).size();
    const unsigned most = operands <= 1 ? kKept : operands == 2 ? 4 : operands == 3 ? 2 : 1;
    return type_ == ComputeType::f32 && has_no_functions(needed) ? most : (most + 1) / 2;
  }

  // Of those that are loaded, each once.
  std::vector<uint16_t> operands_of_elements(const std::vector<bool>& needed) const {
    std::vector<uint16_t> which;
    for (uint16_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      if (node.kind == NodeKind::load && needed[i] && is_of_elements(i)) which.push_back(node.a);
    }
    std::ranges::stable_sort(which);
    which.erase(std::unique(which.begin(), which.end()), which.end());
    return which;
  }

  // `several` times the elements of a row that a thread has side by side; `last`: those before
  // `end`, of which there is one at least.
  void neighbours(const std::vector<bool>& needed, const std::vector<uint16_t>& folds,
                  const std::vector<uint16_t>& stored, unsigned several, bool last) {
    const std::string n = number(accumulators_of_thread()) + "u";
    const bool is_part = last && !variant_.vectors;
    const std::string columns = parameter(Parameter::Kind::columns);
    const auto each = [&](const std::function<void()>& body) {
      line("HG_UNROLL");
      open("for (hg_u32 u = 0; u < " + number(several) + "u; ++u)");
      const std::string before = std::exchange(body_, "");
      body();
      // What of the places is read.
      const std::string inside = std::exchange(body_, before);
      const bool has_count = is_part && inside.find("count") != std::string::npos;
      const bool has_element = inside.find("e0") != std::string::npos;
      if (has_count || has_element || inside.find("c0") != std::string::npos) {
        line("const " + index_ + " c0 = at + u * " + number(accumulators()) + "u + HG_LANE * " + n +
             ";");
      }
      if (has_element) line("const " + index_ + " e0 = r * " + columns + " + c0;");
      if (has_count) {
        line("const hg_u32 count = end - c0 < " + n + " ? hg_u32(end - c0) : " + n + ";");
      }
      body_ += inside;
      close();
    };
    const auto few = [&](uint16_t which) {
      return "hg_few<" + type_text(steps_.operands[which].dtype) + ", " + n + "> ";
    };
    const std::string how = is_part ? "part" : variant_.vectors ? "few" : "each";
    const std::string count = is_part ? ", count" : "";
    const auto loads = operands_of_elements(needed);
    for (const uint16_t which : loads) {
      line(few(which) + "x" + operand(which) + "[" + number(several) + "];");
    }
    if (!loads.empty()) {
      each([&] {
        for (const uint16_t which : loads) {
          line("hg_load_" + how + "(x" + operand(which) + "[u], " + operand(which) + " + (" +
               first_place(which) + ")" + count + ");");
        }
      });
    }
    each([&] {
      for (const uint16_t i : stored) {
        line(few(nodes_[i].b) + "y" + operand(nodes_[i].b) + ";");
      }
      each_element(accumulators_of_thread());
      is_of_two_ = is_two_;
      const size_t begin = body_.size();
      const std::string before = std::exchange(needed_, std::string());
      has_neighbours_ = true;
      const bool is_holding = !held_index_.empty();
      if (is_holding && held_.read && reads_held(folds, stored)) {
        const uint16_t i = *held_.read;
        each_held(i, [&] {
          return "const " + held_type(i) + " " + held_name(i) + " = " + held(i) + ";";
        });
      }
      emit_values(needed, true);
      has_neighbours_ = false;
      if (is_holding && held_.written && held_.written != held_.read) {
        const uint16_t i = *held_.written;
        each_held(i, [&] { return held(i) + " = " + held_name(i) + ";"; });
      }
      for (const uint16_t i : stored) emit_few_set(nodes_[i]);
      for (unsigned turn = 0; !folds.empty() && turn < (is_of_two_ ? 2 : 1); ++turn) {
        lane_ = turn;
        if (is_part) open("if (" + element() + " < count)");
        for (const uint16_t i : folds) {
          const std::string its = fold(i) + "[" + element() + "]";
          line(its + " = " + join(nodes_[i].op, its, use(nodes_[i].a)) + ";");
        }
        if (is_part) close();
      }
      lane_ = 0;
      is_of_two_ = false;
      const std::string indent(2 * depth_, ' ');
      std::string places;
      if (needs('e')) places += indent + "const " + index_ + " e = e0 + k;\n";
      if (needs('c')) places += indent + "const " + index_ + " c = c0 + k;\n";
      for (const char which : before) place(which);
      body_.insert(begin, places);
      close();
      for (const uint16_t i : stored) {
        const uint16_t which = nodes_[i].b;
        line("hg_store_" + how + "(" + operand(which) + " + (" + first_place(which) + "), y" +
             operand(which) + count + ");");
      }
    });
  }

  // The accumulators of a warp, of which a thread has neighbours: the upper half joins the lower
  // one, down to one, which all threads have. While a thread has several it gives the half of them
  // that its partner goes on with; the partners meet again at the end.
  void warp_tree(uint16_t i) {
    const Op op = nodes_[i].op;
    const std::string result = value(i) + "c";
    const auto step = [&](const std::string& lanes, unsigned n) {
      open("");
      line("const bool is_low = (HG_LANE & " + lanes + ") == 0u;");
      for (unsigned k = 0; k < n; ++k) {
        const std::string low = fold(i) + "[" + number(k) + "]";
        const std::string high = fold(i) + "[" + number(k + n) + "]";
        line("const " + own_ + " other" + number(k) + " = hg_shfl_xor(is_low ? " + high + " : " +
             low + ", " + lanes + ");");
        line(low + " = " +
             join(op, "is_low ? " + low + " : other" + number(k),
                  "is_low ? other" + number(k) + " : " + high) +
             ";");
      }
      close();
    };
    unsigned lanes = kWarp / 2;
    for (unsigned n = accumulators_of_thread() / 2; n > 0; n /= 2, lanes /= 2) {
      step(number(lanes) + "u", n);
    }
    line(own_ + " " + result + " = " + fold(i) + "[0];");
    const auto whole = [&](const std::string& from, const std::string& to) {
      line("HG_UNROLL");
      open("for (hg_u32 k = " + from + "; k > " + to + "; k >>= 1)");
      line("const " + own_ + " other = hg_shfl_xor(" + result + ", k);");
      line("const bool is_low = (HG_LANE & k) == 0u;");
      line(result + " = " +
           join(op, "is_low ? " + result + " : other", "is_low ? other : " + result) + ";");
      close();
    };
    whole(number(lanes) + "u", "0u");
    whole(number(kWarp / 2) + "u", number(lanes) + "u");
  }

  // ---- classes ----

  // A warp for each class of some of a row, which the warps of a block join: a partial result.
  void classes() {
    depth_ = 1;
    is_two_ = computes_two();
    const auto folds = folds_of_step();
    std::vector<bool> needed(nodes_.size());
    for (const uint16_t i : folds) need(nodes_[i].a, needed);
    emit_row_values(needed);
    const std::string of_class = number(static_cast<uint64_t>(class_elements(type_))) + "u";
    const std::string columns = parameter(Parameter::Kind::columns);
    const std::string parts = parameter(Parameter::Kind::parts);
    line("const " + index_ + " first = t % " + parts + " * (HG_BDIM / HG_WARP);");
    line("const " + index_ + " begin = (first + HG_WARP_ID) * " + of_class + ";");
    line("const " + index_ + " end = begin + " + of_class + " < " + columns + " ? begin + " +
         of_class + " : " + columns + ";");
    of_one_class(folds, {}, [&](uint16_t i) { join_warps(i, columns, of_class); });
    const bool is_whole = variant_.team == Team::block;
    if (is_whole) line("HG_SHARED(hg_u32, is_last, 1)");
    open("if (HG_LID == 0)");
    for (size_t k = 0; k < folds.size(); ++k) {
      line(part(static_cast<uint16_t>(k)) + "[t] = " + value(folds[k]) + "c;");
    }
    if (is_whole) {
      const std::string counter = buffer({.is_counters = true}) + " + r";
      line("hg_device_fence();");
      line("is_last[0] = hg_atomic_add(" + counter + ", 1u) == hg_u32(" + parts +
           ") - 1u ? 1u : 0u;");
      line("if (is_last[0] != 0u) hg_atomic_exchange(" + counter + ", 0u);");
    }
    close();
    if (is_whole) {
      line("HG_SYNC();");
      open("if (is_last[0] != 0u)");
      line("hg_device_fence();");
      line("const " + index_ + " t = r;");
      join_by_block(folds);
      close();
    }
    body_ = shared_text() + "  const " + index_ + " t = HG_BID;\n  const " + index_ + " r = t / " +
            parts + ";\n" + row_places() + body_;
  }

  // ---- folds over rows ----

  void fold_down() {
    depth_ = 1;
    const auto folds = folds_of_step();
    const std::string columns = parameter(Parameter::Kind::columns);
    const std::string rows = parameter(Parameter::Kind::rows);
    const std::string chunk = number(static_cast<uint64_t>(kFoldRows)) + "u";
    const std::string n = number(down_columns()) + "u";
    std::string text = thread_text() + return_text("t");
    const std::string of_row = down_columns() == 1 ? columns : "(" + columns + " / " + n + ")";
    if (variant_.parts) {
      const std::string parts = parameter(Parameter::Kind::parts);
      const std::string part_rows = parameter(Parameter::Kind::part_rows);
      text += "  const " + index_ + " l = t / " + of_row + " / " + parts + ";\n";
      text += "  const " + index_ + " first = t / " + of_row + " % " + parts + " * " + part_rows +
              ";\n";
      text += "  const " + index_ + " last = first + " + part_rows + " < " + rows + " ? first + " +
              part_rows + " : " + rows + ";\n";
    } else {
      text += "  const " + index_ + " l = t / " + of_row + ";\n";
      text += "  const " + index_ + " first = 0;\n  const " + index_ + " last = " + rows + ";\n";
    }
    for (const uint16_t i : folds) {
      line(own_ + " " + fold(i) + "[" + n + "], " + fold(i) + "s[48u * " + n + "];");
      line("hg_u32 " + fold(i) + "d = 0;");
    }
    open("for (" + index_ + " begin = first, number = 0; begin < last; begin += " + chunk +
         ", ++number)");
    for (const uint16_t i : folds) {
      each_column(fold(i) + "[k] = " + identity_text(op_info(nodes_[i].op), type_) + ";");
    }
    line(index_ + " at = begin;");
    std::vector<bool> needed(nodes_.size());
    for (const uint16_t i : folds) need(nodes_[i].a, needed);
    // All rows of a chunk are loaded before they are folded, where not too many operands are.
    const size_t operands = operands_of_elements(needed).size();
    const unsigned several = operands <= 1 ? 16 : operands <= 2 ? 8 : 4;
    static_assert(kFoldRows == 16);
    const std::string at_once = number(several) + "u";
    open("if (begin + " + chunk + " <= last)");
    const std::string loop = "for (; at < begin + " + chunk + "; at += " + at_once + ")";
    open(several == kFoldRows ? "" : loop);
    down_rows(needed, folds, several);
    close();
    if (several == kFoldRows) line("at = last;");
    close();
    open("else");
    open("for (; at < last; ++at)");
    down_rows(needed, folds, 1);
    close();
    close();
    for (const uint16_t i : folds) {
      const std::string stack = fold(i) + "s[", depth = fold(i) + "d";
      open("for (" + index_ + " q = number; (q & 1) != 0; q >>= 1)");
      line("--" + depth + ";");
      each_column(fold(i) + "[k] = " +
                  join(nodes_[i].op, stack + depth + " * " + n + " + k]", fold(i) + "[k]") + ";");
      close();
      each_column(stack + depth + " * " + n + " + k] = " + fold(i) + "[k];");
      line("++" + depth + ";");
    }
    close();
    for (const uint16_t i : folds) {
      const std::string stack = fold(i) + "s[", depth = fold(i) + "d";
      line("--" + depth + ";");
      each_column(fold(i) + "[k] = " + stack + depth + " * " + n + " + k];");
      open("while (" + depth + " != 0)");
      line("--" + depth + ";");
      each_column(fold(i) + "[k] = " +
                  join(nodes_[i].op, stack + depth + " * " + n + " + k]", fold(i) + "[k]") + ";");
      close();
    }
    const auto store = [&](const std::string& type, const std::string& to, const std::string& how,
                           const std::function<void()>& set) {
      open("");
      line("hg_few<" + type + ", " + n + "> y;");
      line("HG_UNROLL");
      open("for (hg_u32 k = 0; k < " + n + "; ++k)");
      set();
      close();
      line("hg_store_" + how + "(" + to + " + t * " + n + ", y);");
      close();
    };
    if (variant_.parts) {
      for (size_t k = 0; k < folds.size(); ++k) {
        store(own_, part(static_cast<uint16_t>(k)), "few",
              [&] { line("hg_few_set(y, k, " + fold(folds[k]) + "[k]);"); });
      }
    } else {
      for (const uint16_t i : stores()) {
        const Node& node = nodes_[i];
        store(type_text(steps_.operands[node.b].dtype), operand(node.b),
              variant_.vectors ? "few" : "each", [&] {
                line("const " + own_ + " " + value(node.a) + " = " + fold(node.a) + "[k];");
                line("hg_few_set(y, k, " + stored(node) + ");");
              });
      }
    }
    if (body_.find("c0") != std::string::npos) {
      text += "  const " + index_ + " c0 = t % " + of_row + " * " + n + ";\n";
    }
    body_ = text + body_;
  }
  // Columns of a thread.
  unsigned down_columns() const { return variant_.vectors ? accumulators_of_thread() : 1; }
  void each_column(const std::string& text) {
    line("HG_UNROLL");
    line("for (hg_u32 k = 0; k < " + number(down_columns()) + "u; ++k) " + text);
  }
  // Folds the elements of a thread in so many rows, from row `at` of the plane on.
  void down_rows(const std::vector<bool>& needed, const std::vector<uint16_t>& folds,
                 unsigned several) {
    const std::string n = number(down_columns()) + "u";
    const std::string columns = parameter(Parameter::Kind::columns);
    const std::string rows = parameter(Parameter::Kind::rows);
    const auto each = [&](const std::function<void()>& body) {
      line("HG_UNROLL");
      open("for (hg_u32 u = 0; u < " + number(several) + "u; ++u)");
      needed_.clear();
      const std::string before = std::exchange(body_, "");
      body();
      const std::string inside = std::exchange(body_, before);
      const bool has_element = inside.find("e0") != std::string::npos;
      const bool has_row = has_element || needs('r');
      if (has_row || needs('m')) line("const " + index_ + " m = at + u;");
      if (has_row) line("const " + index_ + " r = l * " + rows + " + m;");
      if (has_element) line("const " + index_ + " e0 = r * " + columns + " + c0;");
      body_ += inside;
      needed_.clear();
      close();
    };
    const auto loads = operands_of_elements(needed);
    for (const uint16_t which : loads) {
      line("hg_few<" + type_text(steps_.operands[which].dtype) + ", " + n + "> x" + operand(which) +
           "[" + number(several) + "];");
    }
    if (!loads.empty()) {
      each([&] {
        for (const uint16_t which : loads) {
          line(std::string("hg_load_") + (variant_.vectors ? "few_once" : "each") + "(x" +
               operand(which) + "[u], " + operand(which) + " + (" + first_place(which) + "));");
        }
      });
    }
    each([&] {
      emit_values(needed, false);
      line("HG_UNROLL");
      open("for (hg_u32 k = 0; k < " + n + "; ++k)");
      const size_t begin = body_.size();
      has_neighbours_ = true;
      emit_values(needed, true);
      has_neighbours_ = false;
      for (const uint16_t i : folds) {
        line(fold(i) + "[k] = " + join(nodes_[i].op, fold(i) + "[k]", use(nodes_[i].a)) + ";");
      }
      const std::string indent(2 * depth_, ' ');
      std::string places;
      if (needs('e')) places += indent + "const " + index_ + " e = e0 + k;\n";
      if (needs('c')) places += indent + "const " + index_ + " c = c0 + k;\n";
      body_.insert(begin, places);
      close();
    });
  }
  // What the values of some folds or scans are of, for one element.
  void emit_all(const std::vector<uint16_t>& of) {
    std::vector<bool> needed(nodes_.size());
    for (const uint16_t i : of) need(nodes_[i].a, needed);
    for (uint16_t i = 0; i < nodes_.size(); ++i) {
      if (needed[i] && !is_fold_or_scan(nodes_[i])) emit_node(i);
    }
  }
  // There is a thread for each element of the results.
  void store_joined() {
    for (const uint16_t store : stores()) {
      line(operand(nodes_[store].b) + "[t] = " + stored(nodes_[store]) + ";");
    }
  }

  // Joins partial results, of each value all, or a power of two of them.
  void joins() {
    if (variant_.team == Team::block) return joins_of_block();
    depth_ = 1;
    const auto folds = folds_of_step();
    const std::string parts = parameter(Parameter::Kind::parts);
    // Of a fold over rows the columns lie side by side.
    const bool down = step_.skeleton == Skeleton::fold_down;
    const std::string columns = down ? parameter(Parameter::Kind::columns) : "1u";
    std::string text = thread_text() + return_text("t");
    text += "  const " + index_ + " c = t % " + columns + ";\n";
    if (variant_.parts) {
      const std::string joined = parameter(Parameter::Kind::joined);
      const std::string of_one = parameter(Parameter::Kind::part_rows);
      text += "  const " + index_ + " l = t / " + columns + " / " + joined + ";\n";
      text +=
          "  const " + index_ + " first = t / " + columns + " % " + joined + " * " + of_one + ";\n";
      text += "  const " + index_ + " count = first + " + of_one + " < " + parts + " ? " + of_one +
              " : " + parts + " - first;\n";
    } else {
      text += "  const " + index_ + " l = t / " + columns + ";\n";
      text += "  const " + index_ + " first = 0;\n  const " + index_ + " count = " + parts + ";\n";
    }
    for (const uint16_t i : folds) declare_stack(i);
    join_parts(folds, [&](const std::string& number) {
      return "(l * " + parts + " + first + " + number + ") * " + columns + " + c";
    });
    for (const uint16_t i : folds) pop_all(i, nodes_[i].op, value(i));
    if (variant_.parts) {
      for (size_t k = 0; k < folds.size(); ++k) {
        line(part(static_cast<uint16_t>(folds.size() + k)) + "[t] = " + value(folds[k]) + ";");
      }
    } else {
      store_joined();
    }
    body_ = text + body_;
  }

  // Pushes `count` partial results, 16 at a time, which are loaded at once. Neighbours join, and
  // what has none on its right stays: as it would in the end.
  void join_parts(const std::vector<uint16_t>& folds,
                  const std::function<std::string(const std::string&)>& place) {
    open("for (" + index_ + " number = 0; number < count; number += 16u)");
    line("const hg_u32 left = count - number < 16u ? hg_u32(count - number) : 16u;");
    for (const uint16_t i : folds) line(own_ + " " + fold(i) + "x[16];");
    line("HG_UNROLL");
    open("for (hg_u32 k = 0; k < 16u; ++k)");
    line("const " + index_ + " at = " + place("number + (k < left ? k : 0u)") + ";");
    for (size_t k = 0; k < folds.size(); ++k) {
      const std::string from = part(static_cast<uint16_t>(k));
      line(fold(folds[k]) +
           "x[k] = " + (variant_.joins ? from + "[at]" : "hg_load_fresh(" + from + " + at)") + ";");
    }
    close();
    for (const uint16_t i : folds) {
      const std::string x = fold(i) + "x";
      for (unsigned distance = 1; distance < 16; distance *= 2) {
        line("HG_UNROLL");
        open("for (hg_u32 k = 0; k < 16u; k += " + hologram::gpu::number(2 * distance) + "u)");
        const std::string next = "k + " + hologram::gpu::number(distance) + "u";
        line("if (" + next + " < left) " + x +
             "[k] = " + join(nodes_[i].op, x + "[k]", x + "[" + next + "]") + ";");
        close();
      }
      push(i, nodes_[i].op, x + "[0]", "number / 16u");
    }
    close();
  }

  // All of a value, with a block: a thread joins neighbours, a power of two of them, and then
  // threads do.
  void joins_of_block() {
    depth_ = 1;
    join_by_block(folds_of_step());
    body_ = shared_text() + "  const " + index_ + " t = HG_BID;\n" + body_;
  }
  // Those of value t.
  void join_by_block(const std::vector<uint16_t>& folds) {
    const std::string parts = parameter(Parameter::Kind::parts);
    const std::string of_one = parameter(Parameter::Kind::part_rows);
    line("const " + index_ + " first = HG_LID * " + of_one + ";");
    line("const " + index_ + " rest = first < " + parts + " ? " + parts + " - first : 0u;");
    line("const " + index_ + " count = rest < " + of_one + " ? rest : " + of_one + ";");
    for (const uint16_t i : folds) declare_stack(i);
    join_parts(folds,
               [&](const std::string& number) { return "t * " + parts + " + first + " + number; });
    for (const uint16_t i : folds) {
      const Op op = nodes_[i].op;
      line(own_ + " " + value(i) + " = " + own_ + "(0);");
      open("if (count != 0u)");
      pop_all(i, op, value(i) + "c");
      line(value(i) + " = " + value(i) + "c;");
      close();
      const auto tree = [&](const std::string& of_lane) {
        line("HG_UNROLL");
        open("for (hg_u32 k = 1u; k < HG_WARP; k <<= 1)");
        line("const " + own_ + " other = hg_shfl_down(" + value(i) + ", k);");
        line("if ((" + of_lane + " + k) * step < " + parts + ") " + value(i) + " = " +
             join(op, value(i), "other") + ";");
        close();
      };
      open("");
      line("const " + index_ + " step = " + of_one + ";");
      tree("HG_LID");
      close();
      line("if (HG_LANE == 0) shared[HG_WARP_ID] = " + value(i) + ";");
      line("HG_SYNC();");
      line(value(i) + " = shared[HG_LANE < HG_BDIM / HG_WARP ? HG_LANE : 0u];");
      line("HG_SYNC();");
      open("");
      line("const " + index_ + " step = " + of_one + " * HG_WARP;");
      tree("HG_LANE");
      close();
    }
    open("if (HG_LID == 0)");
    store_joined();
    close();
  }

  // ---- scans ----

  // The type of a scan's running value.
  std::string running_type(const Node& scan) const {
    if ((dtype_bit(scan.dtype) & kHalves) != 0) return "hg_f32";
    if ((dtype_bit(scan.dtype) & kFloating) == 0) return "hg_i64";
    return type_ == ComputeType::f64 ? own_ : "hg_double";
  }
  std::string running_start(const Node& scan) {
    const std::string type = running_type(scan);
    return type + "(" + (op_info(scan.op).identity == 1.0 ? "1" : "0") + ")";
  }
  // What is scanned, in the type of the running value.
  std::string scanned(const Node& scan) {
    const std::string type = running_type(scan);
    return type == own_ ? use(scan.a) : "hg_convert<" + type + ">(" + use(scan.a) + ")";
  }
  // The value of a scan where the running value is y. Through its dtype, of a half one a float's
  // rounding.
  std::string of_running(const Node& scan, const std::string& y) const {
    const std::string type = running_type(scan);
    if (scan.dtype == own_dtype(type_)) {
      // A NaN of a sum is the device's.
      if (type == "hg_double") return "hg_narrowed(" + y + ")";
      return type == own_ ? y : "hg_convert<" + own_ + ">(" + y + ")";
    }
    return type == own_
               ? rounded_text(y, type_, scan.dtype)
               : "hg_convert<" + own_ + ">(hg_convert<" + type_text(scan.dtype) + ">(" + y + "))";
  }

  void scan() {
    if (is_tiled(step_) && variant_.team != Team::thread) return scan_tiles();
    depth_ = 1;
    const auto scans = nodes_of(nodes_, NodeKind::scan);
    const bool down = step_.axis == kMiddle;
    const std::string columns = parameter(Parameter::Kind::columns);
    const std::string rows = parameter(Parameter::Kind::rows);
    for (const uint16_t i : scans) {
      line(running_type(nodes_[i]) + " " + fold(i) + " = " + running_start(nodes_[i]) + ";");
    }
    // A known number of elements at a time, which are all loaded before one of them is stored.
    const std::string some = number(kScanned) + "u";
    const std::string at = down ? "m" : "c", length = down ? rows : columns;
    for (const uint16_t i : scans) {
      line(running_type(nodes_[i]) + " " + fold(i) + "x[" + number(kScanned) + "];");
    }
    open("for (" + index_ + " begin = 0; begin < " + length + "; begin += " + some + ")");
    const auto each = [&](const std::function<void()>& body) {
      line("HG_UNROLL");
      open("for (hg_u32 k = 0; k < " + some + "; ++k)");
      line("const " + index_ + " " + at + " = begin + k;");
      open("if (" + at + " < " + length + ")");
      if (down) line("const " + index_ + " r = l * " + rows + " + m;");
      line("const " + index_ + " e = r * " + columns + " + c;");
      body();
      close();
      close();
    };
    each([&] {
      emit_all(scans);
      for (const uint16_t i : scans) line(fold(i) + "x[k] = " + scanned(nodes_[i]) + ";");
    });
    each([&] {
      for (const uint16_t i : scans) {
        const Node& node = nodes_[i];
        const std::string type = running_type(node);
        line(fold(i) + " = " + apply(node.op, type, fold(i), fold(i) + "x[k]", type + "(0)") + ";");
        line("const " + own_ + " " + value(i) + " = " + of_running(node, fold(i)) + ";");
      }
      for (const uint16_t store : stores()) emit_store(nodes_[store]);
    });
    close();
    std::string text = thread_text() + return_text("t");
    if (down) {
      text += "  const " + index_ + " c = t % " + columns + ";\n";
      text += "  const " + index_ + " l = t / " + columns + ";\n";
    } else {
      text += "  const " + index_ + " r = t;\n" + row_places();
    }
    body_ = text + body_;
  }

  // A thread for each row, of the first warp.
  void scan_by_row(const Node& node, const std::string& running, const std::string& height,
                   const std::string& of_row, const std::string& width, unsigned vecs) {
    const std::string type = running_type(node);
    open("if (i - 1u < tiles && HG_LID < " + height + ")");
    line("const hg_u32 first = (hg_u32((i - 1u) % 3u) * " + height + " + HG_LID) * " + of_row +
         ";");
    line("const " + index_ + " left = " + parameter(Parameter::Kind::columns) + " - (i - 1u) * " +
         width + ";");
    line("const hg_u32 count = left < " + width + " ? hg_u32(left) : " + width + ";");
    // While four vectors are scanned, the four after them are on their way.
    const auto load = [&](const std::string& to, const std::string& at) {
      line("HG_UNROLL");
      line("for (hg_u32 k = 0; k < 4u; ++k) " + to + "[k] = hg_vec_of<" + type +
           ">(shared[first + " + at + " + k]);");
    };
    line("hg_vec<" + type + "> even[4], odd[4];");
    load("even", "0u");
    load("odd", "4u");
    open("for (hg_u32 at = 0; at * " + number(type == "hg_f32" ? 4 : 2) + "u < count; at += 8u)");
    for (const bool is_odd : {false, true}) {
      const std::string now = is_odd ? "odd" : "even";
      const std::string at = is_odd ? "at + 4u" : "at";
      line("HG_UNROLL");
      open("for (hg_u32 k = 0; k < 4u; ++k)");
      line("HG_UNROLL");
      open("for (hg_u32 q = 0; q < " + number(type == "hg_f32" ? 4 : 2) + "u; ++q)");
      line(running + " = " +
           apply(node.op, type, running, "hg_vec_get(" + now + "[k], q)", type + "(0)") + ";");
      line("hg_vec_set(" + now + "[k], q, " + running + ");");
      close();
      line("shared[first + " + at + " + k] = hg_words_of(" + now + "[k]);");
      close();
      // Behind the last ones what is read is not needed.
      load(now, "(" + at + " + 8u) % " + number(vecs) + "u");
    }
    close();
    close();
  }

  // Of `scan_in_parts`: vectors of f64, of floats, and both kinds of two tiles, where each part has
  // one more, so that parts begin in other banks.
  struct PartedTile {
    unsigned of_part, row, tile, float_row, float_tile, all;
    explicit PartedTile(ScanTile its)
        : of_part(its.columns / kScanParts / 2),
          row((of_part + 1) * kScanParts),
          tile(row * its.rows),
          float_row((of_part / 2 + 1) * kScanParts),
          float_tile(float_row * its.rows),
          all(2 * (tile + float_tile)) {}
  };
  // Threads of the first warp have each a part of a row: they begin with the sum of what is before
  // it, added up in another order. Where the next thread begins with other bits than a thread ends
  // with, sums have been rounded, and a thread goes through the row, one element after the other.
  // Behind two tiles of elements are two of the floats that sums become. The last vector of a row,
  // which is no element, is what the row has come to.
  void scan_in_parts(const Node& node, const std::string& start, const PartedTile& its) {
    const std::string type = running_type(node);
    const auto add = [&](const std::string& x, const std::string& y) {
      return x + " = " + apply(node.op, type, x, y, type + "(0)") + ";";
    };
    const std::string parts = number(kScanParts) + "u", of_part = number(its.of_part) + "u";
    const std::string last = number(its.row - 1) + "u";
    const auto each = [&](const std::string& step, const std::string& end) {
      line("HG_UNROLL");
      open("for (hg_u32 k = " + step + "; k < " + end);
    };
    const auto each_vec = [&] { each("0", of_part + "; ++k)"); };
    const auto each_distance = [&] { each("1u", parts + "; k <<= 1)"); };
    const auto loaded = [&](const std::string& at) {
      return "hg_vec_of<" + type + ">(shared[" + at + "])";
    };
    open("if (i - 1u < tiles)");
    line("const hg_u32 part = HG_LID % " + parts + ", row = HG_LID / " + parts + ";");
    line("const hg_u32 here = row * " + number(its.row) + "u, now = hg_u32((i - 1u) % 2u) * " +
         number(its.tile) + "u + here;");
    line("const hg_u32 to = " + number(2 * its.tile) + "u + hg_u32((i - 1u) % 2u) * " +
         number(its.float_tile) + "u + row * " + number(its.float_row) + "u;");
    line(type + " carried = " + start + ";");
    line("if (i != 1u) carried = hg_vec_get(" +
         loaded("hg_u32(i % 2u) * " + number(its.tile) + "u + here + " + last) + ", 0u);");
    line(type + " sums[4] = {" + type + "(0), " + type + "(0), " + type + "(0), " + type + "(0)};");
    each_vec();
    line("const hg_vec<" + type +
         "> v = " + loaded("now + part * " + number(its.of_part + 1) + "u + k") + ";");
    line(add("sums[k % 2u]", "hg_vec_get(v, 0u)"));
    line(add("sums[2u + k % 2u]", "hg_vec_get(v, 1u)"));
    close();
    line(add("sums[0]", "sums[1]"));
    line(add("sums[2]", "sums[3]"));
    line(add("sums[0]", "sums[2]"));
    line(type + " before = " + type + "(0);");
    each_distance();
    line("const " + type + " other = hg_shfl_xor(sums[0], k);");
    line("if ((HG_LID & k) != 0u) " + add("before", "other"));
    line(add("sums[0]", "other"));
    close();
    line(add("before", "carried"));
    // The vectors of a part, two of which become one of floats.
    const auto go = [&](const std::string& sum, const std::string& part) {
      each("0", of_part + "; k += 2u)");
      line("hg_vec<hg_f32> y;");
      line("HG_UNROLL");
      open("for (hg_u32 q = 0; q < 4u; ++q)");
      line("const hg_vec<" + type + "> v = " +
           loaded("now + " + part + " * " + number(its.of_part + 1) + "u + k + q / 2u") + ";");
      line(add(sum, "hg_vec_get(v, q % 2u)"));
      line("hg_vec_set(y, q, " + of_running(node, sum) + ");");
      close();
      line("shared[to + " + part + " * " + number(its.of_part / 2 + 1) +
           "u + k / 2u] = hg_words_of(y);");
      close();
    };
    line(type + " running = before;");
    go("running", "part");
    line("const " + type + " next = hg_shfl_down(before, 1u);");
    line("hg_u32 is_rounded = part != " + number(kScanParts - 1) +
         "u && hg_bits(next) != hg_bits(running) ? 1u : 0u;");
    each_distance();
    line("is_rounded |= hg_shfl_xor(is_rounded, k);");
    close();
    open("if (part == " + number(kScanParts - 1) + "u)");
    open("if (is_rounded != 0u)");
    line("running = carried;");
    open("for (hg_u32 g = 0; g < " + parts + "; ++g)");
    go("running", "g");
    close();
    close();
    line("hg_vec<" + type + "> all;");
    line("hg_vec_set(all, 0u, running);");
    line("hg_vec_set(all, 1u, running);");
    line("shared[now + " + last + "] = hg_words_of(all);");
    close();
    close();
  }

  // Some rows of a block, tile by tile: its first warp, a thread for each row, scans a tile in
  // shared memory while the others load the next one and store the one before. An element comes
  // after the one before it, in whatever type, so the fewer instructions a step of a row takes and
  // the more blocks have rows, the better. Sums in f64 of floats are rarely rounded: there several
  // threads have a row (`scan_in_parts`).
  void scan_tiles() {
    depth_ = 1;
    const uint16_t i = nodes_of(nodes_, NodeKind::scan).front();
    const Node& node = nodes_[i];
    const std::string type = running_type(node);
    const std::string start = running_start(node);
    const ScanTile tile = scan_tile(variant_.team, type == "hg_f32");
    const unsigned of_vec = type == "hg_f32" ? 4 : 2;
    const unsigned vecs = tile.columns / of_vec;
    const bool in_parts = variant_.team == Team::block && type == "hg_double" &&
                          node.dtype == DType::f32 && op_info(node.op).identity == 0.0;
    const PartedTile parted(tile);
    const unsigned pitch = vecs + 1;  // so that rows begin in other banks
    const std::string height = number(tile.rows) + "u", width = number(tile.columns) + "u";
    const std::string of_row = number(pitch) + "u";
    const unsigned of_thread = tile.rows * tile.columns / kTileThreads;
    const std::string columns = parameter(Parameter::Kind::columns);
    const std::string rows = parameter(Parameter::Kind::threads);
    line("HG_SHARED(hg_u32x4, shared, " + number(in_parts ? parted.all : 3 * tile.rows * pitch) +
         ")");
    line("HG_SHARED_PTR(hg_u32) const words = reinterpret_cast<HG_SHARED_PTR(hg_u32)>(shared);");
    line("const " + index_ + " r0 = " + index_ + "(HG_BID) * " + height + ";");
    line("const " + index_ + " tiles = (" + columns + " + " + number(tile.columns - 1) + "u) / " +
         width + ";");
    if (!in_parts) line(type + " " + fold(i) + " = " + start + ";");
    open("for (" + index_ + " i = 0; i < tiles + 2u; ++i)");

    open("if (HG_LID < HG_WARP)");
    if (in_parts) {
      scan_in_parts(node, start, parted);
    } else {
      scan_by_row(node, fold(i), height, of_row, width, vecs);
    }
    close();
    open("else");
    line(type + " x[" + number(of_thread) + "];");
    // Element k of a thread's in a tile.
    const auto each = [&](const std::string& which, bool is_whole,
                          const std::function<void()>& body) {
      line("HG_UNROLL");
      open("for (hg_u32 k = 0; k < " + number(of_thread) + "u; ++k)");
      line("const hg_u32 j = HG_LID - HG_WARP + k * " + number(kTileThreads) + "u;");
      line("const " + index_ + " r = r0 + j / " + width + ";");
      line("const " + index_ + " c = " + which + " * " + width + " + j % " + width + ";");
      if (!is_whole) open("if (r < " + rows + " && c < " + columns + ")");
      const size_t begin = body_.size();
      needed_.clear();
      body();
      const std::string indent(2 * (depth_ - 1), ' ');
      std::string places = row_places(indent);
      if (needs('e')) {
        places += indent + "  const " + index_ + " e = r * " + columns + " + c;\n";
      }
      needed_.clear();
      body_.insert(begin, places);
      if (!is_whole) close();
      close();
    };
    // The place of element j of tile `which`: of what is scanned, or of what comes of it.
    const auto in_tile = [&](const std::string& which, bool is_scanned) {
      const std::string row = "j / " + width, column = "j % " + width;
      if (!in_parts) {
        return "(hg_u32(" + which + " % 3u) * " + height + " + " + row + ") * " +
               number(pitch * of_vec) + "u + " + column;
      }
      const unsigned of_vec = is_scanned ? 4 : 2;
      const unsigned first = is_scanned ? 2 * parted.tile * of_vec : 0;
      const unsigned of_tile = (is_scanned ? parted.float_tile : parted.tile) * of_vec;
      const unsigned of_row = (is_scanned ? parted.float_row : parted.row) * of_vec;
      return number(first) + "u + hg_u32(" + which + " % 2u) * " + number(of_tile) + "u + " + row +
             " * " + number(of_row) + "u + " + column + " + " + column + " / " +
             number(tile.columns / kScanParts) + "u * " + number(of_vec) + "u";
    };
    open("if (i < tiles)");
    open("if (r0 + " + height + " <= " + rows + " && (i + 1u) * " + width + " <= " + columns + ")");
    const auto make = [&] {
      emit_all({i});
      line("x[k] = " + scanned(node) + ";");
    };
    each("i", true, make);
    close();
    open("else");
    line("HG_UNROLL");
    line("for (hg_u32 k = 0; k < " + number(of_thread) + "u; ++k) x[k] = " + type + "(0);");
    each("i", false, make);
    close();
    close();
    open("if (i >= 2u)");
    each("(i - 2u)", false, [&] {
      const std::string its = in_parts ? own_ : type;
      line("const " + its + " y = hg_word_get(hg_tag<" + its + ">(), words, " +
           in_tile("(i - 2u)", true) + ");");
      line("const " + own_ + " " + value(i) + " = " + (in_parts ? "y" : of_running(node, "y")) +
           ";");
      for (const uint16_t store : stores()) emit_store(nodes_[store]);
    });
    close();
    open("if (i < tiles)");
    line("HG_UNROLL");
    open("for (hg_u32 k = 0; k < " + number(of_thread) + "u; ++k)");
    line("const hg_u32 j = HG_LID - HG_WARP + k * " + number(kTileThreads) + "u;");
    line("hg_word_set(words, " + in_tile("i", false) + ", x[k]);");
    close();
    close();
    close();
    line("HG_SYNC();");
    close();
  }

  // ---- the whole ----

  Kernel finish() {
    const size_t folds = folds_of_step().size();  // whose partial results are read where they join
    const auto is_written = [&](const Buffer& its) {
      if (its.is_counters) return true;
      if (its.is_part) return !variant_.joins || its.index >= folds;
      return std::ranges::any_of(nodes_, [&](const Node& node) {
        return node.kind == NodeKind::store && node.b == its.index;
      });
    };
    order_parameters();
    std::string text = std::string("struct ") + kPlaceholder + "_parameters {\n";
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      text += "  " + field_type(kernel_.parameters[i]) + " " + field(i) + ";\n";
    }
    text += "};\n";
    const auto type_of = [&](const Buffer& its) {
      return its.is_counters ? std::string("hg_atomic_u32")
             : its.is_part   ? own_
                             : type_text(steps_.operands[its.index].dtype);
    };
    if (variant_.many) {
      text += of_many(type_of, is_written);
    } else {
      text += std::string(most_of_block() == 0 ? "HG_KERNEL(" : "HG_KERNEL_OF(") + kPlaceholder;
      if (most_of_block() != 0) text += ", " + number(most_of_block());
      for (size_t i = 0; i < kernel_.buffers.size(); ++i) {
        const Buffer& its = kernel_.buffers[i];
        text += std::string(",\n          ") + (is_written(its) ? "HG_BUF(" : "HG_CBUF(") +
                type_of(its) + ", b" + number(i) + ", " + number(i) + ")";
      }
      text += std::string(",\n          HG_PARAM(") + kPlaceholder + "_parameters, p, " +
              number(kernel_.buffers.size()) + ")) {\n" + body_ + "}\n";
    }
    std::ranges::sort(kernel_.ops);
    std::string all;
    for (const Op op : kernel_.ops) all += op_text(op_info(op));
    std::array<char, 24> name;
    std::snprintf(name.data(), name.size(), "hg_%016llx",
                  static_cast<unsigned long long>(fnv1a(all + text)));
    kernel_.name = name.data();
    kernel_.text = replaced(std::move(text), kPlaceholder, kernel_.name);
    return std::move(kernel_);
  }

  // Threads of a block, of what keeps many elements in registers: without that a compiler leaves
  // room for as many threads as there can be, and has few elements on their way. 0: of any block.
  unsigned most_of_block() const {
    if (variant_.joins) return 0;
    switch (step_.skeleton) {
      case Skeleton::rows: return is_warp() ? kMostThreads : most_threads(step_, type_);
      case Skeleton::classes:
      case Skeleton::fold_down: return kMostThreads;
      default: return 0;
    }
  }

  // A kernel whose arguments lie in the rows of a table, under the names that the body has for
  // them.
  template <class TypeOf, class IsWritten>
  std::string of_many(TypeOf&& type_of, IsWritten&& is_written) {
    kernel_.many = true;
    const std::string row = std::string(kPlaceholder) + "_row";
    std::string fields, names;
    for (size_t i = 0; i < kernel_.buffers.size(); ++i) {
      const Buffer& its = kernel_.buffers[i];
      const std::string type =
          std::string("HG_GLOBAL ") + (is_written(its) ? "" : "const ") + type_of(its) + "*";
      fields += "  " + type + " b" + number(i) + ";\n";
      names += "  " + type + " const b" + number(i) + " = row->b" + number(i) + ";\n";
    }
    const std::string parameters = std::string(kPlaceholder) + "_parameters";
    names += "  " + parameters + " p;\n";
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      names += "  p." + field(i) + " = row->p." + field(i) + ";\n";
    }
    return "struct " + row + " {\n" + fields + "  hg_u64 block;\n  " + parameters + " p;\n};\n" +
           "HG_KERNEL(" + kPlaceholder + ",\n          HG_CBUF(" + row +
           ", rows, 0),\n          HG_PARAM(hg_u32, count, 1)) {\n  HG_GLOBAL const " + row +
           "* const row = hg_row_of_block(rows, count, HG_BID);\n" + names + body_ + "}\n";
  }

  // The wide ones first, so that there is nothing between them.
  void order_parameters() {
    std::vector<size_t> order(kernel_.parameters.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      return kernel_.parameters[a].bytes > kernel_.parameters[b].bytes;
    });
    std::vector<Parameter> parameters;
    std::vector<size_t> at(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      parameters.push_back(kernel_.parameters[order[i]]);
      at[order[i]] = i;
    }
    kernel_.parameters = std::move(parameters);
    // All names at once: the new ones look like the old ones.
    std::string text;
    for (size_t i = 0; i < body_.size();) {
      const bool is_field = body_.compare(i, 3, "p.p") == 0;
      if (!is_field) {
        text += body_[i++];
        continue;
      }
      size_t end = i + 3, which = 0;
      for (; end < body_.size() && body_[end] >= '0' && body_[end] <= '9'; ++end) {
        which = 10 * which + static_cast<size_t>(body_[end] - '0');
      }
      text += "p." + field(at[which]);
      i = end;
    }
    body_ = std::move(text);
  }

  const Steps& steps_;
  const Step& step_;
  const std::vector<Node>& nodes_;
  const Variant variant_;
  const ComputeType type_;
  const std::string own_, index_;
  const std::vector<Spread> spreads_;
  const std::vector<int> turns_;
  Kernel kernel_;
  std::string body_;
  size_t depth_ = 1;
  std::string needed_;  // places
  bool is_strided_ = false, has_shared_ = false;
  std::vector<Held> helds_;      // of each pass over a row
  size_t pass_ = 0;              // the next one
  Held held_;                    // of the one that is emitted
  std::string held_index_;       // of the elements that are held; empty where none are
  bool has_neighbours_ = false;  // what of elements is loaded is there
  bool is_two_ = false;          // whether loops over a thread's elements take two at a time
  bool is_of_two_ = false;       // whether the text is inside of such a loop
  unsigned lane_ = 0;            // and of which of the two
  std::vector<uint16_t> strided_;
};

}  // namespace

unsigned most_threads(const Step& step, ComputeType type) {
  const bool has_normal = std::ranges::any_of(step.nodes, [](const Node& node) {
    return node.kind == NodeKind::random && static_cast<Draw>(node.b) == Draw::normal;
  });
  return has_normal ? std::min(most_threads(type), 512u) : most_threads(type);
}

bool is_tiled(const Step& step) {
  return step.skeleton == Skeleton::scan && step.axis == kColumns &&
         nodes_of(step.nodes, NodeKind::scan).size() == 1;
}
ScanTile scan_tile(Team team, bool is_f32) {
  const unsigned rows = team == Team::block ? 4 : 32;
  return {rows, (is_f32 ? 2048 : 1024) / rows};
}

unsigned vector_of(const Steps& steps, size_t step) {
  const Step& its = steps.list[step];
  if (its.skeleton != Skeleton::elements) return 1;
  if (steps.structured && !has_columns(its.domain)) return 1;
  size_t least = 0, most = 0;
  for (const Node& node : its.nodes) {
    if (node.kind == NodeKind::pick) return 1;
    if (!has_operand(node)) continue;
    const Operand& operand = steps.operands[operand_of(node)];
    if (operand.layout == Layout::strided) return 1;
    if (operand.layout == Layout::scalar) continue;
    if (steps.structured && !has_columns(operand.spread)) continue;
    const size_t size = dtype_size(operand.dtype);
    least = least == 0 ? size : std::min(least, size);
    most = std::max(most, size);
  }
  return least == 0 ? 1 : static_cast<unsigned>(std::min(16 / least, 32 / most));
}

Kernel emit(const Steps& steps, size_t step, const Variant& variant) {
  const unsigned vector = variant.vectors ? vector_of(steps, step) : 1;
  return Emitter(steps, steps.list[step], variant, vector).run();
}

std::string library_text(std::span<const Kernel* const> kernels) {
  std::vector<Op> ops;
  for (const Kernel* kernel : kernels)
    ops.insert(ops.end(), kernel->ops.begin(), kernel->ops.end());
  std::ranges::sort(ops);
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  std::string text = "#include \"hologram_gpu.h\"\n\n";
  for (const Op op : ops) text += op_text(op_info(op));
  for (const Kernel* kernel : kernels) text += "\n" + kernel->text;
  return text;
}

}  // namespace hologram::gpu
