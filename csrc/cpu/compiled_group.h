// Fusion groups on a CPU: compiled once to threaded code of precompiled micro-operations, run with
// the addresses of each flush.
//
// Results have the same bits on every instruction set and with any number of threads, and are those
// of the group's nodes run one by one through memory (NaN payloads excepted).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "atlas/export.h"
#include "atlas/group.h"
#include "cpu/parallel.h"
#include "cpu/system.h"
#include "cpu/threaded_code.h"

namespace hologram::cpu {

struct OperandUse {  // of an operand that is not a scalar
  uint16_t operand;
  uint8_t size;  // of an element
  bool strided, loaded, stored;
  uint32_t scratch;  // offset in the frame of a tile's elements
};

struct TypeKernels;  // cpu/kernel_table.h
struct RowGroup;     // cpu/row_group.h

// A group as code; immutable, usable from any thread.
class HOLOGRAM_EXPORT CompiledGroup {
 public:
  size_t bytes() const noexcept;
  // Whether all micro-operations are one precompiled loop (cpu/threaded_code.h).
  bool is_loop() const noexcept;

 private:
  friend class GroupCompiler;
  friend class GroupRun;
  friend class RowRun;
  friend struct RowGroup;
  friend std::unique_ptr<CompiledGroup> compile(const Group& group, Isa isa);
  friend void run(const CompiledGroup& group, std::span<const Binding> bindings,
                  Parallel& parallel);

  // The pointers of a frame: operands, slots, immediates, converted scalars, and one that is no
  // memory: the elements of the space, at the address of each its number times the bytes of one of
  // the compute type.
  void set_up(char* frame, std::span<void* const> operands, const uint64_t* immediates) const;
  int pointer_count() const { return operands_ + 4; }
  int elements_pointer() const { return operands_ + 3; }

  struct ScalarUse {  // a scalar operand that has to be converted
    uint16_t operand;
    DType from, to;
  };

  const TypeKernels* kernels_ = nullptr;
  RunCode run_ = nullptr;
  ComputeType compute_type_ = ComputeType::f32;
  std::vector<MicroOp> code_;
  std::vector<OperandUse> uses_;
  std::vector<ScalarUse> scalars_;
  int operands_ = 0;
  bool strided_ = false;     // some use is
  bool draws_ = false;       // something reads the number of an element
  uint32_t frame_size_ = 0;  // bytes: pointers, scalars, slots, scratch
  uint32_t slots_ = 0, scalars_at_ = 0;
  std::shared_ptr<const RowGroup> rows_;  // of a group with dimensions, which is nothing else
};

// Throws Error for a group that breaks the rules of atlas/group.h or that the CPU cannot compute.
// `isa` has to be one that this processor has.
//
// Values may have the dtypes that their compute type holds exactly: b8, u8, i8, i16, f16, bf16 and
// f32 in f32; these, i32 and f64 in f64; b8 and the integers in i64. Operands in memory may have
// any dtype that is not complex; refused are loads that would pass through the compute type as
// another number (i32, i64 or f64 to a value of the compute type f32 that is not real, floats to b8
// in i64). At most 4096 nodes.
HOLOGRAM_EXPORT std::unique_ptr<CompiledGroup> compile(const Group& group, Isa isa);
inline std::unique_ptr<CompiledGroup> compile(const Group& group) {
  return compile(group, best_isa());
}

// Runs the group with each of the bindings, in any order and at the same time: they may not touch
// memory that another one stores to. Reserves what it needs before the first store; throws
// OutOfMemory or Error only then.
HOLOGRAM_EXPORT void run(const CompiledGroup& group, std::span<const Binding> bindings,
                         Parallel& parallel);
inline void run(const CompiledGroup& group, std::span<const Binding> bindings) {
  run(group, bindings, serial());
}
inline void run(const CompiledGroup& group, const Binding& binding, Parallel& parallel = serial()) {
  run(group, {&binding, 1}, parallel);
}

}  // namespace hologram::cpu
