// A recorded program: what a window collects until it is flushed.
//
// A program is kept as parallel arrays. Some of them say what is computed, free of addresses, sizes
// and numbers: those are the key under which its plan is cached. The others hold what changes from
// one flush to the next.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atlas/column.h"
#include "atlas/dtype.h"
#include "atlas/float_mode.h"
#include "atlas/group.h"
#include "atlas/op_info.h"

namespace hologram {

class Call;
struct BlockState;

// An index into Program::accesses, or with the highest bit set one into Program::immediates, or the
// position of each element in the instruction's space: its row or its column, as the spread says.
using Source = uint16_t;
inline constexpr Source kImmediate = 0x8000;
inline constexpr Source kNothing = 0x7fff;
inline constexpr Source kPosition = 0x7ffe;
constexpr bool is_access(Source source) noexcept {
  return source < kPosition;
}

// What an instruction computes: a row of the op table, the fold of one, the scan of one, `copy`,
// which converts its source to the dtype of its destination (fill is a copy of an immediate), a
// draw of random numbers, or a call (atlas/call.h).
using Code = uint16_t;
inline constexpr Code kCopy = 0xffff, kCall = 0x0fff;
inline constexpr Code kDraw = 0x0e00;  // + the Draw
// + the number of the row
inline constexpr Code kFoldOf = 0x4000, kScanAlongRows = 0x2000, kScanDownRows = 0x1000;
constexpr bool is_fold(Code code) noexcept {
  return code != kCopy && (code & kFoldOf) != 0;
}
constexpr bool is_scan(Code code) noexcept {
  return code != kCopy && (code & (kScanAlongRows | kScanDownRows)) != 0;
}
constexpr Op op_of(Code code) noexcept {
  return static_cast<Op>(code & ~(kFoldOf | kScanAlongRows | kScanDownRows));
}  // neither of kCopy nor of a draw nor of kCall
constexpr bool is_draw(Code code) noexcept {
  return (code & 0xff00) == kDraw;
}
constexpr Draw draw_of(Code code) noexcept {
  return static_cast<Draw>(code & 0xff);
}
constexpr Code code_of(Draw draw) noexcept {
  return static_cast<Code>(kDraw | static_cast<Code>(draw));
}
constexpr Code fold_of(Op op) noexcept {
  return static_cast<Code>(kFoldOf | static_cast<Code>(op));
}
// axis: kColumns or kMiddle, as of NodeKind::scan.
constexpr Code scan_of(Op op, Spread axis) noexcept {
  return static_cast<Code>((axis == kColumns ? kScanAlongRows : kScanDownRows) |
                           static_cast<Code>(op));
}
constexpr Spread scan_axis(Code code) noexcept {
  return (code & kScanAlongRows) != 0 ? kColumns : kMiddle;
}
const char* code_name(Code code) noexcept;  // not of kCall

// out = code(in ...), element by element over a space, or a fold over some of its dimensions, or a
// scan over one. The operands are converted to `dtype`, in which the operation computes. Those of a
// draw are the immediates that its node has. Of a call
// `out`, `dtype` and `space` are those of the first access that it writes, its number is in[0], and
// all that it touches is in Program::calls: its arity is 0.
struct Instruction {
  Code code;
  DType dtype;
  uint8_t arity;
  uint16_t out;  // access
  std::array<Source, 3> in;
  uint16_t space;          // its elements: an index into Program::counts
  uint16_t structure = 0;  // its dimensions, 0 where all spreads are kEach or kOne
  // Of the result (bits 0 to 2) and of each operand (3 bits each).
  uint16_t spreads = 07777;
  // Set while results are kept (atlas/keep.h), else 0: the result is stored though nobody reads it,
  // and instructions of different turns share no work.
  uint16_t kept : 1 = 0;
  uint16_t turn : 15 = 0;
  static constexpr uint16_t kMostTurns = 0x7fff;

  Spread out_spread() const noexcept { return spreads & kEach; }
  Spread spread(size_t operand) const noexcept { return spreads >> (3 + 3 * operand) & kEach; }
};
static_assert(sizeof(Instruction) == 20);

// What is known of a call, and where its accesses are in Program::call_accesses.
struct CallKey {
  const char* name;
  uint32_t first;
  uint16_t reads, writes;
};
static_assert(sizeof(CallKey) == 16);

// The dimensions of a space, by the numbers of their counts.
struct Structure {
  uint16_t planes, rows, columns;
  uint16_t all_rows;  // of all planes
};

// How instructions touch a block. Equal accesses of a program have equal numbers.
struct AccessKey {
  uint16_t slot;
  DType dtype;
  Layout layout;   // dense or strided
  uint16_t space;  // its own elements, or those of the instruction where it is strided
  uint16_t shape;  // of a strided access, else 0
};
static_assert(sizeof(AccessKey) == 8);

// What the canonicaliser may know of an immediate. By its bits: -0 is not 0. bf16: another number
// that bf16 has, of an instruction of that dtype.
enum class Special : uint8_t { none, zero, negative_zero, one, minus_one, bf16 };

// A block that the program touches.
struct SlotKey {
  bool inside;  // allocated while the program was recorded: nothing of it is older
  bool live;    // somebody may read it after the program; set when the program is closed

  // Else its block is gone: its values need no memory, or what the plan has for them.
  bool has_memory() const noexcept { return live || !inside; }
};

// Where an access lies. What a block is may differ from flush to flush, so this is not in the key.
struct Place {
  int64_t offset;  // of element 0, in bytes from the start of the block
  int32_t next;    // an access of the same block before this one, -1 for none (open_program.h)
  uint32_t stride : 31;  // of a strided access: its first one in Program::strides
  uint32_t written : 1;  // some instruction writes it
};

struct Program {
  // The key.
  Column<Instruction> code;
  Column<CallKey> calls;
  Column<uint16_t> call_accesses;
  Column<AccessKey> accesses;
  // Pairs of accesses of one block, the higher number first, of which one is written.
  Column<std::array<uint16_t, 2>> overlaps;
  Column<Special> specials;  // one per immediate; equal ones share a number
  Column<SlotKey> slots;
  Column<Structure> structures;  // number 0 is none, and not there before another one is
  bool contracts = false;        // a * b + c may be rounded once; set when the program is closed
  FloatMode float_mode = 0;      // in which it computes

  // The rest.
  Column<Place> places;     // of each access
  Column<int64_t> strides;  // bytes; as many per strided access as its shape has sizes
  Column<uint64_t> immediates;
  Column<int64_t> counts;      // of elements, each number once
  Column<BlockState*> blocks;  // of each slot; null where it is a temporary, or freed and inside
  Column<size_t> block_bytes;  // of each slot, 0 for a temporary
  struct Shape {
    std::vector<int64_t> sizes;
  };
  std::vector<Shape> shapes;                  // number 0 is none
  std::vector<std::shared_ptr<Call>> bodies;  // of each call

  void clear() noexcept;
  // Room for so many instructions with all they bring, but overlaps, strides and shapes.
  void reserve(size_t instructions);
  Program key() const;  // a copy of it
  const char* name_of(const Instruction& instruction) const noexcept;
  std::span<const uint16_t> reads_of(const CallKey& call) const noexcept {
    return {call_accesses.data() + call.first, call.reads};
  }
  std::span<const uint16_t> writes_of(const CallKey& call) const noexcept {
    return {call_accesses.data() + call.first + call.reads, call.writes};
  }
  const CallKey& call_of(const Instruction& instruction) const noexcept {
    return calls[instruction.in[0]];
  }
  // The accesses that an instruction writes.
  std::span<const uint16_t> writes_of(const Instruction& instruction) const noexcept {
    if (instruction.code == kCall) [[unlikely]]
      return writes_of(call_of(instruction));
    return {&instruction.out, 1};
  }
  // f(access) of each that an instruction reads.
  template <class F>
  void each_read(const Instruction& instruction, F&& f) const {
    if (instruction.code == kCall) [[unlikely]] {
      for (const uint16_t access : reads_of(call_of(instruction))) f(access);
    }
    for (size_t i = 0; i < instruction.arity; ++i) {
      if (is_access(instruction.in[i])) f(instruction.in[i]);
    }
  }
  size_t key_bytes() const noexcept;
  bool same_key(const Program& other) const noexcept;
  uint64_t hash() const noexcept;
};

const char* spread_name(Spread spread) noexcept;   // " by row", nothing for kEach and kOne
const char* scan_axis_name(Spread axis) noexcept;  // " along rows" or " down rows"

// Text for people and tests. A block is b0, b1 ... in the order in which the program touches them,
// or t2 if nobody can read it after the program. "b0+16:f32[4]" are 4 elements from byte 16 of it,
// "b0:f32[]" is one that is broadcast, "b0:f32[2, 3]{1, 2}" has strides (in elements).
std::string describe_access(const Program& program, uint16_t access, Spread spread = kEach);
std::string describe_call(const Program& program, const CallKey& call);
std::string describe_immediate(uint64_t bits, DType dtype);  // of the compute type of dtype
std::vector<std::string> describe(const Program& program);   // "t1:f32[4] = mul.f32(b0:f32[4], 2)"
std::string to_string(const Program& program);               // these, one a line

}  // namespace hologram
