// How a group over rows is run: stages of pointwise code, taking turns over elements and over rows.
//
// A fold over columns is complete when the row is; what reads its result needs another pass over
// the row. So a row goes through stages, over its elements and, in between, over what there is one
// of for each row, many rows at a time. Each stage is a group of its own, without dimensions.
#pragma once

#include <cstdint>
#include <vector>

#include "atlas/group.h"

namespace hologram::cpu {

// What an operand of a stage's group is.
enum class Role : uint8_t {
  operand,         // of the whole group
  row_buffer,      // a value of the compute type for each row of a block
  element_buffer,  // a value of the compute type for each element of a block
  accumulators,    // of a fold, of the compute type: the frame's or, of one over rows, the columns'
  mask,            // which lanes of a row's last tile count
};

struct StageOperand {
  Role role;
  uint16_t index;  // of the operand, the buffer or the fold
};

struct Stage {
  bool over_rows;
  // Its first operands are those of the whole group. One that is the same for a row is a scalar to
  // elements, and dense to rows. A fold's `c` is the operand of its accumulators.
  Group group;
  std::vector<StageOperand> more;  // its other operands
  std::vector<uint16_t> folds;     // that it completes
};

struct Fold {
  Op op;
  bool over_rows;
  uint16_t result;               // over columns: the row buffer
  std::vector<uint16_t> stored;  // over rows: the operands that it is stored to
  uint16_t stage;
};

struct Stages {
  std::vector<Stage> stages;  // that have anything to do, in order
  std::vector<Fold> folds;
  uint16_t row_buffers = 0, element_buffers = 0;
};

// Of a group with dimensions. `keeps`: values of elements that are dear are kept from stage to
// stage; else every stage computes all it needs again.
Stages split(const Group& group, bool keeps);

}  // namespace hologram::cpu
