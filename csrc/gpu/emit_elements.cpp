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

void Emitter::vectors(const std::vector<bool>& needed) {
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
      line("hg_load_few(x" + operand(which) + ", " + operand(which) + " + (" + first_place(which) +
           "));");
    }
    close();
    open("else");
    for (const uint16_t which : in) {
      line("hg_load_part(x" + operand(which) + ", " + operand(which) + " + (" + first_place(which) +
           "), left);");
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
  close_each_element(begin, before);
  open("if (left == " + vector + ")");
  for (const uint16_t which : out) {
    line("hg_store_few(" + operand(which) + " + (" + first_place(which) + "), y" + operand(which) +
         ");");
  }
  close();
  open("else");
  for (const uint16_t which : out) {
    line("hg_store_part(" + operand(which) + " + (" + first_place(which) + "), y" + operand(which) +
         ", left);");
  }
  close();
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
