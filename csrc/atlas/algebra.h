// The algebra of the canonicaliser: what of an expression may be written in another way.
//
// Rules are tables in algebra.cpp, an equation each. Those of simplified() are exact in every bit
// and tried whenever a node is about to be made; those of contract() are not, and opt-in.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "atlas/group.h"
#include "atlas/op_info.h"
#include "atlas/program.h"

namespace hologram {

// What rules may look at: the nodes so far, and what is known of immediates.
struct Expression {
  std::span<const Node> nodes;
  std::span<const uint16_t> immediates;  // the program's number of each of the group's
  const Program& program;
  ComputeType compute_type;
};

// The node that op(operands) is equal to, if there is one already.
std::optional<uint16_t> simplified(const Expression& expression, Op op, DType dtype,
                                   const std::array<uint16_t, 3>& operands);

// What the fold over a row of a node is equal to without one, if it is the sum of the element at a
// position and of zeros.
std::optional<Node> picked(const Expression& expression, std::span<const Spread> spreads, Op fold,
                           uint16_t node);

// Orders the operands of a node that may be in any order, so that equal nodes are equal.
void order_operands(Node& node);

// Makes one node of a product and the sum or difference that alone needs it. The node is rounded
// once.
void contract(Group& group);

}  // namespace hologram
