// Folds over rows, and kernels that join partial results of any folds.
#include <utility>

#include "gpu/emitter.h"
#include "gpu/op_text.h"

namespace hologram::gpu {

// ---- joining neighbours ----
//
// What comes one after the other is joined as it comes: as the bits of a binary number, each
// standing for twice as many as the one below it.

void Emitter::declare_stack(uint16_t i) {
  line(own_ + " " + fold(i) + "s[48];");
  line("hg_u32 " + fold(i) + "d = 0;");
}

void Emitter::push(uint16_t i, Op op, const std::string& x, const std::string& at) {
  const std::string stack = fold(i) + "s", depth = fold(i) + "d";
  open("");
  line(own_ + " y = " + x + ";");
  line("for (" + index_ + " q = " + at +
       "; (q & 1) != 0; q >>= 1) y = " + join(op, stack + "[--" + depth + "]", "y") + ";");
  line(stack + "[" + depth + "++] = y;");
  close();
}

void Emitter::pop_all(uint16_t i, Op op, const std::string& name) {
  const std::string stack = fold(i) + "s", depth = fold(i) + "d";
  line(own_ + " " + name + " = " + stack + "[--" + depth + "];");
  line("while (" + depth + " != 0) " + name + " = " + join(op, stack + "[--" + depth + "]", name) +
       ";");
}

// ---- folds over rows ----

void Emitter::fold_down() {
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
    text +=
        "  const " + index_ + " first = t / " + of_row + " % " + parts + " * " + part_rows + ";\n";
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

void Emitter::each_column(const std::string& text) {
  line("HG_UNROLL");
  line("for (hg_u32 k = 0; k < " + number(down_columns()) + "u; ++k) " + text);
}

// Folds the elements of a thread in so many rows, from row `at` of the plane on.
void Emitter::down_rows(const std::vector<bool>& needed, const std::vector<uint16_t>& folds,
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

// ---- partial results ----

// There is a thread for each element of the results.
void Emitter::store_joined() {
  for (const uint16_t store : stores()) {
    line(operand(nodes_[store].b) + "[t] = " + stored(nodes_[store]) + ";");
  }
}

// Joins partial results, of each value all, or a power of two of them.
void Emitter::joins() {
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

// Pushes `count` partial results, 16 at a time, which are loaded at once. Neighbours join, and what
// has none on its right stays: as it would in the end.
void Emitter::join_parts(const std::vector<uint16_t>& folds,
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

// All of a value, with a block: a thread joins neighbours, a power of two of them, and then threads
// do.
void Emitter::joins_of_block() {
  depth_ = 1;
  join_by_block(folds_of_step());
  body_ = shared_text() + "  const " + index_ + " t = HG_BID;\n" + body_;
}

// Those of value t.
void Emitter::join_by_block(const std::vector<uint16_t>& folds) {
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

}  // namespace hologram::gpu
