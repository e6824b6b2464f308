// From a recorded program to a plan: which passes over memory are made, and what each computes.
//
// Rules, each exact in bits:
//   - A value that is read again while it is in flight is not loaded: bf16 values are kept rounded.
//   - A tensor that was filled with a number is that number, where it is read as one element for
//     all, or where nobody reads it but the program.
//   - Equal values are computed once (the same operation on the same values); each store stays.
//   - x * 1, x / 1, x - (+0), x + (-0) are x, unless denormals are taken for zeros; -(-x) is x;
//     relu(relu(x)) is relu(x).
//   - The sum over a row of where(position == y, x, +0) is the element of x in the column y.
//   - A store is made only if somebody may read it: a live block, a later group, or an instruction
//     that touches a part of the same bytes.
//   - What no store needs is not computed.
//   - A value that is one for each row is computed beside the elements of the rows.
//
// Where results are kept (keep.h), values that no instruction reads are stored too, and groups of
// different turns are neither joined nor batched.
//
// If the program contracts, a*b + c is fma(a, b, c), a*b - c is fma(a, b, -c) and c - a*b is
// fma(-a, b, c) in f32 and f64, where nothing else needs a*b. (Of two products the first is taken.)
// That is not exact, and off by default.
//
// Groups. An instruction joins the group of a value or an operand it shares if nothing it depends
// on is stored in a later group. It is of the group's space, or of its rows and reads a value of
// the group that is one for each row. Memory is ordered by bytes, not by storages: a group reads
// what it loads before it stores anything, so an instruction goes to a later group than
//   - the stores that it reads from memory,
//   - stores to a part of the bytes it writes, and
//   - loads of a part of the bytes it writes; loads of exactly these bytes may be in its own group.
// Independent groups with equal code become one batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atlas/program.h"

namespace hologram {

struct Batch {
  Group group;
  struct Member {
    std::vector<uint16_t> accesses;    // of the program, one per operand
    std::vector<uint16_t> immediates;  // of the program
    uint16_t space;
    uint16_t shape;      // of the strided operands, 0 if there are none
    uint16_t structure;  // of the space, 0 where the group has none
  };
  std::vector<Member> members;
};

struct Plan {
  std::vector<Batch> batches;  // in the order of execution
  // Slots whose values pass from group to group although their block is gone: they need memory
  // while the plan runs.
  std::vector<uint16_t> scratch;
  // By turn: slots that are stored to for nobody, of blocks that are gone (Instruction::kept). They
  // need memory too, and the turns take the same.
  std::vector<std::vector<uint16_t>> discarded;
  int stores_elided = 0;  // instructions whose result never reaches memory
};

// A group holds at most so many nodes and operands.
inline constexpr size_t kMostNodes = 96;
inline constexpr size_t kMostOperands = 24;

Plan canonicalise(const Program& program);

ComputeType compute_type_of(DType dtype) noexcept;

// How often each operand of a group is gone through: once where it is loaded or stored, twice where
// it is both.
std::vector<uint8_t> traversals(const Group& group);

// One pass for people to read, and what it moves.
struct PassText {
  std::string space;              // compute type and elements, "f32[1000]" or "f32[9] to f32[4096]"
  size_t tensors = 1;             // groups that run in this pass
  size_t loaded = 0, stored = 0;  // bytes
  std::vector<std::string> lines;  // the code, with the operands of the first group
};
std::vector<PassText> describe(const Plan& plan, const Program& program);

// Passes and their code, for people and tests.
std::string to_string(const Plan& plan, const Program& program);

}  // namespace hologram
