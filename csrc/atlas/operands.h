// Operations on their way into a program.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "atlas/block_state.h"
#include "atlas/program.h"

namespace hologram {

// An operand of an instruction. Elements lie in the order of the space.
struct View {
  BlockState* block;
  int64_t offset;  // bytes from the start of the block to element 0
  DType dtype;
  Layout layout;
  // Where `block` is null: 1 + the number of a value that only the instructions recorded with this
  // one use, and that has no memory unless the plan needs some.
  uint16_t temporary = 0;
  const int64_t* strides = nullptr;  // bytes, of a strided view: as many as the space has sizes
  Spread spread = kEach;             // of a dense view
};

struct Operands {
  Code code;
  DType dtype;
  int arity;
  int64_t count;                     // elements of the space
  std::span<const int64_t> sizes{};  // needed where a view is strided
  View out;
  // Each is a view, or with neither block nor temporary an immediate: bits of the compute type in
  // `offset`; of a draw these very bits. One of these that is dense is a position: of spread
  // kColumns the element's column, of kRows its row in its plane.
  std::array<View, 3> in;
  Dimensions dimensions{};  // needed of a scan, and where a view has a spread but kEach and kOne
};

}  // namespace hologram
