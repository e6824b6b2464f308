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

// add, sub, mul and div of more than one operand from memory.
struct Arithmetic {
  // Into the accumulator.
  AnyCode start[4][kPairCount];
  // The accumulator and x * y, then the other way round. The product is rounded to the dtype of x;
  // a splat is y. The product of bf16 has to be clean.
  AnyCode with_product[8][kPairCount];
};

// The instructions of one compute class.
struct ClassKernels {
  int lanes;  // elements of a block
  DType own;  // the dtype of the class
  AnyCode load[kDTypeCount], store[kDTypeCount], round[kDTypeCount];
  AnyCode load_splat, end;
  AnyCode round_clean, store_clean;  // of bf16, from clean values (cpu/convert.h); f32 only
  AnyCode store_exact;               // of bf16, from values that it can hold; f32 only
  AnyCode unary[kOpCount];
  AnyCode binary[kOpCount][kFormCount];
  Arithmetic plain;
  // The result is clean and rounded to bf16 (cpu/convert.h); f32 only, null where there is none.
  Arithmetic to_bf16;
  AnyCode binary_to_bf16[4][kFormCount];
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
