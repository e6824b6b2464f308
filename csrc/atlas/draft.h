// Groups while they are put together: what the parts of the canonicaliser hand to each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "atlas/canonicalise.h"
#include "atlas/program.h"

namespace hologram {

// What an instruction computes.
struct Value {
  size_t group;
  uint16_t node;
  DType dtype;
  uint16_t access;      // where its instruction writes it
  Spread spread;        // of that, in the group's space
  bool wanted = false;  // somebody reads it from memory
};

using ValueId = uint32_t;
constexpr ValueId kNoValue = ~ValueId{0};

// A group while it is put together. Stores are added at the end.
struct Draft {
  // An access as the group goes through it.
  struct Place {
    uint16_t access;
    Spread spread;
    bool operator==(const Place&) const = default;
  };

  Draft(ComputeType compute, uint16_t space_number) : compute_type(compute), space(space_number) {}
  ComputeType compute_type;
  uint16_t space;
  uint16_t shape = 0;
  uint16_t structure = 0;
  uint16_t turn = 0;
  uint16_t call = Batch::kNoCall;  // of the program: the draft is that, without nodes
  std::vector<Node> nodes;
  std::vector<Spread> spreads;       // of each value
  std::vector<Place> operands;       // that are loaded, then those stored to
  std::vector<uint16_t> immediates;  // numbers of the program's
  struct Load {
    uint16_t node;  // of no meaning of a call's
    Place place;
    std::vector<ValueId> sources;  // values that must have been stored before
  };
  std::vector<Load> loads;
  std::vector<ValueId> values;
  std::vector<size_t> after;            // groups that have to be executed before
  std::vector<size_t> followers{};      // groups that have to be executed after
  std::optional<size_t> merged_into{};  // a later one
};

inline uint16_t operand_of(std::vector<Draft::Place>& operands, Draft::Place place) {
  const auto found = std::find(operands.begin(), operands.end(), place);
  if (found != operands.end()) return static_cast<uint16_t>(found - operands.begin());
  operands.push_back(place);
  return static_cast<uint16_t>(operands.size() - 1);
}

// The groups of a program in the order in which they were begun.
struct Drafts {
  std::vector<Value> values;
  std::vector<Draft> groups;

  // The group that a group has become part of.
  size_t root(size_t group) const {
    while (groups[group].merged_into) group = *groups[group].merged_into;
    return group;
  }
};

// Which instructions are computed together (grouping.cpp).
Drafts group_instructions(const Program& program);

// Takes out what nobody needs (dead_code.cpp). A group for each draft, without members where
// nothing is left of it; values say whether they are wanted.
std::vector<Batch> drop_dead_code(const Program& program, Drafts& drafts);

// Puts groups in order, equal ones of one level together, and finds what memory they need
// (batching.cpp).
Plan batch_groups(const Program& program, const Drafts& drafts, std::vector<Batch> groups);

// Which groups a call may compute in their place (epilogues.cpp).
void find_epilogues(const Program& program, Plan& plan);

}  // namespace hologram
