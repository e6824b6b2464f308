// A thread for each element, or for a vector of them.
#include <algorithm>
#include <utility>

#include "gpu/emitter.h"
#include "gpu/op_text.h"

namespace hologram::gpu {

bool Emitter::in_vectors(uint16_t which) const {
  if (kernel_.vector == 1 || step_.skeleton != Skeleton::elements) return false;
  const Operand& its = steps_.operands[which];
  if (its.layout != Layout::dense) return false;
  return !steps_.structured || has_columns(its.spread);
}

void Emitter::elements() {
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

void Emitter::elements_prologue() {
  std::string text;
  const std::string threads = threads_text(), vector = number(kernel_.vector) + "u";
  if (kernel_.vectors > 1) {
    const std::string block = "HG_BDIM * " + number(kernel_.vectors) + "u";
    const std::string last = "HG_BDIM * " + number(kernel_.vectors - 1) + "u";
    text += "  const " + index_ + " first = " + index_ + "(HG_BID) * (" + block + ") + HG_LID;\n";
    text += "  const bool is_whole = (first + " + last + ") * " + vector + " + " + vector +
            " <= " + threads + ";\n";
  } else if (kernel_.vector == 1) {
    text += thread_text() + return_text("t") + "  const " + index_ + " e = t;\n";
  } else {
    text += thread_text() + "  const " + index_ + " e0 = t * " + vector + ";\n";
    text += return_text("e0") + "  const hg_u32 left = " + left_text() + ";\n";
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

std::string Emitter::left_text() {
  const std::string vector = number(kernel_.vector) + "u", left = threads_text() + " - e0";
  return left + " < " + vector + " ? hg_u32(" + left + ") : " + vector;
}

void Emitter::open_vectors() {
  line("HG_UNROLL");
  open("for (hg_u32 u = 0; u < " + number(kernel_.vectors) + "u; ++u)");
  line("const " + index_ + " e0 = (first + u * HG_BDIM) * " + number(kernel_.vector) + "u;");
}

void Emitter::each_few(const std::vector<uint16_t>& operands, const std::string& what,
                       const std::string& rest) {
  const bool stores = what.starts_with("hg_store");
  for (const uint16_t which : operands) {
    const std::string place = operand(which) + " + (" + first_place(which) + ")";
    line(what + "(" +
         (stores ? place + ", y" + operand(which)
                 : "x" + operand(which) + of_vector() + ", " + place) +
         rest + ");");
  }
}

void Emitter::vectors(const std::vector<bool>& needed) {
  const bool several = kernel_.vectors > 1;
  const std::string vector = number(kernel_.vector) + "u";
  std::vector<uint16_t> in, out;
  for (uint16_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.kind == NodeKind::load && needed[i] && in_vectors(node.a)) in.push_back(node.a);
    if (node.kind == NodeKind::store && in_vectors(node.b)) out.push_back(node.b);
  }
  std::ranges::stable_sort(in);
  in.erase(std::unique(in.begin(), in.end()), in.end());
  const auto declare = [&](const std::string& name, uint16_t which, const std::string& count) {
    line("hg_few<" + type_text(steps_.operands[which].dtype) + ", " + vector + "> " + name +
         operand(which) + count + ";");
  };
  const std::string count = several ? "[" + number(kernel_.vectors) + "]" : "";
  for (const uint16_t which : in) declare("x", which, count);
  if (several) {
    // All that a thread loads is on its way before anything is stored, which may be the same
    // memory.
    open("if (is_whole)");
    open_vectors();
    each_few(in, "hg_load_few", "");
    close();
    close();
    open("else");
    open_vectors();
    open("if (e0 < " + threads_text() + ")");
    line("const hg_u32 left = " + left_text() + ";");
    each_few(in, "hg_load_part", ", left");
    close();
    close();
    close();
    open_vectors();
    line("if (!is_whole && e0 >= " + threads_text() + ") return;");
    line("const hg_u32 left = is_whole ? " + vector + " : " + left_text() + ";");
  }
  for (const uint16_t which : out) declare("y", which, "");
  if (!several && !in.empty()) {
    open("if (left == " + vector + ")");
    each_few(in, "hg_load_few", "");
    close();
    open("else");
    each_few(in, "hg_load_part", ", left");
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
  close_each_element(begin, before);
  open("if (left == " + vector + ")");
  each_few(out, "hg_store_few", "");
  close();
  open("else");
  each_few(out, "hg_store_part", ", left");
  close();
  if (several) close();
}

void Emitter::each_element(unsigned count) {
  line("HG_UNROLL");
  open("for (hg_u32 k = 0; k < " + number(count) + "u; " + (is_two_ ? "k += 2u" : "++k") + ")");
}

void Emitter::close_each_element(size_t begin, const std::string& before) {
  const std::string indent(2 * depth_, ' ');
  std::string places;
  if (needs('e')) places += indent + "const " + index_ + " e = e0 + k;\n";
  if (needs('c')) places += indent + "const " + index_ + " c = c0 + k;\n";
  for (const char which : before) place(which);
  body_.insert(begin, places);
  close();
}

}  // namespace hologram::gpu
