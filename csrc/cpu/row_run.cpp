#include "cpu/row_run.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "atlas/error.h"
#include "atlas/operands.h"
#include "cpu/convert.h"
#include "cpu/upper_registers.h"

namespace hologram::cpu {
namespace {

// Bytes of a block's elements, in the compute type: of rows end to end, of those of which values
// are kept, and of others, several of whose operands should fit in a second-level cache.
constexpr int64_t kShortBlockBytes = 8'192, kKeepingBlockBytes = 65'536, kBlockBytes = 131'072;
constexpr int64_t kLeastBlockBytes = 16'384;
constexpr int64_t kKeptBytes = 524'288;  // of element buffers that are worth it
constexpr int64_t kUnitChunks = 4;       // of rows whose fold is shared out; see end_chunk()
constexpr int64_t kScannedRows = 4;      // that a scan's kernel takes at a time
constexpr int64_t kScannedDown = 16;     // for which running values are worth a load
constexpr int64_t kUnitRows = kUnitChunks * kFoldRows;
constexpr size_t kAlignment = 64;
constexpr size_t kStackDesk = 65'536;

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The place before a buffer at which element `begin` of a row would be the buffer's first.
char* before(char* buffer, int64_t bytes) {
  return moved(buffer, -bytes);
}

template <class T>
void write_numbers(char* to, int64_t first, int64_t count) {
  T* const numbers = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<T>(first + i);
}
// first, first + 1 ... in a compute type's dtype.
void write_numbers(DType own, char* to, int64_t first, int64_t count) {
  switch (own) {
    case DType::f32: return write_numbers<float>(to, first, count);
    case DType::f64: return write_numbers<double>(to, first, count);
    default: return write_numbers<int64_t>(to, first, count);
  }
}

// The column that a number of a compute type is, if it is one of these.
template <class T>
std::optional<int64_t> column_of(T at, int64_t first, int64_t columns) {
  if (!(at >= static_cast<T>(first) && at < static_cast<T>(first + columns))) return std::nullopt;
  const auto column = static_cast<int64_t>(at);
  if (static_cast<T>(column) != at) return std::nullopt;
  return column;
}
template <class T>
std::optional<int64_t> column_at(const char* at, int64_t first, int64_t columns) {
  return column_of(*reinterpret_cast<const T*>(at), first, columns);
}
std::optional<int64_t> column_at(DType own, const char* at, int64_t first, int64_t columns) {
  switch (own) {
    case DType::f32: return column_at<float>(at, first, columns);
    case DType::f64: return column_at<double>(at, first, columns);
    default: return column_at<int64_t>(at, first, columns);
  }
}

// to[r] = the element of row r in its column at[r] - first, as its sum with zeros; 0 where there is
// no such column.
template <class T>
void pick(DType dtype, T* to, const T* at, const char* from, int64_t rows, int64_t columns,
          int64_t stride, int64_t first) {
  with_element<uint8_t>(dtype, [&]<class D>() {
    for (int64_t r = 0; r < rows; ++r, from += stride) {
      to[r] = T(0);
      const auto column = column_of(at[r], first, columns);
      if (!column) continue;
      D element;
      std::memcpy(&element, from + (*column - first) * static_cast<int64_t>(sizeof(D)),
                  sizeof element);
      to[r] = columns == 1 ? convert<T>(element) : convert<T>(element) + T(0);
    }
  });
}
void pick(DType own, DType dtype, char* to, const char* at, const char* from, int64_t rows,
          int64_t columns, int64_t stride, int64_t first) {
  const auto run = [&]<class T>() {
    pick<T>(dtype, reinterpret_cast<T*>(to), reinterpret_cast<const T*>(at), from, rows, columns,
            stride, first);
  };
  switch (own) {
    case DType::f32: return run.operator()<float>();
    case DType::f64: return run.operator()<double>();
    default: return run.operator()<int64_t>();
  }
}

}  // namespace

RowRun::RowRun(const RowGroup& group, const Binding& binding)
    : group_(group),
      binding_(binding),
      kernels_(*group.kernels),
      size_(static_cast<int64_t>(dtype_size(kernels_.own))),
      class_(kClassBytes / size_),
      plane_rows_(binding.rows),
      rows_(binding.planes * binding.rows),
      columns_(binding.columns),
      classes_((columns_ + class_ - 1) / class_),
      is_short_(!group.only_scans_down && puts_end_to_end()),
      is_whole_(!is_short_ && classes_ == 1 && !group.scans_down) {
  way_ = &group.way(is_short_ ? Manner::short_rows : is_whole_ ? whole_manner() : Manner::keeping);
  for (uint16_t i = 0; i < way_->folds.size(); ++i) {
    if (way_->folds[i].over_rows) over_rows_.push_back(i);
  }
  choose_strides();
}

// Whether rows are run end to end: those that are shorter than what code works on at a time, or
// than a tile where nothing has to be spread for it and they are not what it works on.
bool RowRun::puts_end_to_end() const {
  if (columns_ >= kernels_.lanes) return false;
  const int64_t least = kernels_.lanes / 8 * kLoopVectors;
  if (columns_ < least ||
      (columns_ != least && !group_.spreads_rows && !group_.over_columns && !group_.over_rows)) {
    return true;
  }
  return std::ranges::any_of(group_.way(whole_manner()).stages, [&](const auto& stage) {
    return !stage.over_rows && !stage.is_empty && stage.loop == nullptr &&
           (!stage.code->is_loop() || (stage.in_place && columns_ != least));
  });
}

RowRun::Memory RowRun::allocate(size_t bytes) {
  void* p = operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (p == nullptr) throw OutOfMemory(bytes, 0, 0, 0);
  return Memory(static_cast<char*>(p));
}

void RowRun::choose_strides() {
  const size_t count = group_.group.operands.size();
  row_.reserve(count), plane_.reserve(count), ends_.reserve(count);
  const Dimensions dimensions{binding_.planes, plane_rows_, columns_};
  for (size_t i = 0; i < group_.group.operands.size(); ++i) {
    const Operand& operand = group_.group.operands[i];
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

// Whether a block may not go on in the next plane.
bool RowRun::stays_in_plane() const {
  if (!over_rows_.empty() || group_.scans_down) return true;
  if (!is_short_ && !is_whole_) return false;
  for (const Operand& operand : group_.group.operands) {
    if (operand.layout == Layout::scalar || operand.spread == kEach) continue;
    if ((operand.spread & kColumns) != 0 && operand.spread != kColumns) return true;
  }
  return false;
}

// Of the elements that go through the stages together. There should be some for every thread.
int64_t RowRun::block_bytes() const {
  if (is_short_) return kShortBlockBytes;
  const bool keeps = way_->element_buffers != 0 || way_->passing_buffers != 0;
  return std::clamp(rows_ * columns_ * size_ / (4 * threads_), kLeastBlockBytes,
                    keeps ? kKeepingBlockBytes : kBlockBytes);
}

// Who does what.
void RowRun::plan(int threads) {
  threads_ = rows_ * columns_ < kSerialElements ? 1 : std::max(threads, 1);
  const bool whole_rows =
      is_short_ || group_.over_columns || group_.stores_rows || group_.scans_along;
  by_plane_ = stays_in_plane();
  strip_ = class_;
  if (group_.scans_down) {
    const int64_t parts = (threads_ + binding_.planes - 1) / binding_.planes;
    strip_ = std::min(class_, padded((columns_ + parts - 1) / parts));
  }
  strips_ = whole_rows ? 1 : (columns_ + strip_ - 1) / strip_;
  const int64_t strip = whole_rows ? columns_ : std::min(columns_, strip_);
  const int64_t bytes = block_bytes();
  const int64_t most = by_plane_ ? plane_rows_ : rows_;
  block_ = std::clamp<int64_t>(bytes / size_ / strip, 1, most);
  if (is_short_ && block_ < most) {
    // Without a tail, if that is possible.
    const int64_t even = kernels_.lanes / std::gcd(int64_t{kernels_.lanes}, columns_);
    if (block_ >= even) block_ -= block_ % even;
  }
  if (group_.scans_along) block_ = std::max(block_, std::min(kScannedRows, rows_));
  if (group_.only_scans_down) block_ = std::max(block_, std::min(kScannedDown, rows_));
  if (!over_rows_.empty()) block_ = std::min(block_, kUnitRows);
  unit_rows_ = over_rows_.empty() ? block_ : kUnitRows;
  const int64_t unit_of = by_plane_ ? plane_rows_ : rows_;
  units_per_plane_ = (unit_of + unit_rows_ - 1) / unit_rows_;
  units_ = units_per_plane_ * (by_plane_ ? binding_.planes : 1);
  shares_classes_ =
      threads_ > 1 && strips_ == 1 && units_ < 2 * threads_ && classes_ >= 4 && way_->scans == 0;
  if (shares_classes_) block_ = 1;
  const int64_t kept = way_->element_buffers * block_ * columns_ * size_;
  if (!is_short_ && way_->element_buffers != 0 && kept > (shares_classes_ ? 16 : 1) * kKeptBytes) {
    way_ = &group_.way(Manner::computing);
  }
  const int64_t elements = is_short_ ? padded(block_ * columns_) : block_ * padded(columns_);
  const int64_t passing = is_short_ || is_whole_ ? elements : class_;
  element_bytes_ = aligned(static_cast<size_t>((elements + kernels_.lanes) * size_));
  passing_bytes_ = aligned(static_cast<size_t>((passing + kernels_.lanes) * size_));
  threads_ = static_cast<int>(std::min<int64_t>(threads_, shares_classes_ ? classes_ : items()));
}

size_t RowRun::desk_bytes() const {
  size_t bytes = 0;
  for (const auto& stage : way_->stages) bytes += aligned(stage.code->frame_size_);
  bytes += aligned(static_cast<size_t>(way_->row_buffers * padded(block_) * size_));
  if (is_short_) bytes += way_->row_buffers * element_bytes_;
  bytes += way_->element_buffers * element_bytes_ + way_->passing_buffers * passing_bytes_;
  bytes += aligned(partial_bytes());
  bytes += aligned(2 * over_rows_.size() * static_cast<size_t>(padded(columns_) * size_));
  bytes += columns_bytes() + running_bytes();
  for (size_t i = 0; i < group_.group.operands.size(); ++i) {
    if (is_repeated(i)) bytes += aligned(repeated_bytes(i));
  }
  return bytes;
}

// With room for a tile behind it.
size_t RowRun::repeated_bytes(size_t operand) const {
  return static_cast<size_t>(block_ * columns_ + kernels_.lanes) *
         dtype_size(group_.group.operands[operand].dtype);
}

void RowRun::set_up(Desk& desk, char* memory) {
  const auto take = [&](size_t bytes) {
    char* const taken = memory;
    memory += aligned(bytes);
    return taken;
  };
  const size_t own = group_.group.operands.size();
  const size_t row_bytes = static_cast<size_t>(way_->row_buffers * padded(block_) * size_);
  List<char*> frames(&lists_);
  frames.reserve(way_->stages.size());
  for (const auto& stage : way_->stages) frames.push_back(take(stage.code->frame_size_));
  char* const rows = take(row_bytes);
  desk.spread_buffers = take(is_short_ ? way_->row_buffers * element_bytes_ : 0);
  char* const elements = take(way_->element_buffers * element_bytes_);
  desk.passing_buffers = take(way_->passing_buffers * passing_bytes_);
  char* const partials = take(partial_bytes());
  char* const spare = take(2 * over_rows_.size() * static_cast<size_t>(padded(columns_) * size_));
  desk.running = take(running_bytes());
  if (desk.row_buffers == nullptr) {
    desk.spare = spare;
    desk.row_buffers = rows;
    desk.element_buffers = elements;
    desk.partials = partials;
    std::memset(rows, 0, row_bytes);
  }
  desk.columns = nullptr;
  if (columns_bytes() != 0) {
    desk.columns = take(columns_bytes());
    for (int64_t row = 0; row < block_; ++row) {
      write_numbers(kernels_.own, desk.columns + row * columns_ * size_, 0, columns_);
    }
  }
  for (uint16_t i = 0; i < own; ++i) {
    if (is_repeated(i)) desk.repeated.push_back({i, take(repeated_bytes(i)), nullptr});
  }
  List<void*> operands(&lists_);
  desk.stages.reserve(frames.size());
  for (size_t s = 0; s < frames.size(); ++s) {
    const auto& stage = way_->stages[s];
    StageFrame& made = desk.stages.emplace_back(
        StageFrame{&stage, frames[s], List<Moving>(&lists_), decltype(StageFrame::passing)(&lists_),
                   List<RowStep>(&lists_), List<CodeStep>(&lists_)});
    made.moving.reserve(own + stage.more.size());
    operands.reserve(own + stage.more.size());
    operands.assign(binding_.operands, binding_.operands + own);
    if (!stage.over_rows) {
      for (const Repeated& its : desk.repeated) operands[its.operand] = its.memory;
    }
    for (const StageOperand& more : stage.more) {
      char* p = nullptr;
      const auto pointer = static_cast<uint16_t>(operands.size());
      switch (more.role) {
        case Role::row_buffer:
          p = row_buffer(desk, more.index);
          if (!stage.over_rows) made.moving.push_back({pointer, p, 0, size_, true});
          break;
        case Role::spread_buffer: p = desk.spread_buffers + more.index * element_bytes_; break;
        case Role::element_buffer:
          p = element_buffer(desk, more);
          if (!is_short_) made.moving.push_back({pointer, p, 0, padded(columns_) * size_, true});
          break;
        case Role::passing_buffer:
          p = element_buffer(desk, more);
          if (is_whole_) {
            made.moving.push_back({pointer, p, 0, padded(columns_) * size_, true});
          } else if (!is_short_) {
            made.passing.emplace_back(pointer, p);
          }
          break;
        case Role::columns: p = desk.columns; break;
        case Role::operand: break;
      }
      operands.push_back(p);
    }
    stage.code->set_up(made.frame, operands, binding_.immediates);
    if (stage.over_rows) continue;
    if (stage.code->draws_) {
      made.moving.push_back({static_cast<uint16_t>(stage.code->elements_pointer()), nullptr,
                             plane_rows_ * columns_ * size_, columns_ * size_, false});
    }
    for (uint16_t i = 0; i < own; ++i) {
      if ((plane_[i] == 0 && row_[i] == 0) || is_repeated(i)) continue;
      made.moving.push_back(
          {i, static_cast<char*>(binding_.operands[i]), plane_[i], row_[i], false});
    }
    if (!is_short_) set_steps(made);
  }
}

// How pointers move from row to row, and the memory that each micro-operation refers to with them.
void RowRun::set_steps(StageFrame& frame) {
  const CompiledGroup& code = *frame.stage->code;
  List<long> of_pointers(code.pointer_count(), 0, &lists_);
  frame.steps.reserve(frame.moving.size());
  for (const Moving& m : frame.moving) {
    frame.steps.push_back({m.pointer, m.row});
    of_pointers[m.pointer] = m.row;
  }
  frame.code_steps.reserve(code.code_.size());
  for (const MicroOp& op : code.code_) {
    frame.code_steps.push_back({of_pointers[static_cast<size_t>(op.x.pointer)],
                                of_pointers[static_cast<size_t>(op.y.pointer)]});
  }
}

void RowRun::run(Parallel& parallel) {
  if (rows_ * columns_ == 0) return;
  plan(parallel.threads());
  // All memory first: nothing may fail once something is stored.
  List<Desk> desks(&lists_);
  desks.reserve(static_cast<size_t>(threads_));
  for (int i = 0; i < threads_; ++i) desks.emplace_back(&lists_);
  alignas(kAlignment) char small[kStackDesk];
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
    if (threads_ == 1) {
      for (int64_t i = 0; i < items(); ++i) item(desks.front(), i);
    } else {
      struct Context {
        RowRun* self;
        List<Desk>* desks;
        std::atomic<size_t> seats{0};
        int64_t items, claim;
      } context{this, &desks, {}, items(), std::max<int64_t>(items() / (16 * threads_), 1)};
      parallel.run(
          threads_,
          [](void* pointer, int) {
            auto& its = *static_cast<Context*>(pointer);
            RowRun& self = *its.self;
            const FloatModeGuard mode(self.mode_);
            const UpperRegistersGuard upper;
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

int64_t RowRun::number_of(uint16_t fold) const {
  return std::ranges::find(over_rows_, fold) - over_rows_.begin();
}
char* RowRun::partial_of(int64_t unit, uint16_t fold) const {
  return unit_partials_.get() + (number_of(fold) * units_ + unit) * padded(columns_) * size_;
}

// Joins so many parts of some elements each, two neighbours at a time, in the first.
void RowRun::join_neighbours(uint16_t fold, char* parts, int64_t count, int64_t elements,
                             int64_t stride) const {
  const auto join = kernels_of(way_->folds[fold]).join;
  const auto at = [&](int64_t i) { return parts + i * stride; };
  for (int64_t n = count; n > 1; n = (n + 1) / 2) {
    for (int64_t i = 0; i < n / 2; ++i) join(at(i), at(2 * i), at(2 * i + 1), elements);
    if (n % 2 != 0) {
      std::memcpy(at(n / 2), at(n - 1), static_cast<size_t>(elements * size_));
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
        const auto size = static_cast<int64_t>(dtype_size(group_.group.operands[operand].dtype));
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
  const int64_t first = number / strips_, strip = number % strips_;
  if (!group_.scans_down) return rows_of_item(desk, first, strip);
  for (int64_t i = 0; i < units_per_plane_; ++i) {
    rows_of_item(desk, first * units_per_plane_ + i, strip);
  }
}

void RowRun::rows_of_item(Desk& desk, int64_t unit, int64_t strip) {
  const Span columns{strip * strip_,
                     strips_ == 1 ? columns_ : std::min((strip + 1) * strip_, columns_)};
  const int64_t plane = by_plane_ ? unit / units_per_plane_ : 0;
  const int64_t limit = by_plane_ ? (plane + 1) * plane_rows_ : rows_;
  const int64_t begin =
      by_plane_ ? plane * plane_rows_ + unit % units_per_plane_ * unit_rows_ : unit * unit_rows_;
  const int64_t end = std::min(begin + unit_rows_, limit);
  repeat(desk, plane);
  desk.unit = unit;
  for (int64_t first = begin; first < end; first += block_) {
    const int64_t n = std::min(block_, end - first);
    const Block block{first, n, first - begin, first + n == end};
    number_rows(desk, first, n);
    for (size_t s = 0; s < desk.stages.size(); ++s) {
      StageFrame& frame = desk.stages[s];
      if (frame.stage->over_rows) {
        rows_stage(frame, first, n);
      } else if (is_whole_ && frame.stage->pair != nullptr) {
        fold_then_loop(desk, frame, desk.stages[++s], block);
      } else if (is_short_) {
        short_rows(desk, frame, block);
      } else if (is_whole_) {
        whole_rows(desk, frame, block);
      } else {
        long_rows(desk, frame, block, columns);
      }
    }
  }
}

// Writes the number of each row of a block in its plane.
void RowRun::number_rows(const Desk& desk, int64_t first, int64_t count) const {
  if (!way_->row_numbers) return;
  char* const to = row_buffer(desk, *way_->row_numbers);
  for (int64_t done = 0; done < count;) {
    const int64_t row = (first + done) % plane_rows_;
    const int64_t n = std::min(count - done, plane_rows_ - row);
    write_numbers(kernels_.own, to + done * size_, row, n);
    done += n;
  }
}

// Pointers at the first row of a block.
void RowRun::place(StageFrame& frame, int64_t first) const {
  char** const pointers = frame.pointers();
  const int64_t plane = plane_of(first), row = first - plane * plane_rows_;
  for (const Moving& m : frame.moving) {
    pointers[m.pointer] = m.of_block ? m.base : moved(m.base, plane * m.plane + row * m.row);
  }
}

// To the next row.
void RowRun::point(StageFrame& frame, int64_t row, int64_t first) const {
  char** const pointers = frame.pointers();
  if (binding_.planes == 1 || row % plane_rows_ != 0) {
    for (const Moving& m : frame.moving) {
      pointers[m.pointer] = moved(pointers[m.pointer], m.row);
    }
    return;
  }
  const int64_t plane = row / plane_rows_;
  for (const Moving& m : frame.moving) {
    pointers[m.pointer] = moved(m.base, m.of_block ? (row - first) * m.row : plane * m.plane);
  }
}

// Writes the columns of a plane for each row of a block.
void RowRun::repeat(Desk& desk, int64_t plane) const {
  for (Repeated& its : desk.repeated) {
    const char* const source =
        static_cast<const char*>(binding_.operands[its.operand]) + plane * plane_[its.operand];
    if (its.source == source) continue;
    its.source = source;
    const auto bytes =
        static_cast<size_t>(columns_) * dtype_size(group_.group.operands[its.operand].dtype);
    const size_t all = static_cast<size_t>(block_) * bytes;
    std::memcpy(its.memory, source, bytes);
    for (size_t there = bytes; there < all; there *= 2) {
      std::memcpy(its.memory + there, its.memory, std::min(there, all - there));
    }
  }
}

// ---- the code of a stage ----

// Some elements of what the pointers are at.
void RowRun::range(StageFrame& frame, Span elements) const {
  const auto& code = *frame.stage->code;
  const int64_t lanes = kernels_.lanes, left = elements.length() & (lanes - 1);
  const int64_t whole = elements.end - left;
  char** const pointers = frame.pointers();
  if (whole > elements.begin) {
    code.run_(code.code_.data(), pointers, {elements.begin * size_, whole * size_});
  }
  if (left == 0) return;
  if (whole > elements.begin && !frame.stage->in_place) {
    // Elements of the tile before it are computed again.
    code.run_(code.code_.data(), pointers, {(elements.end - lanes) * size_, elements.end * size_});
  } else {
    tail(frame, whole, left);
  }
}

// Fewer elements than a tile.
void RowRun::tail(StageFrame& frame, int64_t at, int64_t n) const {
  const auto& stage = *frame.stage;
  const auto& code = *stage.code;
  char* const* const bases = frame.pointers();
  char** const tile = frame.pointers() + code.pointer_count();
  std::copy_n(bases, code.pointer_count(), tile);
  tile[code.elements_pointer()] = moved(bases[code.elements_pointer()], at * size_);
  const int64_t lanes = kernels_.lanes;
  const size_t own = group_.group.operands.size();
  for (const OperandUse& use : code.uses_) {
    char* const data = moved(bases[use.operand], at * use.size);
    // Buffers have room for whole tiles. What is behind the elements is read where it is the
    // operand's, and nobody writes it.
    if (use.operand >= own || is_repeated(use.operand) ||
        (!use.stored && !group_.written[use.operand] &&
         data + lanes * use.size <= ends_[use.operand])) {
      tile[use.operand] = data;
      continue;
    }
    char* const scratch = frame.frame + use.scratch;
    tile[use.operand] = scratch;
    if (!use.loaded) continue;
    const auto bytes = static_cast<size_t>(n) * use.size;
    std::memcpy(scratch, data, bytes);
    std::memset(scratch + bytes, 0, static_cast<size_t>(lanes) * use.size - bytes);
  }
  kernels_.run(code.code_.data(), tile, {0, kernels_.lanes * size_});
  for (const OperandUse& use : code.uses_) {
    if (!use.stored || use.operand >= own) continue;
    std::memcpy(bases[use.operand] + at * use.size, frame.frame + use.scratch,
                static_cast<size_t>(n) * use.size);
  }
}

// What there is one of for each row, a tile of rows at a time.
void RowRun::rows_stage(StageFrame& frame, int64_t first, int64_t n) {
  const auto& code = *frame.stage->code;
  char* const* const bases = frame.pointers();
  char** const tile = frame.pointers() + code.pointer_count();
  std::copy_n(bases, code.pointer_count(), tile);
  const int64_t lanes = kernels_.lanes;
  const size_t own = group_.group.operands.size();
  const auto is_row = [&](const OperandUse& use) {
    return group_.group.operands[use.operand].spread == kRows;
  };
  for (int64_t at = 0; at < n; at += lanes) {
    const int64_t row = first + at, count = std::min(lanes, n - at);
    for (const OperandUse& use : code.uses_) {
      if (use.operand >= own) {
        tile[use.operand] = bases[use.operand] + at * use.size;
        continue;
      }
      char* const scratch = frame.frame + use.scratch;
      tile[use.operand] = scratch;
      if (!use.loaded) continue;
      if (is_row(use)) {
        std::memcpy(scratch, bases[use.operand] + row * use.size,
                    static_cast<size_t>(count) * use.size);
      } else {
        int64_t plane = row / plane_rows_, in_plane = row % plane_rows_;
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(
              scratch + i * use.size,
              bases[use.operand] + plane * plane_[use.operand] + in_plane * row_[use.operand],
              use.size);
          if (++in_plane == plane_rows_) in_plane = 0, ++plane;
        }
      }
      std::memset(scratch + count * use.size, 0, static_cast<size_t>(lanes - count) * use.size);
    }
    kernels_.run(code.code_.data(), tile, {0, kernels_.lanes * size_});
    for (const OperandUse& use : code.uses_) {
      if (!use.stored || use.operand >= own) continue;
      std::memcpy(bases[use.operand] + row * use.size, frame.frame + use.scratch,
                  static_cast<size_t>(count) * use.size);
    }
  }
}

// ---- elements, and their folds ----

template <class Do>
void RowRun::each_fold(const StageFrame& frame, bool operands, Do&& act) const {
  for (const uint16_t fold : frame.stage->folds) {
    if ((way_->folds[fold].from.role == Role::operand) == operands) act(fold, way_->folds[fold]);
  }
}

// fold(first row of the block, rows, accumulators, whether they hold earlier rows) for the rows of
// each chunk that a block has.
template <class Fold>
void RowRun::each_chunk(const Desk& desk, uint16_t fold, const Block& block, Span columns,
                        Fold&& rows) const {
  for (int64_t done = 0; done < block.count;) {
    const int64_t at = block.in_unit + done, in_chunk = at % kFoldRows;
    const int64_t n = std::min(kFoldRows - in_chunk, block.count - done);
    rows(done, n, chunk_of(desk, fold, at / kFoldRows) + columns.begin * size_, in_chunk != 0);
    done += n;
    const bool last = block.last && done == block.count;
    if (last || in_chunk + n == kFoldRows) end_chunk(desk, fold, at / kFoldRows, last, columns);
  }
}

// The folds of a block's rows, each of which is within a class, or end to end with the others.
void RowRun::fold_block(Desk& desk, const StageFrame& frame, const Block& block,
                        bool operands) const {
  if (frame.stage->folds.empty()) return;
  each_fold(frame, operands, [&](uint16_t number, const Fold& its) {
    DType dtype = kernels_.own;
    const char* from = nullptr;
    const char* end = nullptr;
    int64_t stride = (is_short_ ? columns_ : padded(columns_)) * size_;
    if (operands) {
      const uint16_t operand = its.from.index;
      dtype = group_.group.operands[operand].dtype;
      const auto row = columns_ * static_cast<int64_t>(dtype_size(dtype));
      stride = is_short_ ? row : row_[operand];
      from = frame.pointers()[operand];
      end = readable(operand, from + (block.count - 1) * stride + row);
    } else {
      from = element_buffer(desk, its.from);
      end = from + element_bytes_;
    }
    if (its.over_rows) {
      fold_down(desk, number, from, dtype, stride, block, {0, columns_});
    } else if (its.at) {
      pick(kernels_.own, dtype, row_buffer(desk, its.result), row_buffer(desk, *its.at), from,
           block.count, columns_, stride, 0);
    } else {
      kernels_of(its).rows[static_cast<size_t>(dtype)](row_buffer(desk, its.result), from,
                                                       block.count, columns_, stride, end);
    }
  });
}

// A block, end to end.
void RowRun::short_rows(Desk& desk, StageFrame& frame, const Block& block) {
  place(frame, block.first);
  fold_block(desk, frame, block, true);
  if (!frame.stage->is_empty) {
    for (const auto& [pointer, buffer] : frame.stage->spreads) {
      kernels_.spread(frame.pointers()[pointer], row_buffer(desk, buffer), block.count, columns_);
    }
    range(frame, {0, block.count * columns_});
  }
  fold_block(desk, frame, block, false);
  scan(desk, frame, block, {0, columns_}, true);
  scan(desk, frame, block, {0, columns_}, false);
}

// act(first row in the block, rows) for the rows of each plane that a block has.
template <class Do>
void RowRun::each_plane(const Block& block, Do&& act) const {
  for (int64_t at = 0; at < block.count;) {
    const int64_t rows = std::min(block.count - at, left_of_plane(block.first + at));
    act(at, rows);
    at += rows;
  }
}

// A block, row by row, from registers to the fold.
void RowRun::fold_loop(Desk& desk, StageFrame& frame, const Block& block) {
  const FoldLoop& loop = *frame.stage->loop;
  const uint16_t number = frame.stage->folds.front();
  place(frame, block.first);
  const auto run = [&](int64_t at, int64_t rows, char* to, bool continues) {
    Extent extent = extent_of(frame, {0, columns_});
    extent.rows = rows;
    loop.run(frame.stage->code->code_.data(), frame.pointers(), extent, to, continues);
    if (at + rows < block.count) point(frame, block.first + at + rows, block.first);
  };
  if (loop.over_rows) {
    each_chunk(desk, number, block, {0, columns_}, run);
    return;
  }
  char* const to = row_buffer(desk, way_->folds[number].result);
  each_plane(block, [&](int64_t at, int64_t rows) { run(at, rows, to + at * size_, false); });
}

// The same, and the stage that comes after it.
void RowRun::fold_then_loop(const Desk& desk, StageFrame& fold, StageFrame& then,
                            const Block& block) const {
  char* const to = row_buffer(desk, way_->folds[fold.stage->folds.front()].result);
  place(fold, block.first);
  place(then, block.first);
  each_plane(block, [&](int64_t at, int64_t rows) {
    Extent extents[] = {extent_of(fold, {0, columns_}), extent_of(then, {0, columns_})};
    extents[0].rows = extents[1].rows = rows;
    fold.stage->pair->run({fold.stage->code->code_.data(), fold.pointers(), &extents[0]},
                          to + at * size_,
                          {then.stage->code->code_.data(), then.pointers(), &extents[1]});
    if (at + rows == block.count) return;
    point(fold, block.first + at + rows, block.first);
    point(then, block.first + at + rows, block.first);
  });
}

// What a stage picks of some columns of a row, of which only a tile is computed. The pointers are
// at the row; column `columns.begin` of the buffer is at `buffer`.
void RowRun::pick_tile(StageFrame& frame, const char* at, const char* buffer, Span columns,
                       char* to) const {
  const auto column = column_at(kernels_.own, at, columns.begin, columns.length());
  Span tile = columns;
  if (column && columns.length() > kernels_.lanes) {
    tile.begin = std::min(*column, columns.end - kernels_.lanes);
    tile.end = tile.begin + kernels_.lanes;
  }
  if (column) range(frame, tile);
  pick(kernels_.own, kernels_.own, to, at, buffer + (tile.begin - columns.begin) * size_, 1,
       tile.length(), 0, tile.begin);
}

// The same of each row of a block.
void RowRun::pick_tiles(const Desk& desk, StageFrame& frame, const Block& block) const {
  const Fold& its = way_->folds[frame.stage->folds.front()];
  const char* const at = row_buffer(desk, *its.at);
  const char* const buffer = element_buffer(desk, its.from);
  char* const to = row_buffer(desk, its.result);
  place(frame, block.first);
  for (int64_t row = 0; row < block.count; ++row) {
    if (row > 0) point(frame, block.first + row, block.first);
    pick_tile(frame, at + row * size_, buffer + row * padded(columns_) * size_, {0, columns_},
              to + row * size_);
  }
}

// A block, row by row.
void RowRun::whole_rows(Desk& desk, StageFrame& frame, const Block& block) {
  if (frame.stage->loop != nullptr) {
    fold_loop(desk, frame, block);
    return;
  }
  if (frame.stage->picks) return pick_tiles(desk, frame, block);
  place(frame, block.first);
  fold_block(desk, frame, block, true);
  if (!frame.stage->is_empty) each_row(frame, block, {0, columns_});
  fold_block(desk, frame, block, false);
  if (frame.stage->scans.empty()) return;
  place(frame, block.first);
  scan(desk, frame, block, {0, columns_}, true);
  scan(desk, frame, block, {0, columns_}, false);
}

// The code of a stage over some columns of each row of a block.
void RowRun::each_row(StageFrame& frame, const Block& block, Span columns) const {
  const auto& code = *frame.stage->code;
  const int64_t end = block.first + block.count, lanes = kernels_.lanes;
  const int64_t least = code.is_loop() ? lanes / 8 * kLoopVectors : lanes;
  const bool by_row =
      columns.length() < least || (frame.stage->in_place && columns.length() % least != 0);
  for (int64_t row = block.first;;) {
    if (by_row) {
      range(frame, columns);
      ++row;
    } else {
      Extent rows = extent_of(frame, columns);
      rows.rows = std::min(end - row, left_of_plane(row));
      code.run_(code.code_.data(), frame.pointers(), rows);
      row += rows.rows;
    }
    if (row == end) return;
    point(frame, row, block.first);
  }
}

// Class by class.
void RowRun::long_rows(Desk& desk, StageFrame& frame, const Block& block, Span columns) {
  place(frame, block.first);
  if (frame.stage->only_scans()) return scan(desk, frame, block, columns, true);
  if (frame.stage->folds.empty() && frame.stage->scans.empty()) {
    return each_row(frame, block, columns);
  }
  if (frame.stage->folds_rows && block.count >= classes_) return fold_classes(desk, frame, block);
  fold_operands_down(desk, frame, block, columns);
  for (int64_t row = block.first;;) {
    const int64_t in_block = row - block.first;
    fold_operand_rows(desk, frame, in_block, columns);
    const Block one{row, 1, block.in_unit + in_block, block.last && in_block + 1 == block.count};
    const bool has_parts = !frame.stage->is_empty || frame.stage->scans_buffers();
    for (int64_t at = columns.begin; at < columns.end && has_parts; at += class_) {
      part(desk, frame, one, {at, std::min(at + class_, columns.end)});
    }
    finish_row(desk, frame, in_block);
    if (in_block + 1 == block.count) break;
    point(frame, ++row, block.first);
  }
  if (frame.stage->scans.empty()) return;
  place(frame, block.first);
  scan(desk, frame, block, columns, true);
}

// The rows of a block of operands, where nothing else is to be done: a class of all of them at a
// time, if that makes fewer calls than the classes of each.
void RowRun::fold_classes(const Desk& desk, const StageFrame& frame, const Block& block) const {
  each_fold(frame, true, [&](uint16_t fold, const Fold& its) {
    const uint16_t operand = its.from.index;
    const DType dtype = group_.group.operands[operand].dtype;
    const auto size = static_cast<int64_t>(dtype_size(dtype));
    const char* const from = frame.pointers()[operand];
    const char* const end =
        readable(operand, from + (block.count - 1) * row_[operand] + columns_ * size);
    const auto kernel = kernels_of(its).rows[static_cast<size_t>(dtype)];
    char* const parts = desk.partials + fold * classes_ * block_ * size_;
    for (int64_t c = 0; c < classes_; ++c) {
      kernel(parts + c * block.count * size_, from + c * class_ * size, block.count,
             std::min(class_, columns_ - c * class_), row_[operand], end);
    }
    join_neighbours(fold, parts, classes_, block.count, block.count * size_);
    std::memcpy(row_buffer(desk, its.result), parts, static_cast<size_t>(block.count * size_));
  });
}

void RowRun::fold_operands_down(Desk& desk, const StageFrame& frame, const Block& block,
                                Span columns) const {
  each_fold(frame, true, [&](uint16_t fold, const Fold& its) {
    if (!its.over_rows) return;
    const uint16_t operand = its.from.index;
    const DType dtype = group_.group.operands[operand].dtype;
    const auto size = static_cast<int64_t>(dtype_size(dtype));
    fold_down(desk, fold, frame.pointers()[operand] + columns.begin * size, dtype, row_[operand],
              block, columns);
  });
}

// Some classes of a row of each operand that is folded over columns.
void RowRun::fold_operand_rows(const Desk& desk, const StageFrame& frame, int64_t in_block,
                               Span columns) const {
  const int64_t whole = columns.length() / class_, left = columns.length() % class_;
  each_fold(frame, true, [&](uint16_t fold, const Fold& its) {
    if (its.over_rows) return;
    const uint16_t operand = its.from.index;
    const DType dtype = group_.group.operands[operand].dtype;
    const auto size = static_cast<int64_t>(dtype_size(dtype));
    const char* const from = frame.pointers()[operand] + columns.begin * size;
    char* const to = desk.partials + (fold * classes_ + columns.begin / class_) * size_;
    if (its.at) {
      const char* const at = row_buffer(desk, *its.at) + in_block * size_;
      for (int64_t done = 0; done < columns.length(); done += class_) {
        pick(kernels_.own, dtype, to + done / class_ * size_, at, from + done * size, 1,
             std::min(class_, columns.length() - done), 0, columns.begin + done);
      }
      return;
    }
    const auto kernel = kernels_of(its).rows[static_cast<size_t>(dtype)];
    const char* const end = readable(operand, from + columns.length() * size);
    if (whole > 0) kernel(to, from, whole, class_, class_ * size, end);
    if (left > 0) kernel(to + whole * size_, from + whole * class_ * size, 1, left, 0, end);
  });
}

// At most a class of a row.
void RowRun::part(Desk& desk, StageFrame& frame, const Block& row, Span columns) {
  for (const auto& [pointer, buffer] : frame.passing) {
    frame.pointers()[pointer] = before(buffer, columns.begin * size_);
  }
  if (frame.stage->picks) {
    const uint16_t fold = frame.stage->folds.front();
    const Fold& its = way_->folds[fold];
    const char* const at = row_buffer(desk, *its.at) + row.in_unit % block_ * size_;
    return pick_tile(frame, at, element_buffer(desk, its.from), columns,
                     desk.partials + (fold * classes_ + columns.begin / class_) * size_);
  }
  if (!frame.stage->is_empty) range(frame, columns);
  scan(desk, frame, row, columns, false);
  each_fold(frame, false, [&](uint16_t fold, const Fold& its) {
    int64_t at = 0;
    if (its.from.role == Role::element_buffer) {
      at = row.in_unit % block_ * padded(columns_) + columns.begin;
    }
    const char* const buffer = element_buffer(desk, its.from) + at * size_;
    if (its.over_rows) {
      fold_down(desk, fold, buffer, kernels_.own, 0, row, columns);
    } else if (its.at) {
      pick(kernels_.own, kernels_.own,
           desk.partials + (fold * classes_ + columns.begin / class_) * size_,
           row_buffer(desk, *its.at) + row.in_unit % block_ * size_, buffer, 1, columns.length(), 0,
           columns.begin);
    } else {
      kernels_of(its).rows[static_cast<size_t>(kernels_.own)](
          desk.partials + (fold * classes_ + columns.begin / class_) * size_, buffer, 1,
          columns.length(), 0, buffer + padded(columns.length()) * size_);
    }
  });
}

// The classes of a row, two neighbours at a time.
void RowRun::finish_row(const Desk& desk, const StageFrame& frame, int64_t in_block) const {
  for (const uint16_t fold : frame.stage->folds) {
    const Fold& its = way_->folds[fold];
    if (its.over_rows) continue;
    char* const p = desk.partials + fold * classes_ * size_;
    join_neighbours(fold, p, classes_, 1, size_);
    std::memcpy(row_buffer(desk, its.result) + in_block * size_, p, static_cast<size_t>(size_));
  }
}

// ---- folds over rows ----

// The accumulators of a chunk of a unit. Those of the first become the unit's.
char* RowRun::chunk_of(const Desk& desk, uint16_t fold, int64_t chunk) const {
  if (chunk == 0) return partial_of(desk.unit, fold);
  return desk.spare + (2 * number_of(fold) + (chunk == 3)) * padded(columns_) * size_;
}

// Folds rows of some columns into the accumulators of their chunks.
void RowRun::fold_down(Desk& desk, uint16_t fold, const char* from, DType dtype, int64_t stride,
                       const Block& block, Span columns) const {
  const auto kernel = kernels_of(way_->folds[fold]).columns[static_cast<size_t>(dtype)];
  each_chunk(desk, fold, block, columns, [&](int64_t done, int64_t rows, char* to, bool continues) {
    kernel(to, from + done * stride, rows, columns.length(), stride, continues);
  });
}

// Joins it with its neighbours, two at a time. `last`: of the unit.
void RowRun::end_chunk(const Desk& desk, uint16_t fold, int64_t chunk, bool last,
                       Span columns) const {
  const auto join = kernels_of(way_->folds[fold]).join;
  const auto at = [&](int64_t which) {
    return chunk_of(desk, fold, which) + columns.begin * size_;
  };
  if (chunk == 3) join(at(2), at(2), at(3), columns.length());
  if (chunk == 1 || chunk == 3 || (chunk == 2 && last)) {
    join(at(0), at(0), at(chunk == 1 ? 1 : 2), columns.length());
  }
}

// Few long rows: one after the other, each stage by all threads.
void RowRun::share_classes(List<Desk>& desks, Parallel& parallel) {
  struct Context {
    RowRun* self;
    List<Desk>* desks;
    size_t stage;
    Block row;
    std::atomic<size_t> seats{0};
    std::atomic<int64_t> next{0};
  };
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t plane = row / plane_rows_, in_plane = row % plane_rows_;
    const int64_t unit = by_plane_ ? plane * units_per_plane_ + in_plane / unit_rows_ : 0;
    const int64_t in_unit = in_plane % unit_rows_;
    const Block block{row, 1, in_unit, in_unit + 1 == unit_rows_ || in_plane + 1 == plane_rows_};
    for (Desk& desk : desks) desk.unit = unit;
    number_rows(desks.front(), row, 1);
    for (size_t s = 0; s < way_->stages.size(); ++s) {
      if (way_->stages[s].over_rows) {
        rows_stage(desks.front().stages[s], row, 1);
        continue;
      }
      for (Desk& desk : desks) place(desk.stages[s], row);
      Context context{this, &desks, s, block, {}, {}};
      parallel.run(
          threads_,
          [](void* pointer, int) {
            auto& its = *static_cast<Context*>(pointer);
            RowRun& self = *its.self;
            const FloatModeGuard mode(self.mode_);
            const UpperRegistersGuard upper;
            Desk& desk = (*its.desks)[its.seats.fetch_add(1, std::memory_order_relaxed)];
            StageFrame& frame = desk.stages[its.stage];
            const int64_t claim = std::max<int64_t>(self.classes_ / (16 * self.threads_), 1);
            while (true) {
              const int64_t at = its.next.fetch_add(claim, std::memory_order_relaxed);
              if (at >= self.classes_) break;
              for (int64_t c = at; c < std::min(at + claim, self.classes_); ++c) {
                const Span columns{c * self.class_, std::min((c + 1) * self.class_, self.columns_)};
                self.fold_operands_down(desk, frame, its.row, columns);
                self.fold_operand_rows(desk, frame, 0, columns);
                if (!frame.stage->is_empty) self.part(desk, frame, its.row, columns);
              }
            }
          },
          &context);
      finish_row(desks.front(), desks.front().stages[s], 0);
    }
  }
}

}  // namespace hologram::cpu
