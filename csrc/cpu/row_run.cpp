#include "cpu/row_run.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "atlas/error.h"
#include "atlas/operands.h"

namespace hologram::cpu {
namespace {

constexpr int64_t kBlockBytes = 16'384;     // of a block's elements, in the compute type
constexpr int64_t kKeptBytes = 524'288;     // of element buffers that are worth it
constexpr int64_t kRepeatedBytes = 16'384;  // of columns, in the compute type
constexpr int64_t kUnitChunks = 4;          // of rows whose fold is shared out; see end_chunk()
constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Lanes that count, then as many that do not.
template <class T>
const char* mask_of(int64_t lanes) {
  static const auto* table = [] {
    auto* made = new T[2 * kFoldBytes];
    std::fill_n(made, kFoldBytes, static_cast<T>(-1));
    std::fill_n(made + kFoldBytes, kFoldBytes, T(0));
    return made;
  }();
  return reinterpret_cast<const char*>(table + kFoldBytes - lanes);
}

template <class T>
void fill(char* to, uint64_t bits, int64_t count) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  std::fill_n(reinterpret_cast<T*>(to), count, value);
}

}  // namespace

RowRun::RowRun(const RowGroup& group, const Binding& binding)
    : group_(group),
      binding_(binding),
      kernels_(*group.kernels),
      way_(&group.keeping),
      size_(static_cast<int64_t>(dtype_size(kernels_.own))),
      class_(kClassBytes / size_),
      plane_rows_(binding.rows),
      rows_(binding.planes * binding.rows),
      columns_(binding.columns),
      classes_((columns_ + class_ - 1) / class_) {
  for (uint16_t i = 0; i < group.keeping.folds.size(); ++i) {
    if (group.keeping.folds[i].over_rows) over_rows_.push_back(i);
  }
  choose_strides();
  repeat_columns();
}

RowRun::Memory RowRun::allocate(size_t bytes) {
  void* p = operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (p == nullptr) throw OutOfMemory(bytes, 0, 0, 0);
  return Memory(static_cast<char*>(p));
}

void RowRun::choose_strides() {
  const Dimensions dimensions{binding_.planes, plane_rows_, columns_};
  for (size_t i = 0; i < group_.operands.size(); ++i) {
    const Operand& operand = group_.operands[i];
    const auto size = static_cast<int64_t>(dtype_size(operand.dtype));
    const Spread spread = operand.layout == Layout::scalar ? kOne : operand.spread;
    row_.push_back((spread & kMiddle) != 0 ? size * spread_count(spread & kColumns, dimensions)
                                           : 0);
    plane_.push_back((spread & kPlanes) != 0
                         ? size * spread_count(spread & (kMiddle | kColumns), dimensions)
                         : 0);
    ends_.push_back(static_cast<const char*>(binding_.operands[i]) +
                    size * spread_count(spread, dimensions));
  }
}

void RowRun::repeat_columns() {
  if (group_.over_columns || group_.over_rows || group_.stores_rows) return;
  for (const Operand& operand : group_.operands) {
    if (operand.layout == Layout::scalar || operand.spread == kEach) continue;
    if ((operand.spread & kMiddle) != 0 || (operand.spread & kColumns) == 0) return;
  }
  int64_t rows = std::min(kRepeatedBytes / size_ / columns_, plane_rows_ / 8);
  // Without a tail, if that is possible.
  const int64_t even = kernels_.lanes / std::gcd(int64_t{kernels_.lanes}, columns_);
  if (rows >= even) rows -= rows % even;
  if (rows < 2) return;
  repetitions_ = rows;
  columns_ *= rows;
  plane_rows_ = (plane_rows_ + rows - 1) / rows;
  rows_ = binding_.planes * plane_rows_;
  classes_ = (columns_ + class_ - 1) / class_;
  for (int64_t& stride : row_) stride *= rows;
}

// Who does what.
void RowRun::plan(int threads) {
  threads_ = rows_ * columns_ < kSerialElements ? 1 : std::max(threads, 1);
  const int64_t row_bytes = columns_ * size_;
  const bool whole_rows = group_.over_columns || group_.stores_rows || repetitions_ > 1;
  const bool by_plane = group_.over_rows || repetitions_ > 1;
  strips_ = whole_rows ? 1 : classes_;
  const int64_t strip = std::min(columns_, whole_rows ? columns_ : class_) * size_;
  block_ = std::clamp<int64_t>(kBlockBytes / strip, 1, kernels_.lanes);
  unit_rows_ = group_.over_rows ? kUnitChunks * kFoldRows : block_;
  if (group_.over_rows) block_ = std::min(block_, kFoldRows);
  const int64_t unit_of = by_plane ? plane_rows_ : rows_;
  units_per_plane_ = (unit_of + unit_rows_ - 1) / unit_rows_;
  units_ = units_per_plane_ * (by_plane ? binding_.planes : 1);
  const int64_t buffers = way_->element_buffers;
  shares_classes_ = threads_ > 1 && strips_ == 1 && units_ < 2 * threads_ && classes_ >= 4;
  if (shares_classes_) block_ = 1;
  if (buffers != 0 && buffers * block_ * row_bytes > (shares_classes_ ? 16 : 1) * kKeptBytes) {
    way_ = &group_.computing;
  }
  const int64_t items = shares_classes_ ? classes_ : units_ * strips_;
  threads_ = static_cast<int>(std::min<int64_t>(threads_, items));
}

size_t RowRun::desk_bytes() const {
  size_t bytes = 0;
  for (const auto& stage : way_->stages) bytes += aligned(stage.code->frame_size_);
  bytes += aligned(static_cast<size_t>(kFoldBytes) * way_->folds.size());
  bytes += aligned(static_cast<size_t>(way_->row_buffers * kernels_.lanes * size_));
  bytes += aligned(static_cast<size_t>(way_->element_buffers * block_ * padded(columns_) * size_));
  bytes += aligned(way_->folds.size() * static_cast<size_t>(classes_ * size_));
  bytes += aligned(2 * over_rows_.size() * static_cast<size_t>(padded(columns_) * size_));
  for (size_t i = 0; i < group_.operands.size(); ++i) {
    if (is_repeated(i)) bytes += aligned(repeated_bytes(i));
  }
  return bytes;
}

// With room for a tile behind it.
size_t RowRun::repeated_bytes(size_t operand) const {
  return static_cast<size_t>(columns_ + kernels_.lanes) *
         dtype_size(group_.operands[operand].dtype);
}

void RowRun::set_up(Desk& desk, char* memory) const {
  const auto take = [&](size_t bytes) {
    char* const taken = memory;
    memory += aligned(bytes);
    return taken;
  };
  std::vector<char*> frames;
  for (const auto& stage : way_->stages) frames.push_back(take(stage.code->frame_size_));
  desk.accumulators = take(static_cast<size_t>(kFoldBytes) * way_->folds.size());
  char* const rows = take(static_cast<size_t>(way_->row_buffers * kernels_.lanes * size_));
  char* const elements =
      take(static_cast<size_t>(way_->element_buffers * block_ * padded(columns_) * size_));
  char* const partials = take(way_->folds.size() * static_cast<size_t>(classes_ * size_));
  char* const spare = take(2 * over_rows_.size() * static_cast<size_t>(padded(columns_) * size_));
  if (desk.row_buffers == nullptr) {
    desk.spare = spare;
    desk.row_buffers = rows;
    desk.element_buffers = elements;
    desk.partials = partials;
    std::memset(rows, 0, static_cast<size_t>(way_->row_buffers * kernels_.lanes * size_));
  }
  for (uint16_t i = 0; i < group_.operands.size(); ++i) {
    if (is_repeated(i)) desk.repeated.push_back({i, take(repeated_bytes(i)), nullptr});
  }
  const int64_t row_bytes = padded(columns_) * size_;
  std::vector<void*> operands;
  for (size_t s = 0; s < frames.size(); ++s) {
    const auto& stage = way_->stages[s];
    StageFrame& made = desk.stages.emplace_back(StageFrame{&stage, frames[s], {}, {}});
    operands.assign(binding_.operands, binding_.operands + group_.operands.size());
    for (const StageOperand& more : stage.more) {
      char* p = nullptr;
      const auto pointer = static_cast<uint16_t>(operands.size());
      switch (more.role) {
        case Role::row_buffer:
          p = desk.row_buffers + more.index * kernels_.lanes * size_;
          if (!stage.over_rows) made.moving.push_back({pointer, p, 0, size_, true});
          break;
        case Role::element_buffer:
          p = desk.element_buffers + more.index * block_ * row_bytes;
          made.moving.push_back({pointer, p, 0, row_bytes, true});
          break;
        case Role::accumulators: p = desk.accumulators + more.index * kFoldBytes; break;
        case Role::mask:
        case Role::operand: break;
      }
      operands.push_back(p);
    }
    stage.code->set_up(made.frame, operands, binding_.immediates);
    made.held.resize(stage.code->uses_.size());
    if (stage.over_rows) continue;
    for (uint16_t i = 0; i < group_.operands.size(); ++i) {
      if ((plane_[i] == 0 && row_[i] == 0) || is_repeated(i)) continue;
      made.moving.push_back(
          {i, static_cast<char*>(binding_.operands[i]), plane_[i], row_[i], false});
    }
  }
}

void RowRun::run(Parallel& parallel) {
  if (rows_ * columns_ == 0) return;
  plan(parallel.threads());
  // All memory first: nothing may fail once something is stored.
  std::vector<Desk> desks(static_cast<size_t>(threads_));
  alignas(kAlignment) char small[16'384];
  for (Desk& desk : desks) {
    const size_t bytes = desk_bytes();
    desk.row_buffers = desk.element_buffers = desk.partials = nullptr;
    if (shares_classes_ && &desk != &desks.front()) {
      desk.row_buffers = desks.front().row_buffers;
      desk.element_buffers = desks.front().element_buffers;
      desk.partials = desks.front().partials;
      desk.spare = desks.front().spare;
    }
    char* memory = small;
    if (threads_ > 1 || bytes > sizeof small) {
      desk.memory = allocate(bytes);
      memory = desk.memory.get();
    }
    set_up(desk, memory);
  }
  if (!over_rows_.empty()) {
    unit_partials_ =
        allocate(over_rows_.size() * static_cast<size_t>(units_ * padded(columns_) * size_));
  }
  mode_ = float_mode();
  if (shares_classes_) {
    share_classes(desks, parallel);
  } else {
    const int64_t items = units_ * strips_;
    if (threads_ == 1) {
      for (int64_t i = 0; i < items; ++i) item(desks.front(), i);
    } else {
      struct Context {
        RowRun* self;
        std::vector<Desk>* desks;
        std::atomic<size_t> seats{0};
        int64_t items, claim;
      } context{this, &desks, {}, items, std::max<int64_t>(items / (16 * threads_), 1)};
      parallel.run(
          threads_,
          [](void* pointer, int) {
            auto& its = *static_cast<Context*>(pointer);
            RowRun& self = *its.self;
            const FloatModeGuard mode(self.mode_);
            Desk& desk = (*its.desks)[its.seats.fetch_add(1, std::memory_order_relaxed)];
            while (true) {
              const int64_t at = self.next_.fetch_add(its.claim, std::memory_order_relaxed);
              if (at >= its.items) break;
              for (int64_t i = at; i < std::min(at + its.claim, its.items); ++i) self.item(desk, i);
            }
          },
          &context);
    }
  }
  finish_units();
}

char* RowRun::partial_of(int64_t unit, uint16_t fold) const {
  const auto number = std::ranges::find(over_rows_, fold) - over_rows_.begin();
  return unit_partials_.get() + (number * units_ + unit) * padded(columns_) * size_;
}

// The accumulators of a chunk of a unit. Those of the first become the unit's.
char* RowRun::chunk_of(const Desk& desk, uint16_t fold) const {
  if (desk.chunk == 0) return partial_of(desk.unit, fold);
  return spare_of(desk, fold, desk.chunk == 3);
}
char* RowRun::spare_of(const Desk& desk, uint16_t fold, int which) const {
  const auto number = std::ranges::find(over_rows_, fold) - over_rows_.begin();
  return desk.spare + (2 * number + which) * padded(columns_) * size_;
}

void RowRun::fill_identity(uint16_t fold, char* accumulators, int64_t count) const {
  const uint64_t bits = kernels_.folds[static_cast<size_t>(way_->folds[fold].op)].identity;
  size_ == 4 ? fill<uint32_t>(accumulators, bits, count)
             : fill<uint64_t>(accumulators, bits, count);
}

// Joins so many parts of some elements each, two neighbours at a time, in the first.
void RowRun::join_neighbours(uint16_t fold, char* parts, int64_t count, int64_t elements,
                             int64_t stride) const {
  const auto join = kernels_.folds[static_cast<size_t>(way_->folds[fold].op)].join;
  const auto at = [&](int64_t i) { return parts + i * stride; };
  for (int64_t n = count; n > 1; n = (n + 1) / 2) {
    for (int64_t i = 0; i < n / 2; ++i) join(at(i), at(2 * i), at(2 * i + 1), elements);
    if (n % 2 != 0) {
      std::memcpy(at(n / 2), at(n - 1), static_cast<size_t>(elements * size_));
    }
  }
}

// Some columns of the accumulators of a chunk.
void RowRun::begin_chunk(const Desk& desk, Span columns) const {
  for (const uint16_t fold : over_rows_) {
    fill_identity(fold, chunk_of(desk, fold) + columns.begin * size_,
                  padded(columns.end) - columns.begin);
  }
}

// Joins it with its neighbours, two at a time. `last`: of the unit.
void RowRun::end_chunk(const Desk& desk, bool last, Span columns) const {
  for (const uint16_t fold : over_rows_) {
    const auto join = kernels_.folds[static_cast<size_t>(way_->folds[fold].op)].join;
    const int64_t at = columns.begin * size_, count = columns.end - columns.begin;
    char* const all = partial_of(desk.unit, fold) + at;
    char* const second = spare_of(desk, fold, 0) + at;
    if (desk.chunk == 3) join(second, second, spare_of(desk, fold, 1) + at, count);
    if (desk.chunk == 1 || desk.chunk == 3 || (desk.chunk == 2 && last)) {
      join(all, all, second, count);
    }
  }
}

// Joins the units of each plane, two neighbours at a time.
void RowRun::finish_units() {
  for (const uint16_t fold : over_rows_) {
    const Fold& its = way_->folds[fold];
    for (int64_t plane = 0; plane < binding_.planes; ++plane) {
      char* const parts = partial_of(plane * units_per_plane_, fold);
      join_neighbours(fold, parts, units_per_plane_, columns_, padded(columns_) * size_);
      for (size_t i = 0; i < its.stored.size(); ++i) {
        const uint16_t operand = its.stored[i];
        const auto size = static_cast<int64_t>(dtype_size(group_.operands[operand].dtype));
        void* const pointers[] = {
            parts, static_cast<char*>(binding_.operands[operand]) + plane * columns_ * size};
        Binding binding;
        binding.operands = pointers;
        binding.count = columns_;
        cpu::run(*group_.results[fold][i], binding);
      }
    }
  }
}

void RowRun::item(Desk& desk, int64_t number) {
  const int64_t unit = number / strips_, strip = number % strips_;
  const Span columns{strip * class_,
                     strips_ == 1 ? columns_ : std::min((strip + 1) * class_, columns_)};
  int64_t first = unit * unit_rows_, end = std::min(first + unit_rows_, rows_);
  if (!over_rows_.empty() || repetitions_ > 1) {
    const int64_t plane = unit / units_per_plane_, in_plane = unit % units_per_plane_;
    first = plane * plane_rows_ + in_plane * unit_rows_;
    end = std::min(first + unit_rows_, (plane + 1) * plane_rows_);
    repeat(desk, plane);
  }
  desk.unit = unit;
  for (int64_t n = 0, at = 0; first < end; first += n, at += n) {
    n = std::min(block_, end - first);
    if (!over_rows_.empty()) {
      n = std::min(n, kFoldRows - at % kFoldRows);
      desk.chunk = static_cast<int>(at / kFoldRows);
      if (at % kFoldRows == 0) begin_chunk(desk, columns);
    }
    for (StageFrame& frame : desk.stages) {
      if (frame.stage->over_rows) {
        rows_stage(frame, first, n);
        continue;
      }
      place(frame, desk, first);
      if (frame.stage->folds.empty()) {
        plain_rows(frame, first, n, columns);
        continue;
      }
      for (int64_t row = first;;) {
        elements(desk, frame, columns);
        finish_row(desk, frame, row - first, desk.partials);
        if (++row == first + n) break;
        point(frame, row, first);
      }
    }
    const bool last = first + n == end;
    if (!over_rows_.empty() && (last || (at + n) % kFoldRows == 0)) end_chunk(desk, last, columns);
  }
}

// Pointers at the first row of a block.
void RowRun::place(StageFrame& frame, const Desk& desk, int64_t first) const {
  char** const pointers = frame.pointers();
  const int64_t plane = first / plane_rows_, row = first % plane_rows_;
  for (const Repeated& its : desk.repeated) pointers[its.operand] = its.memory;
  for (const Moving& m : frame.moving) {
    pointers[m.pointer] = m.of_block ? m.base : m.base + plane * m.plane + row * m.row;
  }
  const size_t more = group_.operands.size();
  for (size_t i = 0; i < frame.stage->more.size() && !over_rows_.empty(); ++i) {
    const StageOperand& operand = frame.stage->more[i];
    if (operand.role == Role::accumulators && way_->folds[operand.index].over_rows) {
      pointers[more + i] = chunk_of(desk, operand.index);
    }
  }
}

// To the next row.
void RowRun::point(StageFrame& frame, int64_t row, int64_t first) const {
  char** const pointers = frame.pointers();
  if (binding_.planes == 1 || row % plane_rows_ != 0) {
    for (const Moving& m : frame.moving) pointers[m.pointer] += m.row;
    return;
  }
  const int64_t plane = row / plane_rows_;
  for (const Moving& m : frame.moving) {
    pointers[m.pointer] = m.base + (m.of_block ? (row - first) * m.row : plane * m.plane);
  }
}

// Writes the columns of a plane as often as a row repeats them.
void RowRun::repeat(Desk& desk, int64_t plane) const {
  for (Repeated& its : desk.repeated) {
    const char* const source =
        static_cast<const char*>(binding_.operands[its.operand]) + plane * plane_[its.operand];
    if (its.source == source) continue;
    its.source = source;
    const size_t bytes = static_cast<size_t>(columns_ / repetitions_) *
                         dtype_size(group_.operands[its.operand].dtype);
    for (int64_t i = 0; i < repetitions_; ++i) {
      std::memcpy(its.memory + static_cast<size_t>(i) * bytes, source, bytes);
    }
  }
}

// Rows, or a strip of them, in which nothing is folded.
void RowRun::plain_rows(StageFrame& frame, int64_t first, int64_t n, Span columns) {
  const auto& stage = *frame.stage;
  const auto& code = *stage.code;
  char** const pointers = frame.pointers();
  const int64_t lanes = kernels_.lanes;
  const int64_t plane_columns = columns_ / repetitions_ * binding_.rows;
  int64_t end = columns.end, left = (end - columns.begin) & (lanes - 1);
  for (int64_t row = first;;) {
    if (repetitions_ > 1) {  // the last row of a plane may be shorter
      end = std::min(columns.end, plane_columns - row % plane_rows_ * columns_);
      left = end & (lanes - 1);
    }
    const int64_t whole = end - left;
    if (whole > columns.begin) {
      code.run_(code.code_.data(), pointers, columns.begin * size_, whole * size_, nullptr, 0);
    }
    if (left != 0) {
      if (!stage.in_place && end >= lanes) {  // elements of the tile before it are computed again
        code.run_(code.code_.data(), pointers, (end - lanes) * size_, end * size_, nullptr, 0);
      } else {
        tail(frame, whole, left);
      }
    }
    if (++row == first + n) break;
    point(frame, row, first);
  }
}

// A row, class by class where something is folded over it.
void RowRun::elements(Desk& desk, StageFrame& frame, Span columns) {
  if (!group_.over_columns) {
    fold_class(desk, frame, columns, -1, nullptr);
    return;
  }
  for (int64_t c = 0; c < classes_; ++c) {
    const Span part{c * class_, std::min((c + 1) * class_, columns_)};
    fold_class(desk, frame, part, c, desk.partials);
  }
}

// Some columns of a row, at most a class where `number` is not below 0.
void RowRun::fold_class(Desk& desk, StageFrame& frame, Span columns, int64_t number,
                        char* partials) {
  const auto& stage = *frame.stage;
  int64_t used = kFoldBytes / size_;  // accumulators that anything is folded into
  if (number >= 0) {
    while (used > kernels_.lanes && used / 2 >= columns.end - columns.begin) used /= 2;
    for (const uint16_t fold : stage.folds) {
      if (way_->folds[fold].over_rows) continue;
      fill_identity(fold, desk.accumulators + fold * kFoldBytes, used);
    }
  }
  const int64_t lanes = kernels_.lanes;
  const int64_t length = columns.end - columns.begin, left = length & (lanes - 1);
  const int64_t whole = columns.end - left;
  const auto& code = *stage.code;
  if (whole > columns.begin) {
    code.run_(code.code_.data(), frame.pointers(), columns.begin * size_, whole * size_, nullptr,
              0);
  }
  if (left != 0) tail(frame, whole, left);
  if (number < 0) return;
  for (const uint16_t fold : stage.folds) {
    if (way_->folds[fold].over_rows) continue;
    char* const p = desk.accumulators + fold * kFoldBytes;
    kernels_.folds[static_cast<size_t>(way_->folds[fold].op)].finish(p, used);
    std::memcpy(partials + (fold * classes_ + number) * size_, p, static_cast<size_t>(size_));
  }
}

// The classes of a row, two neighbours at a time.
void RowRun::finish_row(Desk& desk, StageFrame& frame, int64_t in_block, char* partials) {
  for (const uint16_t fold : frame.stage->folds) {
    const Fold& its = way_->folds[fold];
    if (its.over_rows) continue;
    char* const p = partials + fold * classes_ * size_;
    join_neighbours(fold, p, classes_, 1, size_);
    std::memcpy(desk.row_buffers + (its.result * kernels_.lanes + in_block) * size_, p,
                static_cast<size_t>(size_));
  }
}

// The last elements of a row, fewer than a tile.
void RowRun::tail(StageFrame& frame, int64_t at, int64_t n) {
  const auto& stage = *frame.stage;
  const auto& code = *stage.code;
  char* const* const bases = frame.pointers();
  char** const tile = frame.pointers() + code.pointer_count();
  std::copy_n(bases, code.pointer_count(), tile);
  const int64_t lanes = kernels_.lanes;
  const size_t more = group_.operands.size();
  for (size_t u = 0; u < code.uses_.size(); ++u) {
    const OperandUse& use = code.uses_[u];
    char* const data = bases[use.operand] + at * use.size;
    if (use.operand >= more) {  // buffers have room for whole tiles
      tile[use.operand] = data;
      continue;
    }
    // What is behind the row is read where it is the operand's, and nobody writes it.
    if (is_repeated(use.operand) || (!use.stored && !group_.written[use.operand] &&
                                     data + lanes * use.size <= ends_[use.operand])) {
      tile[use.operand] = data;
      continue;
    }
    char* const scratch = frame.frame + use.scratch;
    tile[use.operand] = scratch;
    if (!use.loaded || frame.held[u]) continue;
    const auto bytes = static_cast<size_t>(n) * use.size;
    std::memcpy(scratch, data, bytes);
    std::memset(scratch + bytes, 0, static_cast<size_t>(lanes) * use.size - bytes);
    // The same for all rows.
    frame.held[u] =
        !group_.written[use.operand] && row_[use.operand] == 0 && plane_[use.operand] == 0;
  }
  for (size_t i = 0; i < stage.more.size(); ++i) {
    const StageOperand& operand = stage.more[i];
    char*& p = tile[more + i];
    if (operand.role == Role::mask) {
      p = const_cast<char*>(size_ == 4 ? mask_of<uint32_t>(n) : mask_of<uint64_t>(n));
    } else if (operand.role == Role::accumulators) {
      p += way_->folds[operand.index].over_rows ? at * size_ : (at * size_) & (kFoldBytes - 1);
    }
  }
  kernels_.run(stage.masked.data(), tile, 0, 1, nullptr, 0);
  for (const OperandUse& use : code.uses_) {
    if (!use.stored || use.operand >= more) continue;
    std::memcpy(bases[use.operand] + at * use.size, frame.frame + use.scratch,
                static_cast<size_t>(n) * use.size);
  }
}

// What there is one of for each row, of up to a tile of them.
void RowRun::rows_stage(StageFrame& frame, int64_t first, int64_t n) {
  const auto& stage = *frame.stage;
  const auto& code = *stage.code;
  char* const* const bases = frame.pointers();
  char** const tile = frame.pointers() + code.pointer_count();
  std::copy_n(bases, code.pointer_count(), tile);
  const int64_t lanes = kernels_.lanes;
  const auto address = [&](const OperandUse& use, int64_t row) {
    return bases[use.operand] + row / plane_rows_ * plane_[use.operand] +
           row % plane_rows_ * row_[use.operand];
  };
  for (const OperandUse& use : code.uses_) {
    if (use.operand >= group_.operands.size()) continue;
    char* const scratch = frame.frame + use.scratch;
    tile[use.operand] = scratch;
    if (!use.loaded) continue;
    if (group_.operands[use.operand].spread == kRows) {
      std::memcpy(scratch, bases[use.operand] + first * use.size,
                  static_cast<size_t>(n) * use.size);
    } else {
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(scratch + i * use.size, address(use, first + i), use.size);
      }
    }
    std::memset(scratch + n * use.size, 0, static_cast<size_t>(lanes - n) * use.size);
  }
  kernels_.run(code.code_.data(), tile, 0, 1, nullptr, 0);
  for (const OperandUse& use : code.uses_) {
    if (!use.stored || use.operand >= group_.operands.size()) continue;
    std::memcpy(bases[use.operand] + first * use.size, frame.frame + use.scratch,
                static_cast<size_t>(n) * use.size);
  }
}

// Few long rows: one after the other, each stage by all threads.
void RowRun::share_classes(std::vector<Desk>& desks, Parallel& parallel) {
  struct Context {
    RowRun* self;
    std::vector<Desk>* desks;
    size_t stage;
    std::atomic<size_t> seats{0};
    std::atomic<int64_t> next{0};
  };
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t plane = row / plane_rows_, in_plane = row % plane_rows_;
    const int64_t unit = over_rows_.empty() ? 0 : plane * units_per_plane_ + in_plane / unit_rows_;
    const int64_t in_unit = in_plane % unit_rows_;
    for (Desk& desk : desks) {
      desk.unit = unit;
      desk.chunk = static_cast<int>(in_unit / kFoldRows);
    }
    if (!over_rows_.empty() && in_unit % kFoldRows == 0) begin_chunk(desks.front(), {0, columns_});
    for (size_t s = 0; s < way_->stages.size(); ++s) {
      if (way_->stages[s].over_rows) {
        rows_stage(desks.front().stages[s], row, 1);
        continue;
      }
      for (Desk& desk : desks) place(desk.stages[s], desk, row);
      Context context{this, &desks, s, {}, {}};
      parallel.run(
          threads_,
          [](void* pointer, int) {
            auto& its = *static_cast<Context*>(pointer);
            RowRun& self = *its.self;
            const FloatModeGuard mode(self.mode_);
            Desk& desk = (*its.desks)[its.seats.fetch_add(1, std::memory_order_relaxed)];
            const int64_t claim = std::max<int64_t>(self.classes_ / (16 * self.threads_), 1);
            while (true) {
              const int64_t at = its.next.fetch_add(claim, std::memory_order_relaxed);
              if (at >= self.classes_) break;
              for (int64_t c = at; c < std::min(at + claim, self.classes_); ++c) {
                const Span columns{c * self.class_, std::min((c + 1) * self.class_, self.columns_)};
                self.fold_class(desk, desk.stages[its.stage], columns, c, desk.partials);
              }
            }
          },
          &context);
      finish_row(desks.front(), desks.front().stages[s], 0, desks.front().partials);
    }
    const bool last = in_unit + 1 == unit_rows_ || in_plane + 1 == plane_rows_;
    if (!over_rows_.empty() && (last || (in_unit + 1) % kFoldRows == 0)) {
      end_chunk(desks.front(), last, {0, columns_});
    }
  }
}

}  // namespace hologram::cpu
