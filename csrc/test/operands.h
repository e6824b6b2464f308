// Operations on blocks of floats, for tests and benchmarks.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "atlas/block_state.h"
#include "atlas/op_table.h"
#include "atlas/operands.h"
#include "atlas/window.h"

namespace hologram::test {

// The owner is done with the block.
inline void drop(BlockState* block) {
  if (Window::keep(block)) return;
  block->give_back_memory();
  delete block;
}

inline View dense(BlockState* block, DType dtype = DType::f32, int64_t offset = 0) {
  return {block, offset, dtype, Layout::dense};
}

// A part of a matrix of floats.
inline View part(BlockState* block, int64_t offset, std::span<const int64_t> strides) {
  return {block, 4 * offset, DType::f32, Layout::strided, 0, strides.data()};
}

inline View number(float value) {
  return {nullptr, static_cast<int64_t>(std::bit_cast<uint32_t>(value)), DType::f32,
          Layout::scalar};
}

inline Operands binary(Op op, int64_t count, View out, View a, View b, DType dtype = DType::f32) {
  return {static_cast<Code>(op), dtype, 2, count, {}, out, {a, b, {}}};
}

// What the block holds, once it is computed.
inline std::vector<float> read(BlockState* block) {
  Window::finish(*block);
  std::vector<float> values(block->bytes / 4);
  std::memcpy(values.data(), block->data, block->bytes);
  return values;
}

}  // namespace hologram::test
