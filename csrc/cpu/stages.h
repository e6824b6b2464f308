// How a group over rows is run: stages of pointwise code, taking turns over elements and over rows.
//
// A fold over columns is complete when the row is; what reads its result needs another pass over
// the row. So a row goes through stages, over its elements and, in between, over what there is one
// of for each row, many rows at a time. Each stage is a group of its own, without dimensions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "atlas/group.h"

namespace hologram::cpu {

// What an operand of a stage's group is. Buffers hold values of the compute type.
enum class Role : uint8_t {
  operand,         // of the whole group
  row_buffer,      // a value for each row of a block
  spread_buffer,   // the same, one for each element of a block of short rows
  element_buffer,  // a value for each element of a block
  passing_buffer,  // the same, between a stage's code and its folds and scans only
  columns,         // the column of each element: of short rows a buffer, of long ones no memory,
                   // at the address 0, of which the place is the column (NodeKind::position)
};

// How a group goes through stages. Short rows are put end to end: a block of them is one row to the
// code. Of long rows a stage may compute again what is dear, where keeping it would take too much.
// Where rows are whole numbers of registers, what is folded may pass from registers to the fold
// (FoldLoop in cpu/kernel_table.h); else it is as `keeping`.
enum class Manner : uint8_t { short_rows, keeping, computing, folding };

struct StageOperand {
  Role role;
  uint16_t index;  // of the operand or the buffer
};

// The scan of a value, as one operand is stored it. What is stored is read by no code that is still
// to come: the scan of a block, or of a part of a row, follows the code of a stage.
struct Scan {
  Op op;
  DType dtype;
  bool down;          // the rows of a plane
  StageOperand from;  // an operand to which nothing is stored, or a buffer of elements
  uint16_t to;        // operand
  uint16_t number;    // among all
};

inline bool scans_buffers(const std::vector<Scan>& scans) {
  return std::ranges::any_of(scans,
                             [](const Scan& scan) { return scan.from.role != Role::operand; });
}

struct Stage {
  bool over_rows;
  // Its first operands are those of the whole group. One that is the same for a row is a scalar to
  // elements, and dense to rows. There are no folds and scans in it.
  Group group;
  std::vector<StageOperand> more;  // its other operands
  std::vector<uint16_t> folds;     // that follow its code, or precede it where an operand is folded
  std::vector<Scan> scans;

  bool scans_buffers() const { return cpu::scans_buffers(scans); }
  // Scans of operands, and nothing else.
  bool only_scans() const { return group.nodes.empty() && folds.empty() && !scans_buffers(); }
};

struct Fold {
  Op op;
  bool over_rows;
  StageOperand from;             // an operand, or a buffer of elements
  uint16_t result;               // over columns: the row buffer
  std::optional<uint16_t> at{};  // of a pick: the row buffer with the columns
  std::vector<uint16_t> stored;  // over rows: the operands that it is stored to
};

struct Stages {
  std::vector<Stage> stages;  // that have anything to do, in order
  std::vector<Fold> folds;
  uint16_t scans = 0;
  uint16_t row_buffers = 0, element_buffers = 0, passing_buffers = 0;
  std::optional<uint16_t>
      row_numbers;           // the row buffer that holds the row of each row in its plane
  bool has_columns = false;  // there is an operand that is them
};

// Of a group with dimensions.
Stages split(const Group& group, Manner manner);

}  // namespace hologram::cpu
