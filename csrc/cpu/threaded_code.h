// Threaded code: what the compiler of groups makes, and micro-operations are given.
//
// A micro-operation is a precompiled function of the CPU; a compiled group is an array of them.
// Each works on a tile, as many elements as eight vector registers hold.
#pragma once

#include <cstddef>
#include <cstdint>

#include "atlas/group.h"

namespace hologram::cpu {

// A place in memory: bases[pointer] + offset, plus the progress within the space where mask is -1.
struct Reference {
  int32_t pointer, offset, mask;
};

using AnyCode = void (*)();  // in truth a function over the compute type's vectors

struct MicroOp {
  AnyCode code;
  Reference x, y;
};

// Tiles of a row that are run at a time where an operand has to be copied.
constexpr int64_t kRowTiles = 4;

// Memory that is worth fetching ahead.
struct Prefetch {
  int32_t pointer;
  int32_t size;  // of an element
  long distance;
};

// Runs code over tiles from byte `begin` of the compute type's elements to `end`.
using RunCode = void (*)(const MicroOp* code, char* const* bases, long begin, long end,
                         const Prefetch* prefetches, int prefetch_count);

}  // namespace hologram::cpu
