#include "gpu/emit.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "atlas/fnv.h"
#include "gpu/emitter.h"
#include "gpu/op_text.h"

namespace hologram::gpu {
namespace {

constexpr const char* kPlaceholder = "hg_@";
// Of two operands, a vector each: a thread that loads more has enough on its way.
constexpr size_t kFewLoadedBytes = 32;
// Elements of 4 bytes that a block has, in rows.
constexpr unsigned kEnoughOfRows = 1024;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Parameters are named before all are known; fields are in the order in which they are needed.
std::string field(size_t at) {
  return "p" + number(at);
}

}  // namespace

Emitter::Emitter(const Steps& steps, const Step& step, const Variant& variant, unsigned vector,
                 unsigned vectors)
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
  kernel_.vectors = vectors;
  if (vectors > 1 || is_bounded()) kernel_.threads = kSmallBlock;
  kernel_.needs_f64 = type_ == ComputeType::f64;
}

Kernel Emitter::run() {
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

void Emitter::line(const std::string& text) {
  body_ += std::string(2 * depth_, ' ') + text + "\n";
}

void Emitter::open(const std::string& text) {
  line(text + " {");
  ++depth_;
}

void Emitter::close() {
  --depth_;
  line("}");
}

std::string Emitter::apply(Op op, const std::string& type, const std::string& x,
                           const std::string& y, const std::string& z) {
  if (std::ranges::find(kernel_.ops, op) == kernel_.ops.end()) kernel_.ops.push_back(op);
  return std::string("hg_op_") + op_info(op).name + "<" + type + ">(" + x + ", " + y + ", " + z +
         ")";
}

std::string Emitter::join(Op op, const std::string& x, const std::string& y) {
  if (has_any_order_)
    return std::string("hg_any_order_") + op_info(op).name + "(" + x + ", " + y + ")";
  return apply(op, own_, x, y, own_ + "(0)");
}

std::string Emitter::parameter(Parameter its) {
  if (its.kind == Parameter::Kind::immediate)
    its.bytes = type_ == ComputeType::f32 ? 4 : 8;
  else if (its.kind == Parameter::Kind::bits || variant_.wide)
    its.bytes = 8;
  return "p." + field(kernel_.place_of(its));
}

std::string Emitter::field_type(const Parameter& its) const {
  switch (its.kind) {
    case Parameter::Kind::immediate: return own_;
    case Parameter::Kind::bits: return "hg_u64";
    case Parameter::Kind::stride: return variant_.wide ? "hg_i64" : "hg_i32";
    default: return index_;
  }
}

Kernel Emitter::finish() {
  if (is_bounded()) kernel_.enough = is_two_ ? 2 * kEnoughOfRows : kEnoughOfRows;
  order_parameters();
  std::string text = std::string("struct ") + kPlaceholder + "_parameters {\n";
  for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
    text += "  " + field_type(kernel_.parameters[i]) + " " + field(i) + ";\n";
  }
  text += "};\n";
  if (variant_.many) {
    text += of_many();
  } else {
    text += std::string(most_of_block() == 0 ? "HG_KERNEL(" : "HG_KERNEL_OF(") + kPlaceholder;
    if (most_of_block() != 0) {
      text += ", " + number(most_of_block()) + ", " + number(blocks_at_once());
    }
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

bool Emitter::is_written(const Buffer& its) const {
  if (its.is_counters) return true;
  // Partial results of folds are read where they join.
  if (its.is_part) return !variant_.joins || its.index >= folds_of_step().size();
  return std::ranges::any_of(nodes_, [&](const Node& node) {
    return node.kind == NodeKind::store && node.b == its.index;
  });
}

std::string Emitter::type_of(const Buffer& its) const {
  return its.is_counters ? std::string("hg_atomic_u32")
         : its.is_part   ? own_
                         : type_text(steps_.operands[its.index].dtype);
}

// Threads of a block, of what keeps many elements in registers: without that a compiler leaves room
// for as many threads as there can be, and has few elements on their way. 0: of any block.
unsigned Emitter::most_of_block() const {
  if (variant_.joins) return 0;
  switch (step_.skeleton) {
    case Skeleton::rows:
      return kernel_.threads != 0 ? kernel_.threads
             : is_warp()          ? kMostThreads
                                  : most_threads(step_, type_);
    case Skeleton::classes:
    case Skeleton::fold_down: return kMostThreads;
    default: return 0;
  }
}

bool Emitter::is_bounded() const {
  return step_.skeleton == Skeleton::rows && is_warp() && !variant_.several &&
         type_ == ComputeType::f32 && nodes_of(nodes_, NodeKind::random).empty();
}

// What a processor is to have room for, which bounds a thread's registers: with too few threads
// nobody loads while the others compute. 1: as many registers as it likes.
unsigned Emitter::blocks_at_once() const {
  if (!is_bounded()) return 1;
  if (is_two_) return 8;
  return variant_.wide ? 6 : 7;  // of 64 bits numbers take two registers each
}

// A kernel whose arguments lie in the rows of a table, under the names that the body has for them.
std::string Emitter::of_many() {
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
void Emitter::order_parameters() {
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

namespace {

// Vectors of a thread, of so many elements. Two where it loads little: a single load of 16 bytes on
// its way for each thread is not enough to keep the memory busy.
unsigned vectors_of(const Steps& steps, const Step& step, const Variant& variant, unsigned vector) {
  if (vector == 1 || variant.many || steps.structured) return 1;
  std::vector<uint16_t> loaded;
  size_t bytes = 0;
  for (const Node& node : step.nodes) {
    if (node.kind == NodeKind::random || node.kind == NodeKind::position) return 1;
    if (node.kind != NodeKind::load || steps.operands[node.a].layout != Layout::dense) continue;
    if (std::ranges::find(loaded, node.a) != loaded.end()) continue;
    loaded.push_back(node.a);
    bytes += vector * dtype_size(steps.operands[node.a].dtype);
  }
  return 0 < bytes && bytes <= kFewLoadedBytes ? 2 : 1;
}

}  // namespace

Kernel emit(const Steps& steps, size_t step, const Variant& variant) {
  const unsigned vector = variant.vectors ? vector_of(steps, step) : 1;
  const Step& its = steps.list[step];
  return Emitter(steps, its, variant, vector, vectors_of(steps, its, variant, vector)).run();
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
