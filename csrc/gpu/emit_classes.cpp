// What a warp makes of a class of a row, and folds whose partial results are those of classes.
#include <algorithm>
#include <utility>

#include "gpu/emitter.h"
#include "gpu/op_text.h"

namespace hologram::gpu {

// A warp for each class of some of a row, which the warps of a block join: a partial result.
void Emitter::classes() {
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

// Joins neighbours of the results of a block's warps, from class `first` on: what has none on its
// right stays. All threads have the whole.
void Emitter::join_warps(uint16_t i, const std::string& columns, const std::string& of_class) {
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

void Emitter::of_one_class(const std::vector<uint16_t>& folds, const std::vector<uint16_t>& stored,
                           const std::function<void(uint16_t)>& take) {
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
    std::vector<bool> computed = needed_beside(values, held_.read);
    if (held_.written && held_.written != held_.read) computed[*held_.written] = true;
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
    if (has_any_order_) {
      warp_tree_of_any_order(i);
    } else {
      warp_tree(i);
    }
    take(i);
  }
}

// Of what elements have.
bool Emitter::has_no_functions(const std::vector<bool>& needed) const {
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

// A thread has neighbours, of which it reads as many as it can before it needs the first.
unsigned Emitter::several_of(const std::vector<bool>& needed) const {
  const size_t operands = operands_of_elements(needed).size();
  const unsigned most = operands <= 1 ? kKept : operands == 2 ? 4 : operands == 3 ? 2 : 1;
  return type_ == ComputeType::f32 && has_no_functions(needed) ? most : (most + 1) / 2;
}

std::vector<uint16_t> Emitter::operands_of_elements(const std::vector<bool>& needed) const {
  std::vector<uint16_t> which;
  for (uint16_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.kind == NodeKind::load && needed[i] && is_of_elements(i)) which.push_back(node.a);
  }
  std::ranges::stable_sort(which);
  which.erase(std::unique(which.begin(), which.end()), which.end());
  return which;
}

// `several` times the elements of a row that a thread has side by side; `last`: those before `end`,
// of which there is one at least.
void Emitter::neighbours(const std::vector<bool>& needed, const std::vector<uint16_t>& folds,
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
      each_held(
          i, [&] { return "const " + held_type(i) + " " + held_name(i) + " = " + held(i) + ";"; });
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
    close_each_element(begin, before);
    for (const uint16_t i : stored) {
      const uint16_t which = nodes_[i].b;
      line("hg_store_" + how + "(" + operand(which) + " + (" + first_place(which) + "), y" +
           operand(which) + count + ");");
    }
  });
}

// The accumulators of a warp, of which a thread has neighbours: the upper half joins the lower one,
// down to one, which all threads have. While a thread has several it gives the half of them that
// its partner goes on with; the partners meet again at the end.
void Emitter::warp_tree(uint16_t i) {
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

void Emitter::warp_tree_of_any_order(uint16_t i) {
  const Op op = nodes_[i].op;
  const std::string result = value(i) + "c";
  line(own_ + " " + result + " = " + fold(i) + "[0];");
  for (unsigned k = 1; k < accumulators_of_thread(); ++k) {
    line(result + " = " + join(op, result, fold(i) + "[" + number(k) + "]") + ";");
  }
  line("HG_UNROLL");
  line("for (hg_u32 k = 1u; k < HG_WARP; k <<= 1) " + result + " = " +
       join(op, result, "hg_shfl_xor(" + result + ", k)") + ";");
}

}  // namespace hologram::gpu
