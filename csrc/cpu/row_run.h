// A run of a group over rows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "atlas/float_mode.h"
#include "cpu/parallel.h"
#include "cpu/row_group.h"

namespace hologram::cpu {

// Work is shared out by items: some rows, and some columns of them where no fold needs the whole
// row. An item's rows go through the stages a block at a time, so that a block stays in the cache.
// Of few long rows the classes are shared out, stage by stage.
class RowRun {
 public:
  RowRun(const RowGroup& group, const Binding& binding);

  void run(Parallel& parallel);

 private:
  struct Free {
    void operator()(char* p) const { operator delete (p, std::align_val_t{64}); }
  };
  using Memory = std::unique_ptr<char, Free>;
  static Memory allocate(size_t bytes);

  // A pointer of a stage's frame that moves from row to row.
  struct Moving {
    uint16_t pointer;
    char* base;          // at the first row of the block, or of all
    int64_t plane, row;  // bytes from one to the next
    bool of_block;
  };
  struct StageFrame {
    const RowGroup::StageCode* stage;
    char* frame;
    std::vector<Moving> moving;
    char* const* pointers() const { return reinterpret_cast<char* const*>(frame); }
    char** pointers() { return reinterpret_cast<char**>(frame); }
    std::vector<bool> held;  // by use: scratch has the tail of the columns
  };
  // Short rows of which no operand has one element each are put end to end: what has columns only
  // is repeated, so that many of them are one row to the stages.
  struct Repeated {
    uint16_t operand;
    char* memory;        // a row of the repetition
    const char* source;  // that it holds
  };
  // What one thread works with.
  struct Desk {
    Memory memory;
    std::vector<StageFrame> stages;
    char* row_buffers;
    char* element_buffers;
    char* accumulators;
    char* partials;
    std::vector<Repeated> repeated;
    char* spare;       // accumulators of chunks that are joined with a neighbour
    int chunk = 0;     // of the unit
    int64_t unit = 0;  // of the item: the chunk whose accumulators folds over rows go to
  };
  struct Span {
    int64_t begin, end;
  };

  void repeat_columns();
  bool is_repeated(size_t operand) const {
    const Operand& its = group_.operands[operand];
    return repetitions_ > 1 && its.layout != Layout::scalar && (its.spread & kMiddle) == 0;
  }
  void plan(int threads);
  void choose_strides();
  size_t desk_bytes() const;
  size_t repeated_bytes(size_t operand) const;
  void set_up(Desk& desk, char* memory) const;
  int64_t padded(int64_t columns) const {
    return (columns + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
  }

  void item(Desk& desk, int64_t number);
  void share_classes(std::vector<Desk>& desks, Parallel& parallel);
  void rows_stage(StageFrame& frame, int64_t first, int64_t n);
  void place(StageFrame& frame, const Desk& desk, int64_t first) const;
  void point(StageFrame& frame, int64_t row, int64_t first) const;
  void plain_rows(StageFrame& frame, int64_t first, int64_t n, Span columns);
  void repeat(Desk& desk, int64_t plane) const;
  void elements(Desk& desk, StageFrame& frame, Span columns);
  void fold_class(Desk& desk, StageFrame& frame, Span columns, int64_t number, char* partials);
  void finish_row(Desk& desk, StageFrame& frame, int64_t in_block, char* partials);
  void tail(StageFrame& frame, int64_t at, int64_t n);
  char* chunk_of(const Desk& desk, uint16_t fold) const;
  char* spare_of(const Desk& desk, uint16_t fold, int which) const;
  void fill_identity(uint16_t fold, char* accumulators, int64_t count) const;
  void join_neighbours(uint16_t fold, char* parts, int64_t count, int64_t elements,
                       int64_t stride) const;
  void begin_chunk(const Desk& desk, Span columns) const;
  void end_chunk(const Desk& desk, bool last, Span columns) const;
  void finish_units();
  char* partial_of(int64_t unit, uint16_t fold) const;

  const RowGroup& group_;
  const Binding& binding_;
  const TypeKernels& kernels_;
  const RowGroup::Way* way_;
  const int64_t size_;                       // of the compute type's elements
  const int64_t class_;                      // elements
  int64_t plane_rows_, rows_, columns_;      // of a plane, of all planes
  int64_t repetitions_ = 1;                  // rows that are one row here
  int64_t classes_;                          // of a row
  int64_t block_ = 1;                        // rows that go through the stages together
  int64_t unit_rows_ = 1;                    // of an item
  int64_t units_per_plane_ = 1, units_ = 1;  // of rows
  int64_t strips_ = 1;                       // of columns
  bool shares_classes_ = false;
  int threads_ = 1;
  std::vector<int64_t> plane_, row_;  // bytes, of each operand
  std::vector<const char*> ends_;     // of each operand's memory
  std::vector<uint16_t> over_rows_;   // folds
  Memory unit_partials_;              // [fold][plane][unit of it][columns]
  std::atomic<int64_t> next_{0};
  FloatMode mode_ = 0;
};

}  // namespace hologram::cpu
