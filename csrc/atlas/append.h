// Appending to the open program: what every instruction goes through, in line for window.cpp alone.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "atlas/open_program.h"

namespace hologram {

// The bytes of an AccessKey, put together in a register: it is compared right after it was stored,
// and eight bytes cannot be loaded from narrower stores that are still on their way.
inline uint64_t packed(uint16_t slot, DType dtype, Layout layout, uint16_t space, uint16_t shape) {
  static_assert(std::endian::native == std::endian::little && sizeof(AccessKey) == 8 &&
                offsetof(AccessKey, dtype) == 2 && offsetof(AccessKey, layout) == 3 &&
                offsetof(AccessKey, space) == 4 && offsetof(AccessKey, shape) == 6);
  return slot | uint64_t{static_cast<uint8_t>(dtype)} << 16 |
         uint64_t{static_cast<uint8_t>(layout)} << 24 | uint64_t{space} << 32 |
         uint64_t{shape} << 48;
}

inline SlotState& OpenProgram::state_of(const View& view, uint64_t number) {
  BlockState* const block = view.block;
  if (block == nullptr) [[unlikely]]
    return state_of_temporary(view.temporary);
  if (block->program.load(std::memory_order_relaxed) == number) return block->place;
  const auto slot = static_cast<uint16_t>(program.slots.size());
  const bool inside = block->born == number;
  program.slots.push({inside, true});
  if (inside) bytes += block->bytes;
  program.blocks.push(block);
  program.block_bytes.push(block->bytes);
  dead.push(false);
  block->place = {slot, -1, -1};
  block->window.store(&window_, std::memory_order_release);
  block->program.store(number, std::memory_order_release);
  return block->place;
}

inline uint16_t OpenProgram::space_of(int64_t count) {
  auto& counts = program.counts;
  for (size_t i = counts.size(); i-- > 0;) {
    if (counts[i] == count) return static_cast<uint16_t>(i);
  }
  counts.push_back(count);
  return static_cast<uint16_t>(counts.size() - 1);
}

// In line, with what is rare out of line: three calls of an instruction would take a quarter of the
// time in which it is recorded.
[[gnu::always_inline]] inline uint16_t OpenProgram::access_of(const View& view,
                                                              const Operands& operands,
                                                              uint16_t space, uint64_t number,
                                                              bool written) {
  if (view.layout == Layout::strided) [[unlikely]]
    return strided_access_of(view, operands, space, number, written);
  SlotState& state = state_of(view, number);
  const uint64_t key = packed(state.slot, view.dtype, Layout::dense, space, uint16_t{0});
  if (state.last_access < 0) {  // nothing to compare with
    const auto access = static_cast<uint16_t>(program.accesses.size());
    program.accesses.push(std::bit_cast<AccessKey>(key));
    program.places.push({view.offset, -1, 0, written});
    state.last_access = access;
    return access;
  }
  int32_t i = state.index < 0 ? state.last_access : last_access_at(state, view.offset);
  while (i >= 0) {
    const auto known = static_cast<size_t>(i);
    const Place& place = program.places[known];
    if (place.offset == view.offset && std::bit_cast<uint64_t>(program.accesses[known]) == key) {
      if (written && !place.written) write(state, static_cast<uint16_t>(i));
      return static_cast<uint16_t>(i);
    }
    i = place.next;
  }
  return another_access(state, view, operands, key, written);
}

// Whether any spread of an instruction's is neither kEach nor kOne.
inline bool has_dimensions(unsigned spreads) {
  for (; spreads != 0; spreads >>= 3) {
    if (((spreads + 1) & kEach) > 1) return true;
  }
  return false;
}

// The elements of an operand.
inline uint16_t OpenProgram::space_of(const View& view, const Operands& operands, uint16_t space) {
  if (view.layout == Layout::scalar) return space_of(1);
  if (view.spread != kEach) [[unlikely]]
    return space_of(spread_count(view.spread, operands.dimensions));
  return space;
}

inline Source OpenProgram::immediate_of(uint64_t bits, DType dtype) {
  return static_cast<Source>(kImmediate | immediates_.find_or_add(program, bits, dtype));
}

[[gnu::always_inline]] inline void OpenProgram::append(const Operands& operands, uint64_t number) {
  const uint16_t space = space_of(operands.count);
  // Written where it stays, field by field: a copy would wait for these stores.
  Instruction& instruction = program.code.push_unwritten();
  instruction.code = operands.code;
  instruction.dtype = operands.dtype;
  instruction.arity = static_cast<uint8_t>(operands.arity);
  instruction.space = space;
  instruction.structure = 0;
  instruction.kept = 0;
  instruction.turn = 0;
  unsigned spreads = operands.out.spread;
  for (size_t i = 0; i < 3; ++i) {
    const View& in = operands.in[i];
    if (static_cast<int>(i) >= operands.arity) {
      instruction.in[i] = kNothing;
    } else if (in.block == nullptr && in.temporary == 0) {
      if (in.layout == Layout::dense) [[unlikely]] {
        spreads |= unsigned{in.spread} << (3 + 3 * i);
        instruction.in[i] = kPosition;
        continue;
      }
      const auto bits = static_cast<uint64_t>(in.offset);
      if (is_draw(operands.code)) [[unlikely]] {
        instruction.in[i] = static_cast<Source>(kImmediate | immediates_.add(program, bits));
        continue;
      }
      instruction.in[i] = immediate_of(bits, operands.dtype);
    } else {
      const Spread spread = in.layout == Layout::scalar ? kOne : in.spread;
      spreads |= unsigned{spread} << (3 + 3 * i);
      instruction.in[i] = access_of(in, operands, space_of(in, operands, space), number, false);
    }
  }
  instruction.spreads = static_cast<uint16_t>(spreads);
  if (operands.dimensions.columns != 0 && (has_dimensions(spreads) || is_scan(operands.code)))
      [[unlikely]]
    instruction.structure = structure_of(operands.dimensions);
  instruction.out =
      access_of(operands.out, operands, space_of(operands.out, operands, space), number, true);
}

}  // namespace hologram
