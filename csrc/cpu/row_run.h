// A run of a group over rows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <new>
#include <utility>
#include <vector>

#include "atlas/float_mode.h"
#include "cpu/parallel.h"
#include "cpu/row_group.h"

namespace hologram::cpu {

// Work is shared out by items: some rows, and some columns of them where nothing needs the whole
// row. An item's rows go through the stages a block at a time, so that a block stays in the cache.
// A block of short rows is one row to the code of a stage: what there is one of for each column is
// repeated, and what there is one of for each row is spread. Of few long rows the classes are
// shared out, stage by stage, but where a scan goes from one to the next. Where scans go down the
// rows, an item is some columns of a plane.
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
  template <class T>
  using List = std::pmr::vector<T>;

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
    List<Moving> moving;
    List<std::pair<uint16_t, char*>> passing;  // pointers and buffers
    List<RowStep> steps;                       // of `moving`, from row to row
    List<CodeStep> code_steps;                 // the same, of the code
    char* const* pointers() const { return reinterpret_cast<char* const*>(frame); }
    char** pointers() { return reinterpret_cast<char**>(frame); }
  };
  struct Repeated {
    uint16_t operand;
    char* memory;        // of a block
    const char* source;  // that it holds
  };
  // What one thread works with.
  struct Desk {
    explicit Desk(std::pmr::memory_resource* lists) : stages(lists), repeated(lists) {}
    Memory memory;
    List<StageFrame> stages;
    char *row_buffers, *spread_buffers, *element_buffers, *passing_buffers, *partials, *columns;
    List<Repeated> repeated;
    char* running;     // values of scans
    char* spare;       // accumulators of chunks that are joined with a neighbour
    int64_t unit = 0;  // of the item: the chunks whose accumulators folds over rows go to
  };
  struct Span {
    int64_t begin, end;
    int64_t length() const { return end - begin; }
  };
  // Some rows of an item.
  struct Block {
    int64_t first, count;
    int64_t in_unit;  // of the first
    bool last;        // of the unit
  };

  bool puts_end_to_end() const;
  Manner whole_manner() const {
    return columns_ % (kernels_.lanes / 8) == 0 ? Manner::folding : Manner::keeping;
  }
  void choose_strides();
  bool is_repeated(size_t operand) const {
    const Operand& its = group_.group.operands[operand];
    return is_short_ && its.layout != Layout::scalar && (its.spread & kMiddle) == 0 &&
           (its.spread & kColumns) != 0;
  }
  bool stays_in_plane() const;
  int64_t block_bytes() const;
  void plan(int threads);
  size_t desk_bytes() const;
  size_t repeated_bytes(size_t operand) const;
  // Of the classes of rows, for each fold.
  size_t partial_bytes() const {
    return way_->folds.size() * static_cast<size_t>(classes_ * block_ * size_);
  }
  void set_up(Desk& desk, char* memory);
  void set_steps(StageFrame& frame);
  int64_t padded(int64_t count) const {
    return (count + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
  }
  const FoldKernels& kernels_of(const Fold& fold) const {
    return kernels_.folds[static_cast<size_t>(fold.op)];
  }

  int64_t items() const { return (group_.scans_down ? binding_.planes : units_) * strips_; }
  void item(Desk& desk, int64_t number);
  void rows_of_item(Desk& desk, int64_t unit, int64_t strip);
  void share_classes(List<Desk>& desks, Parallel& parallel);
  void rows_stage(StageFrame& frame, int64_t first, int64_t n);
  void fold_block(Desk& desk, const StageFrame& frame, const Block& block, bool operands) const;
  void short_rows(Desk& desk, StageFrame& frame, const Block& block);
  template <class Do>
  void each_plane(const Block& block, Do&& act) const;
  void fold_loop(Desk& desk, StageFrame& frame, const Block& block);
  void fold_then_loop(const Desk& desk, StageFrame& fold, StageFrame& then,
                      const Block& block) const;
  void pick_tile(StageFrame& frame, const char* at, const char* buffer, Span columns,
                 char* to) const;
  void pick_tiles(const Desk& desk, StageFrame& frame, const Block& block) const;
  Extent extent_of(const StageFrame& frame, Span columns) const {
    Extent extent{columns.begin * size_, columns.end * size_};
    extent.steps = frame.steps.data();
    extent.step_count = static_cast<int>(frame.steps.size());
    extent.code_steps = frame.code_steps.data();
    return extent;
  }
  void each_row(StageFrame& frame, const Block& block, Span columns) const;
  void whole_rows(Desk& desk, StageFrame& frame, const Block& block);
  void long_rows(Desk& desk, StageFrame& frame, const Block& block, Span columns);
  // Divisions would show in small blocks.
  int64_t plane_of(int64_t row) const { return binding_.planes == 1 ? 0 : row / plane_rows_; }
  int64_t left_of_plane(int64_t row) const { return (plane_of(row) + 1) * plane_rows_ - row; }
  void place(StageFrame& frame, int64_t first) const;
  void point(StageFrame& frame, int64_t row, int64_t first) const;
  void repeat(Desk& desk, int64_t plane) const;
  size_t columns_bytes() const { return way_->has_columns && is_short_ ? element_bytes_ : 0; }
  void number_rows(const Desk& desk, int64_t first, int64_t count) const;
  void range(StageFrame& frame, Span elements) const;
  void tail(StageFrame& frame, int64_t at, int64_t n) const;
  // Folds of a stage that read operands, or those that read buffers.
  template <class Do>
  void each_fold(const StageFrame& frame, bool operands, Do&& act) const;
  void part(Desk& desk, StageFrame& frame, const Block& row, Span columns);
  void fold_operand_rows(const Desk& desk, const StageFrame& frame, int64_t in_block,
                         Span columns) const;
  void fold_classes(const Desk& desk, const StageFrame& frame, const Block& block) const;
  void fold_operands_down(Desk& desk, const StageFrame& frame, const Block& block,
                          Span columns) const;
  void finish_row(const Desk& desk, const StageFrame& frame, int64_t in_block) const;
  template <class Fold>
  void each_chunk(const Desk& desk, uint16_t fold, const Block& block, Span columns,
                  Fold&& rows) const;
  void fold_down(Desk& desk, uint16_t fold, const char* from, DType dtype, int64_t stride,
                 const Block& block, Span columns) const;
  char* chunk_of(const Desk& desk, uint16_t fold, int64_t chunk) const;
  void end_chunk(const Desk& desk, uint16_t fold, int64_t chunk, bool last, Span columns) const;
  char* element_buffer(const Desk& desk, const StageOperand& buffer) const {
    return buffer.role == Role::element_buffer
               ? desk.element_buffers + buffer.index * element_bytes_
               : desk.passing_buffers + buffer.index * passing_bytes_;
  }
  // Up to where a fold may read of an operand of which it folds what is before `end`: what others
  // may be writing is left alone.
  const char* readable(uint16_t operand, const char* end) const {
    return group_.written[operand] ? end : ends_[operand];
  }
  char* row_buffer(const Desk& desk, uint16_t buffer) const {
    return desk.row_buffers + buffer * padded(block_) * size_;
  }
  void join_neighbours(uint16_t fold, char* parts, int64_t count, int64_t elements,
                       int64_t stride) const;
  void finish_units();

  // Scans (row_scan.cpp): of a stage, those that read operands or those that read buffers.
  size_t running_bytes() const;
  char* running_of(const Desk& desk, const Scan& scan) const;
  void scan(const Desk& desk, const StageFrame& frame, const Block& block, Span columns,
            bool operands) const;

  char* partial_of(int64_t unit, uint16_t fold) const;
  int64_t number_of(uint16_t fold) const;  // among the folds over rows

  // Small groups would take as long to allocate their lists as to run.
  std::byte first_lists_[4096];
  std::pmr::monotonic_buffer_resource lists_{first_lists_, sizeof first_lists_};
  const RowGroup& group_;
  const Binding& binding_;
  const TypeKernels& kernels_;
  const RowGroup::Way* way_ = nullptr;
  const int64_t size_;               // of the compute type's elements
  const int64_t class_;              // elements
  const int64_t plane_rows_, rows_;  // of a plane, of all planes
  const int64_t columns_;
  const int64_t classes_;                    // of a row
  const bool is_short_;                      // rows are put end to end
  const bool is_whole_;                      // they are not, and a row is within a class
  int64_t block_ = 1;                        // rows that go through the stages together
  size_t element_bytes_ = 0;                 // of a buffer of elements
  size_t passing_bytes_ = 0;                 // of a passing one
  int64_t unit_rows_ = 1;                    // of an item
  int64_t units_per_plane_ = 1, units_ = 1;  // of rows
  int64_t strips_ = 1, strip_ = 0;           // of columns; how many each has
  bool by_plane_ = false;                    // units do not go beyond a plane
  bool shares_classes_ = false;
  int threads_ = 1;
  List<int64_t> plane_{&lists_}, row_{&lists_};  // bytes, of each operand
  List<const char*> ends_{&lists_};              // of each operand's memory
  List<uint16_t> over_rows_{&lists_};            // folds
  Memory unit_partials_;                         // [fold][plane][unit of it][columns]
  std::atomic<int64_t> next_{0};
  FloatMode mode_ = 0;
};

}  // namespace hologram::cpu
