// Plans for people to read.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "atlas/canonicalise.h"
#include "atlas/overlap.h"

namespace hologram {
namespace {

// "%3 = mul.f32 %0, 2", one line for each node that is not a constant.
std::vector<std::string> code_lines(const Group& group, const Batch::Member& member,
                                    const Program& program) {
  std::vector<std::string> lines, names(group.nodes.size());
  int values = 0;
  for (size_t i = 0; i < group.nodes.size(); ++i) {
    const Node& node = group.nodes[i];
    const auto access = [&](uint16_t operand) {
      return describe_access(program, member.accesses[operand], group.operands[operand].spread);
    };
    if (node.kind == NodeKind::immediate) {
      names[i] = describe_immediate(program.immediates[member.immediates[node.a]], node.dtype);
      continue;
    }
    if (node.kind == NodeKind::store) {
      lines.push_back("store " + access(node.b) + ", " + names[node.a]);
      continue;
    }
    names[i] = "%" + std::to_string(values++);
    const auto typed = [&](const char* name) {
      return std::string(name) + "." + dtype_name(node.dtype);
    };
    std::string text;
    if (node.kind == NodeKind::load) {
      text = typed("load") + " " + access(node.a);
    } else if (node.kind == NodeKind::fold) {
      text = typed(op_info(node.op).fold) + " " + names[node.a] +
             spread_name(static_cast<Spread>(node.b));
    } else if (node.kind == NodeKind::scan) {
      text = typed(op_info(node.op).scan) + " " + names[node.a] +
             scan_axis_name(static_cast<Spread>(node.b));
    } else if (node.kind == NodeKind::position) {
      text = typed("position") + spread_name(static_cast<Spread>(node.b));
    } else if (node.kind == NodeKind::random) {
      text = typed(draw_name(static_cast<Draw>(node.b)));
      for (size_t k = 0; k < kDrawImmediates; ++k) {
        const uint64_t bits = program.immediates[member.immediates[node.a + k]];
        text += (k == 0 ? " " : ", ") + describe_immediate(bits, DType::i64);
      }
    } else if (node.kind == NodeKind::pick) {
      text = typed("pick") + " " + names[node.a] + ", " + names[node.b];
    } else if (node.kind == NodeKind::cast) {
      text = typed("cast") + " " + names[node.a];
    } else {
      const OpInfo& info = op_info(node.op);
      text = typed(info.name) + " " + names[node.a];
      if (info.arity > 1) text += ", " + names[node.b];
      if (info.arity > 2) text += ", " + names[node.c];
    }
    lines.push_back(names[i] + " = " + text);
  }
  return lines;
}

PassText describe_call_pass(const Program& program, const CallKey& call) {
  PassText pass;
  pass.space = call.name;
  for (const uint16_t access : program.reads_of(call)) pass.loaded += footprint(program, access);
  for (const uint16_t access : program.writes_of(call)) pass.stored += footprint(program, access);
  pass.lines.push_back(describe_call(program, call));
  return pass;
}

}  // namespace

std::vector<PassText> describe(const Plan& plan, const Program& program) {
  std::vector<PassText> passes;
  for (const Batch& batch : plan.batches) {
    if (batch.is_call()) {
      passes.push_back(describe_call_pass(program, program.calls[batch.call]));
      continue;
    }
    constexpr const char* kComputeTypes[] = {"f32", "f64", "i64"};
    const std::string name = kComputeTypes[static_cast<size_t>(batch.group.compute_type)];
    PassText pass;
    pass.tensors = batch.members.size();
    int64_t smallest = std::numeric_limits<int64_t>::max(), largest = 0;
    for (const auto& member : batch.members) {
      const int64_t count = program.counts[member.space];
      smallest = std::min(smallest, count);
      largest = std::max(largest, count);
      std::vector<bool> loaded(batch.group.operands.size()), stored(loaded);
      for (const Node& node : batch.group.nodes) {
        if (node.kind == NodeKind::load) loaded[node.a] = true;
        if (node.kind == NodeKind::store) stored[node.b] = true;
      }
      for (size_t i = 0; i < loaded.size(); ++i) {
        const size_t bytes = footprint(program, member.accesses[i]);
        if (loaded[i]) pass.loaded += bytes;
        if (stored[i]) pass.stored += bytes;
      }
    }
    pass.space = name + "[" + std::to_string(smallest) + "]";
    if (smallest != largest) pass.space += " to " + name + "[" + std::to_string(largest) + "]";
    pass.lines = code_lines(batch.group, batch.members.front(), program);
    passes.push_back(std::move(pass));
  }
  return passes;
}

std::string to_string(const Plan& plan, const Program& program) {
  std::string text;
  size_t number = 0;
  for (const PassText& pass : describe(plan, program)) {
    text += "pass " + std::to_string(++number) + ": ";
    if (pass.tensors > 1) text += std::to_string(pass.tensors) + " tensors of ";
    text += pass.space + ", " + std::to_string(pass.loaded) + " B loaded, " +
            std::to_string(pass.stored) + " B stored\n";
    for (const std::string& line : pass.lines) text += "  " + line + "\n";
  }
  return text;
}

}  // namespace hologram
