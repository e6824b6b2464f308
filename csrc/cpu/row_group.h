// Groups over rows (cpu/stages.h), compiled.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "atlas/group.h"
#include "cpu/compiled_group.h"
#include "cpu/kernel_table.h"
#include "cpu/stages.h"

namespace hologram::cpu {

struct RowGroup {
  struct StageCode {
    std::unique_ptr<CompiledGroup> code;
    bool over_rows = false;
    bool is_empty = false;  // there are only folds and scans
    bool in_place = false;  // it loads what it stores to
    std::vector<StageOperand> more;
    std::vector<uint16_t> folds;
    std::vector<Scan> scans;
    std::vector<std::pair<uint16_t, uint16_t>> spreads;  // operand, row buffer: to be filled before
    bool folds_rows = false;             // and nothing else: each a row of an operand
    const FoldLoop* loop = nullptr;      // that computes and folds; there is one fold
    const FoldThenLoop* pair = nullptr;  // that runs the next stage as well
    bool picks = false;  // one element of each row, and nothing else: only it has to be computed

    bool scans_buffers() const { return cpu::scans_buffers(scans); }
    // Of operands, and there is nothing else.
    bool only_scans() const { return is_empty && folds.empty() && !scans_buffers(); }
  };
  struct Way {
    std::vector<StageCode> stages;
    std::vector<Fold> folds;
    uint16_t scans = 0;
    uint16_t row_buffers = 0, element_buffers = 0, passing_buffers = 0;
    std::optional<uint16_t> row_numbers;
    bool has_columns = false;
  };

  RowGroup(const Group& group, Isa isa);
  // Of the ways that have been asked for, which are compiled then.
  size_t bytes() const noexcept;
  const Way& way(Manner manner) const;

  const Group group;
  const TypeKernels* kernels = nullptr;
  std::vector<bool> written;                     // by operand: something of its memory is stored to
  bool over_columns = false, over_rows = false;  // there are such folds
  bool scans_along = false, scans_down = false;  // there are such scans
  bool only_scans_down = false;                  // and nothing else, of operands
  bool stores_rows = false;                      // a stage over rows stores to an operand
  bool spreads_rows = false;                     // an operand has a value for each row
  // Of each fold over rows, and each operand that it is stored to: stores the accumulators as that
  // operand's dtype.
  std::vector<std::vector<std::unique_ptr<CompiledGroup>>> results;

 private:
  static constexpr size_t kManners = 4;

  const Isa isa_;
  mutable std::mutex mutex_;
  mutable std::array<std::atomic<const Way*>, kManners> ready_{};
  mutable std::array<std::unique_ptr<const Way>, kManners> ways_;

  Way compile(Manner manner) const;
  void split_folds(Stage& stage, bool has_loops, Way& way) const;
  void add_stage(Stage&& stage, std::unique_ptr<CompiledGroup> code, Way& way) const;
  void find_pairs(Way& way) const;
  const FoldLoop* loop_of(const CompiledGroup& code, const Fold& fold) const;
};

}  // namespace hologram::cpu
