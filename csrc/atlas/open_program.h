// The program that is being recorded, and what finds its parts again: blocks, accesses, numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atlas/block_state.h"
#include "atlas/call.h"
#include "atlas/checks.h"
#include "atlas/column.h"
#include "atlas/immediates.h"
#include "atlas/operands.h"
#include "atlas/overlap.h"
#include "atlas/program.h"

namespace hologram {

class OpenProgram {
 public:
  // Accesses of a block from which on they are found by an index.
  static constexpr int kIndexedFrom = 8;

  explicit OpenProgram(Window& window) : window_(window) {}

  // Capacity for so many instructions.
  void reserve(size_t instructions);
  size_t capacity() const noexcept { return capacity_; }
  void clear() noexcept;

  // How many values the instructions that follow, up to the next call, have of their own.
  void begin_temporaries(size_t count) { temporaries_.assign(count, {}); }
  // Needs capacity. `number`: of this program, as blocks say it.
  void append(const Operands& operands, uint64_t number);
  // Needs capacity for instructions_of() it.
  void append(CallOperands& call, uint64_t number);
  // How many instructions have as many accesses.
  static size_t instructions_of(const CallOperands& call) {
    return (call.reads.size() + call.writes.size() + 3) / 4;
  }
  // That capacity is used up for.
  size_t held() const noexcept { return program.code.size() + more_accesses_; }

  Program program;
  Column<bool> dead;   // by slot: the owner has freed the block
  size_t bytes = 0;    // of blocks that were allocated while it was recorded, and are not dead
  size_t retired = 0;  // bytes of blocks that nobody has any more
  // Accesses that were compared with another one.
  size_t comparisons = 0;
  std::vector<std::string> origins;  // of instructions, while capturing
  std::vector<Check> checks;

 private:
  SlotState& state_of(const View& view, uint64_t number);
  SlotState& state_of_temporary(uint16_t number);
  uint16_t access_of(const Range& range, uint64_t number, bool written);
  uint16_t access_of(const View& view, const Operands& operands, uint16_t space, uint64_t number,
                     bool written);
  uint16_t strided_access_of(const View& view, const Operands& operands, uint16_t space,
                             uint64_t number, bool written);
  uint16_t another_access(SlotState& state, const View& view, const Operands& operands,
                          uint64_t key, bool written);
  void write(const SlotState& state, uint16_t access);
  void compare(uint16_t access, uint16_t other);
  void index_accesses(SlotState& state);
  void link(IndexedAccesses& index, uint16_t access);
  void add_to_index(IndexedAccesses& index, uint16_t access);
  void write_in_index(IndexedAccesses& index, uint16_t access);
  int32_t last_access_at(const SlotState& state, int64_t offset) const;
  uint16_t space_of(int64_t count);
  uint16_t space_of(const View& view, const Operands& operands, uint16_t space);
  uint16_t structure_of(const Dimensions& dimensions);
  uint16_t shape_of(std::span<const int64_t> sizes);
  Source immediate_of(uint64_t bits, DType dtype);

  Window& window_;
  std::vector<IndexedAccesses> indexes_;
  std::vector<SlotState> temporaries_;  // of the instructions that are being recorded
  Immediates immediates_;
  size_t capacity_ = 0;
  size_t more_accesses_ = 0;     // of calls: as instructions, but for one each
  std::vector<uint16_t> found_;  // of an AccessIndex; kept
};

}  // namespace hologram
