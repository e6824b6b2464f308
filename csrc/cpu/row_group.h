// Groups over rows (cpu/stages.h), compiled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "atlas/group.h"
#include "cpu/compiled_group.h"
#include "cpu/kernel_table.h"
#include "cpu/stages.h"

namespace hologram::cpu {

struct RowGroup {
  struct StageCode {
    std::unique_ptr<CompiledGroup> code;
    std::vector<MicroOp> masked;  // its code where only some lanes of a tile count
    bool over_rows = false;
    bool in_place = false;  // it loads what it stores to
    std::vector<StageOperand> more;
    std::vector<uint16_t> folds;
  };
  struct Way {
    std::vector<StageCode> stages;
    std::vector<Fold> folds;
    uint16_t row_buffers = 0, element_buffers = 0;
  };

  RowGroup(const Group& group, Isa isa);
  size_t bytes() const noexcept;
  // What serves rows of so many columns best: this, or where its tiles are too wide for them, the
  // same in narrower registers, which is compiled when it is first asked for.
  const RowGroup& for_columns(int64_t columns) const;

  const TypeKernels* kernels = nullptr;
  std::vector<Operand> operands;
  std::vector<bool> written;  // by operand: something of its memory is stored to
  // One that keeps what is dear from stage to stage, and one that computes it again.
  Way keeping, computing;
  bool over_columns = false, over_rows = false;  // there are such folds
  bool stores_rows = false;                      // a stage over rows stores to an operand
  // Of each fold over rows, and each operand that it is stored to: stores the accumulators as that
  // operand's dtype.
  std::vector<std::vector<std::unique_ptr<CompiledGroup>>> results;

 private:
  const Group group_;
  const Isa isa_;
  mutable std::once_flag narrow_once_;
  mutable std::unique_ptr<const RowGroup> narrow_;

  Way compile(const Group& group, Isa isa, bool keeps);
};

}  // namespace hologram::cpu
