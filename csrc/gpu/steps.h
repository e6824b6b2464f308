// A group taken apart into steps, each of which one kernel skeleton runs (gpu/emit.h).
//
// Threads of different rows do not wait for each other, so what needs a value from all rows, or a
// buffer more than a kernel can have, is a step of its own. A step computes again what it needs of
// others' values, but what is folded along rows goes through scratch memory where another skeleton
// reads it. Every load reads what memory held before the group: a store to what a later step
// loads goes to scratch memory first, and a step at the end copies it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atlas/group.h"

namespace hologram::gpu {

// Metal's: buffers of a kernel, the parameters being one of them, and bytes of the parameters.
inline constexpr size_t kMostBuffers = 31;
inline constexpr size_t kMostParameterBytes = 4096;

enum class Skeleton : uint8_t {
  elements,   // a thread for each element, or for a vector of them
  rows,       // a warp or a block of threads for each row
  classes,    // the same for each class of a row: folds what does not depend on folds
  fold_down,  // a thread for some columns of some chunks of rows
  scan,       // a thread for each row or column, or a block for some rows
};

struct Step {
  Skeleton skeleton;
  Spread domain = kEach;    // of `elements`: there is a thread for each of its elements
  Spread axis = kColumns;   // of `scan`
  std::vector<Node> nodes;  // as of a group, with all that they need and nothing else
};

struct Steps {
  ComputeType compute_type;
  bool structured = false;
  int immediates = 0;
  // Those of the group, `given` of them, and those in scratch memory: dense, of the compute type.
  std::vector<Operand> operands;
  size_t given = 0;
  std::vector<Step> list;  // in the order of execution

  bool is_scratch(uint16_t operand) const { return operand >= given; }
};

// `long_rows`: there are few rows, so each is folded by many blocks, class by class. `most_buffers`
// are those of a kernel, the parameters being one of them.
Steps split(const Group& group, bool long_rows, size_t most_buffers = kMostBuffers);

// The spread of each value (of a store, that of what it stores).
std::vector<Spread> spreads_of(const std::vector<Node>& nodes, const std::vector<Operand>& operands,
                               bool structured);
// After how many folds along rows, one reading another's result, each value is there.
std::vector<int> turns_of(const std::vector<Node>& nodes);

inline uint16_t argument_of(const Node& node, int k) {
  return k == 0 ? node.a : k == 1 ? node.b : node.c;
}
// Whether a node reads or writes memory, and that of which operand.
inline bool has_operand(const Node& node) {
  return node.kind == NodeKind::load || node.kind == NodeKind::store;
}
inline uint16_t operand_of(const Node& node) {
  return node.kind == NodeKind::load ? node.a : node.b;
}
inline bool is_row_fold(const Node& node) {
  return node.kind == NodeKind::fold && node.b == kRows;
}
inline bool is_fold_or_scan(const Node& node) {
  return node.kind == NodeKind::fold || node.kind == NodeKind::scan;
}
// The numbers of the nodes for which holds(node, number) is true.
template <class Holds>
std::vector<uint16_t> nodes_where(const std::vector<Node>& nodes, Holds&& holds) {
  std::vector<uint16_t> result;
  for (uint16_t i = 0; i < nodes.size(); ++i) {
    if (holds(nodes[i], i)) result.push_back(i);
  }
  return result;
}
inline std::vector<uint16_t> nodes_of(const std::vector<Node>& nodes, NodeKind kind) {
  return nodes_where(nodes, [kind](const Node& node, uint16_t) { return node.kind == kind; });
}
inline bool has_columns(Spread spread) {
  return (spread & kColumns) != 0;
}

}  // namespace hologram::gpu
