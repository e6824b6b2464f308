// A warp or a block of threads for each row, which they go through once or several times.
#include <algorithm>
#include <set>

#include "gpu/emitter.h"
#include "gpu/op_text.h"

namespace hologram::gpu {

void Emitter::rows() {
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

std::string Emitter::shared_text() const {
  return "  HG_SHARED(" + own_ + ", shared, " + number(most_threads(type_) / kWarp) + ")\n";
}

std::vector<uint16_t> Emitter::values_of(const std::vector<uint16_t>& folds,
                                         const std::vector<uint16_t>& stored) const {
  std::vector<uint16_t> values;
  for (const uint16_t i : folds) values.push_back(nodes_[i].a);
  for (const uint16_t i : stored) values.push_back(nodes_[i].a);
  return values;
}

// Over the elements of a row, by classes.
void Emitter::pass(const std::vector<uint16_t>& folds, const std::vector<uint16_t>& stored) {
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
    const auto take = [&](uint16_t i) { line(value(i) + " = " + value(i) + "c;"); };
    if (may_have_any_order(folds)) {
      has_any_order_ = true;
      open("");
      of_one_class(folds, stored, take);
      close();
      has_any_order_ = false;
      std::string condition;
      for (const uint16_t i : folds) {
        condition += (condition.empty() ? "" : " || ") + ("hg_has_order(" + value(i) + ")");
      }
      open("if (" + condition + ")");
      of_one_class(folds, stored, take);
      close();
    } else {
      of_one_class(folds, stored, take);
    }
    close();
  }
}

// A row whose result may depend on the order is gone through once more.
bool Emitter::may_have_any_order(const std::vector<uint16_t>& folds) const {
  return is_warp() && type_ == ComputeType::f32 && !folds.empty() &&
         std::ranges::all_of(folds,
                             [&](uint16_t i) { return op_info(nodes_[i].op).has(kAnyOrder); });
}

// ---- what stays in registers ----
//
// A warp that goes through a row several times keeps a value of its first elements from one pass
// to the next: the last one from which all later passes can compute what they need without a load
// of what rows have of their own. So neither memory is read again nor a function computed again.

std::vector<bool> Emitter::needed_beside(const std::vector<uint16_t>& values,
                                         std::optional<uint16_t> given) const {
  std::vector<bool> needed(nodes_.size());
  if (given) needed[*given] = true;
  for (const uint16_t i : values) need(i, needed);
  if (given) needed[*given] = false;
  return needed;
}

bool Emitter::loads_rows(const std::vector<bool>& needed) const {
  for (uint16_t i = 0; i < nodes_.size(); ++i) {
    if (!needed[i] || !is_of_elements(i)) continue;
    if (nodes_[i].kind == NodeKind::random) return true;
    if (nodes_[i].kind == NodeKind::load && (spreads_[i] & kRows) != 0) return true;
  }
  return false;
}

// `passes`: the values of elements that each of them folds or stores.
void Emitter::choose_held(const std::vector<std::vector<uint16_t>>& passes) {
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
  // Also by a load of the same elements in another dtype.
  const auto is_loaded = [&](size_t i, const std::vector<bool>& computed) {
    if (nodes_[i].kind != NodeKind::load) return false;
    for (size_t k = 0; k < nodes_.size(); ++k) {
      if (computed[k] && nodes_[k].kind == NodeKind::load && nodes_[k].a == nodes_[i].a)
        return true;
    }
    return false;
  };
  for (size_t p = 0; p + 1 < passes.size(); ++p) {
    std::vector<bool> computed = needed_beside(passes[p], helds_[p].read);
    if (helds_[p].read) computed[*helds_[p].read] = true;
    for (size_t i = nodes_.size(); i-- > 0;) {
      const auto value = static_cast<uint16_t>(i);
      const NodeKind kind = nodes_[i].kind;
      const bool may_be =
          kind == NodeKind::load || kind == NodeKind::compute || kind == NodeKind::cast;
      if (!computed[i] && !is_loaded(i, computed)) continue;
      if (!may_be || !is_of_elements(value) || !serves(value, p + 1)) continue;
      helds_[p].written = helds_[p + 1].read = value;
      break;
    }
  }
}

std::string Emitter::held(uint16_t value) const {
  return "kept" + number(value) + "[" + held_index_ + "][" +
         (is_pair(value) ? "k / 2u" : element()) + "]";
}

std::string Emitter::held_name(uint16_t i) const {
  const std::string name = is_in_half(i) || is_pair(i) ? half(i) : value(i);
  return name + (is_two(i) && !is_pair(i) ? lane() : "");
}

std::string Emitter::held_type(uint16_t i) const {
  return is_pair(i) ? "hg_bf16x2" : is_in_half(i) ? type_text(nodes_[i].dtype) : own_;
}

void Emitter::each_held(uint16_t i, const std::function<std::string()>& text) {
  if (!is_two(i) || is_pair(i)) return line(text());
  const auto [a, b] = both(text);
  line(a);
  line(b);
}

bool Emitter::reads_held(const std::vector<uint16_t>& folds,
                         const std::vector<uint16_t>& stored) const {
  return needed_beside(values_of(folds, stored), std::nullopt)[*held_.read];
}

std::string Emitter::held_text() const {
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

}  // namespace hologram::gpu
