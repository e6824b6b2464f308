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

// Vector registers that a precompiled loop works on at a time, of a tile's eight: it can run over
// rows of so many.
constexpr int kLoopVectors = 4;

// Tiles of a row that are run at a time where an operand has to be copied.
constexpr int64_t kRowTiles = 4;

// A place so many bytes behind one that need not be in memory.
inline char* moved(char* place, int64_t bytes) {
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(place) +
                                 static_cast<uintptr_t>(bytes));
}

// Memory that is worth fetching ahead.
struct Prefetch {
  int32_t pointer;
  int32_t size;  // of an element
  long distance;
};

// By how much a pointer moves from one row to the next.
struct RowStep {
  int32_t pointer;
  long bytes;
};

// The same of the memory that a micro-operation's references are to.
struct CodeStep {
  long x, y;
};

// What code runs over: of each of some rows the elements from byte `begin` of the compute type's to
// `end`, at least a tile, or what a loop works on at a time. Where it does not end with a tile, the
// last one begins where it has to: elements are computed twice, so nothing may be stored to what is
// loaded. After it the pointers are at the last row.
struct Extent {
  long begin, end;
  long rows = 1;
  const RowStep* steps = nullptr;
  int step_count = 0;
  const CodeStep* code_steps = nullptr;  // of each micro-operation, where there are some rows
  const Prefetch* prefetches = nullptr;
  int prefetch_count = 0;
};
using RunCode = void (*)(const MicroOp* code, char** bases, const Extent& extent);

}  // namespace hologram::cpu
