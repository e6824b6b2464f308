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
//   - A call is made, whoever reads its results; it reads from memory and writes there.
//
// Where results are kept (keep.h), values that no instruction reads are stored too, and groups of
// different turns are neither joined nor batched.
//
// If the program contracts, a*b + c is fma(a, b, c), a*b - c is fma(a, b, -c) and c - a*b is
// fma(-a, b, c) in f32 and f64, where nothing else needs a*b. (Of two products the first is taken.)
// A function of a call's result may be computed with the call, and not round between (Epilogue).
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

// Equal groups, or a call, which has one member and an empty group.
struct Batch {
  static constexpr uint16_t kNoCall = 0xffff;

  Group group;
  struct Member {
    std::vector<uint16_t> accesses;    // of the program, one per operand
    std::vector<uint16_t> immediates;  // of the program
    uint16_t space;
    uint16_t shape;      // of the strided operands, 0 if there are none
    uint16_t structure;  // of the space, 0 where the group has none
  };
  std::vector<Member> members;
  uint16_t call = kNoCall;     // its number in the program; the member's accesses are the call's
  const char* name = nullptr;  // of the call

  bool is_call() const noexcept { return call != kNoCall; }
};

// gelu, with tanh, of the result of a call that nothing else reads. Who computes that call as a
// product may write the gelu in its place; then the group is done.
struct Epilogue {
  uint32_t call, group;      // batches
  uint16_t result, written;  // accesses of the program
};

struct Plan {
  std::vector<Batch> batches;       // in the order of execution
  std::vector<Epilogue> epilogues;  // of programs that contract
  // A slot whose values pass from one batch to others although their block is gone: it needs memory
  // from the first one that touches it to the last.
  struct Scratch {
    uint16_t slot;
    uint32_t first, last;  // batches
  };
  std::vector<Scratch> scratch;  // in the order of their first batches
  // By turn: slots that are stored to for nobody, of blocks that are gone (Instruction::kept). They
  // need memory too, and the turns take the same.
  std::vector<std::vector<uint16_t>> discarded;
  int stores_elided = 0;  // instructions whose result never reaches memory
  size_t calls = 0;       // of the batches
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
  // Compute type and elements, "f32[1000]" or "f32[9] to f32[4096]"; of a call its name.
  std::string space;
  size_t tensors = 1;              // groups that run in this pass
  size_t loaded = 0, stored = 0;   // bytes
  std::vector<std::string> lines;  // the code, with the operands of the first group
};
std::vector<PassText> describe(const Plan& plan, const Program& program);

// Passes and their code, for people and tests.
std::string to_string(const Plan& plan, const Program& program);

}  // namespace hologram
