// The immediates of a program that is being recorded: equal ones are one value.
#pragma once

#include <array>
#include <cstdint>

#include "atlas/column.h"
#include "atlas/program.h"

namespace hologram {

class Immediates {
 public:
  // The number of an immediate with these bits of the dtype's compute type, which a NaN loses:
  // there is one of each. Needs capacity in the program's columns and here.
  uint16_t find_or_add(Program& program, uint64_t bits, DType dtype);

  // The number of another immediate, of these very bits, of which nobody may know anything.
  uint16_t add(Program& program, uint64_t bits);

  void reserve(size_t count) { before_.reserve(count); }
  void clear() noexcept { before_.clear(); }

 private:
  static constexpr uint16_t kNone = 0xffff;
  // By a hash of the bits: the immediate that was added last. What an earlier program left here is
  // no immediate of this one, or one with another hash, behind which there is nothing to find.
  std::array<uint16_t, 256> newest_{};
  Column<uint16_t> before_;  // of each, one of the same hash that was added before
};

}  // namespace hologram
