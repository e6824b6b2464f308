// The micro-operations of an instruction set, by what they do.
#pragma once

#include "atlas/group.h"
#include "atlas/op_table.h"
#include "cpu/system.h"
#include "cpu/threaded_code.h"

namespace hologram::cpu {

// Forms of the operand beside the accumulator; kSwapped + form: it is the first operand.
enum Form { kMemory, kSplat, kSelf, kMemoryBf16, kMemoryF16, kSwapped, kFormCount = 2 * kSwapped };

// Two operands that are not the accumulator: memory of the compute type's dtype (M), bf16 (B) or
// f16 (H), or a splat (S).
enum Pair { kMM, kMS, kSM, kBB, kBS, kSB, kHH, kHS, kSH, kPairCount };

// Operands of a ternary operation beside the accumulator.
enum Other { kFromMemory, kFromSplat, kFromBf16, kOtherCount };

// Rows whose cost is arithmetic, of more than one operand from memory; by arithmetic_index().
struct Arithmetic {
  // Into the accumulator.
  AnyCode start[kArithmeticCount][kPairCount];
  // The accumulator and x * y, then the other way round. The product is rounded to the dtype of x;
  // a splat is y. The product of bf16 has to be clean.
  AnyCode with_product[2 * kArithmeticCount][kPairCount];
};

// Micro-operations (without the `end` that follows) as one loop. Most programs of a single
// operation are such a sequence, and spend half of their time on the way from one to the next.
struct Loop {
  static constexpr int kMost = 7;
  AnyCode code[kMost];
  int length;
  RunCode run;
};

// The same, followed by the fold of what comes of them, which is not stored. A row is a whole
// number of registers.
struct FoldLoop {
  AnyCode code[Loop::kMost];
  int length;
  Op op;
  bool over_rows;
  // Over columns: to[r] = the fold of row r. Over rows: to[c] = that of the elements c of the rows
  // in order, after what is there if it `continues`.
  void (*run)(const MicroOp* code, char** bases, const Extent& extent, void* to, bool continues);
};

// What a loop is called with.
struct Placed {
  const MicroOp* code;
  char** bases;
  const Extent* extent;
};

// A fold over columns and the loop that needs it, row by row: what both read is in the nearest
// cache for the second. `loop` may read the fold of its row where `to` has it.
struct FoldThenLoop {
  decltype(FoldLoop::run) fold;
  RunCode loop;
  void (*run)(const Placed& fold, void* to, const Placed& loop);
};

// What belongs to the fold of a row of the op table, where there is one (atlas/group.h). By dtype
// in memory: the compute type's, and of f32 the half types; null: there is none.
struct FoldKernels {
  // to[r] = the fold of row r, which has at least an element. Rows are `stride` bytes apart; what
  // is before `end` may be read.
  void (*rows[kDTypeCount])(void* to, const void* from, long rows, long columns, long stride,
                            const void* end);
  // to[c] = the fold of the elements c of the rows in order, after what is there if it `continues`.
  void (*columns[kDTypeCount])(void* to, const void* from, long rows, long columns, long stride,
                               bool continues);
  // to[i] = fold of a[i] and b[i].
  void (*join)(void* to, const void* a, const void* b, long count);
};

// What belongs to the scan of a row of the op table, where there is one (atlas/group.h). By the
// dtype of what is stored; null: there is none.
struct ScanKernels {
  // Rows of elements, so many bytes apart. `running` has a value of at most eight bytes for each
  // row, or of a scan down the rows for each column: the last one, after which the scan goes on if
  // it `continues`.
  using Code = void (*)(void* to, const void* from, void* running, long rows, long columns,
                        long to_stride, long from_stride, bool continues);
  struct Axis {
    Code of_own[kDTypeCount];   // of values of the compute type's dtype, rounded as stored ones
    Code of_same[kDTypeCount];  // of elements of the dtype that is stored; of f32 alone
  } along, down;
};

// The micro-operations of one compute type.
struct TypeKernels {
  int lanes;  // elements of a tile
  DType own;  // the dtype of the compute type
  AnyCode load[kDTypeCount], store[kDTypeCount], round[kDTypeCount];
  AnyCode load_splat, end;
  AnyCode position;  // the place of each element in an operand that has no memory (cpu/stages.h)
  // By Draw, and by the dtype of what is drawn; null: there is none. x: the pointer whose address
  // is the number of the element; y: the first of kDrawImmediates.
  AnyCode draws[kDrawCount][kDTypeCount];
  AnyCode round_clean, store_clean;  // of bf16, from clean values (cpu/convert.h); f32 only
  AnyCode store_exact;               // of bf16, from values that it can hold; f32 only
  AnyCode unary[kOpCount];
  AnyCode binary[kOpCount][kFormCount];
  Arithmetic plain;
  // The result is clean and rounded to bf16 (cpu/convert.h); f32 only, null where there is none.
  Arithmetic to_bf16;
  AnyCode binary_to_bf16[kArithmeticCount][kFormCount];
  // By the accumulator's place among the operands, and what the others are; null: there is none.
  AnyCode ternary[kOpCount][3][kOtherCount][kOtherCount];
  FoldKernels folds[kOpCount];
  ScanKernels scans[kOpCount];
  // to[r * columns + c] = from[r]; up to a register behind the last one is overwritten.
  void (*spread)(void* to, const void* from, long rows, long columns);
  RunCode run;  // of any code
  static constexpr int kMostLoops = 256;
  Loop loops[kMostLoops];
  int loop_count;
  static constexpr int kMostFoldLoops = 40;
  FoldLoop fold_loops[kMostFoldLoops];
  int fold_loop_count;
  static constexpr int kMostPairs = 4;
  FoldThenLoop pairs[kMostPairs];
  int pair_count;
};

// The loops of cpu/depthwise.cpp.
struct DepthwiseTap {
  int64_t offset;  // of what it reads for the first output
  float weight;
};
// So many elements behind those that are asked for may be read, and written.
inline constexpr int64_t kDepthwiseSlack = 64;
struct DepthwiseKernels {
  // to[i] = the sum over the taps of weight * from[offset + i].
  void (*sums)(const DepthwiseTap* taps, int64_t tap_count, const float* from, float* to,
               int64_t count);
  // to[t] += the sum of grad[i] * from[taps[t].offset + i] over places that are inside, a mask.
  void (*products)(const DepthwiseTap* taps, int64_t tap_count, const float* from,
                   const float* grad, const uint32_t* inside, int64_t count, float* to);
};

struct GroupKernels {
  TypeKernels types[3];  // by ComputeType
  TypeKernels bytes;     // of groups in which everything is b8, in lanes of a byte
  DepthwiseKernels depthwise;
};

const GroupKernels& kernels_for(Isa isa);

const GroupKernels& baseline_kernels();
#if defined(__x86_64__)
const GroupKernels& avx2_kernels();
const GroupKernels& avx512_kernels();
#endif

}  // namespace hologram::cpu
