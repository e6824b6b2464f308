// What the group executor's compiler and its instructions share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "atlas/group.h"

namespace hologram::cpu {

// A place in memory: R[pointer] + offset, plus the progress within the space where mask is -1.
struct Reference {
  int32_t pointer, offset, mask;
};

using AnyCode = void (*)();  // in truth a function over the class's vectors

struct Instruction {
  AnyCode code;
  Reference x, y;
};

// Forms of the operand beside the accumulator; kSwapped + form: it is the first operand.
enum Form { kMemory, kSplat, kSelf, kMemoryBf16, kMemoryF16, kSwapped, kFormCount = 2 * kSwapped };

// Two operands that are not the accumulator: memory of the class's dtype (M), bf16 (B) or f16 (H),
// or a splat (S).
enum Pair { kMM, kMS, kSM, kBB, kBS, kSB, kHH, kHS, kSH, kPairCount };

// Memory that is worth fetching ahead.
struct Stream {
  int32_t pointer;
  int32_t size;  // of an element
  long distance;
};

// The instructions of one compute class.
struct ClassKernels {
  int lanes;  // elements of a block
  DType own;  // the dtype of the class
  AnyCode load[kDTypeCount], store[kDTypeCount], round[kDTypeCount];
  AnyCode load_splat, end;
  AnyCode unary[kOpCount];
  AnyCode binary[kOpCount][kFormCount];
  // add, sub, mul and div of two operands, into the accumulator.
  AnyCode start[4][kPairCount];
  // add, sub, mul and div of the accumulator and x * y, then the other way round. The product is
  // rounded to the dtype of x; a splat is y.
  AnyCode with_product[8][kPairCount];
  // By the accumulator's place among the operands; bit 0 and 1: the first and the second of the
  // others is a splat.
  AnyCode ternary[kOpCount][3][4];
  void (*run)(const Instruction* code, char* const* R, long begin, long end, const Stream* streams,
              int stream_count);
};

struct GroupKernels {
  ClassKernels classes[3];  // by ComputeClass
};

const GroupKernels& baseline_kernels();
#if defined(__x86_64__)
const GroupKernels& avx2_kernels();
const GroupKernels& avx512_kernels();
#endif

}  // namespace hologram::cpu
