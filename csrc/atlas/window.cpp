#include "atlas/window.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <functional>
#include <new>
#include <string_view>
#include <utility>

#include "atlas/error.h"
#include "atlas/keep.h"

namespace hologram {
namespace {

uint64_t next_program_number() noexcept {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// Bits of the class with every NaN as the default one.
uint64_t default_nan(uint64_t bits, ComputeClass compute) noexcept {
  constexpr uint64_t kFloat = 0x7fc0'0000, kDouble = 0x7ff8'0000'0000'0000;
  switch (compute) {
    case ComputeClass::f32: return (bits & 0x7fff'ffff) > 0x7f80'0000 ? kFloat : bits;
    case ComputeClass::f64:
      return (bits & ~(uint64_t{1} << 63)) > 0x7ff0'0000'0000'0000 ? kDouble : bits;
    case ComputeClass::i64: break;
  }
  return bits;
}

Special special_of(uint64_t bits, ComputeClass compute) noexcept {
  const auto is_one_of = [&](uint64_t zero, uint64_t one, uint64_t sign) {
    return bits == zero           ? Special::zero
           : bits == one          ? Special::one
           : bits == sign         ? Special::negative_zero
           : bits == (sign | one) ? Special::minus_one
                                  : Special::none;
  };
  switch (compute) {
    case ComputeClass::f32: return is_one_of(0, 0x3f80'0000, 0x8000'0000);
    case ComputeClass::f64: return is_one_of(0, 0x3ff0'0000'0000'0000, uint64_t{1} << 63);
    case ComputeClass::i64: break;
  }
  return bits == 0 ? Special::zero : bits == 1 ? Special::one : Special::none;
}

// The bytes of an AccessKey, put together in a register: it is compared right after it was stored,
// and eight bytes cannot be loaded from narrower stores that are still on their way.
uint64_t packed(uint16_t slot, DType dtype, Layout layout, uint16_t space, uint16_t shape) {
  static_assert(std::endian::native == std::endian::little && sizeof(AccessKey) == 8 &&
                offsetof(AccessKey, dtype) == 2 && offsetof(AccessKey, layout) == 3 &&
                offsetof(AccessKey, space) == 4 && offsetof(AccessKey, shape) == 6);
  return slot | uint64_t{static_cast<uint8_t>(dtype)} << 16 |
         uint64_t{static_cast<uint8_t>(layout)} << 24 | uint64_t{space} << 32 |
         uint64_t{shape} << 48;
}

}  // namespace

uint64_t next_flush_number() noexcept {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

const char* flush_reason_name(FlushReason reason) noexcept {
  static constexpr const char* names[] = {"read",  "user",     "synchronize", "full",
                                          "eager", "event",    "memory",      "exit",
                                          "mode",  "exported", "kernel",      "stream"};
  static_assert(std::size(names) == kFlushReasons);
  return names[static_cast<size_t>(reason)];
}

WindowStats& WindowStats::operator+=(const WindowStats& other) noexcept {
  recorded += other.recorded;
  executed += other.executed;
  failed += other.failed;
  passes += other.passes;
  stores_elided += other.stores_elided;
  plan_hits += other.plan_hits;
  plan_misses += other.plan_misses;
  plan_evictions += other.plan_evictions;
  plan_bytes = std::max(plan_bytes, other.plan_bytes);
  bytes_moved += other.bytes_moved;
  for (size_t i = 0; i < flushes.size(); ++i) flushes[i] += other.flushes[i];
  return *this;
}

void Window::Open::reserve(size_t instructions) {
  program.reserve(instructions);
  dead.reserve(4 * instructions);
  room = instructions;
}

void Window::Open::clear() noexcept {
  program.clear();
  crowds.clear();
  dead.clear();
  bytes = 0;
  comparisons = 0;
  origins.clear();
}

Window::Window(PlanCache& plans, Queue& queue, Scratch& scratch, SpinLock* shared)
    : plans_(plans),
      queue_(queue),
      scratch_(scratch),
      alone_(shared == nullptr),
      lock_(alone_ ? own_lock_ : *shared),
      open_(next_program_number()) {}

Window::~Window() = default;

inline SlotState& Window::state_of(const View& view, uint64_t number) {
  BlockState* const block = view.block;
  if (block == nullptr) [[unlikely]]
    return state_of_temporary(view.temporary);
  if (block->program.load(std::memory_order_relaxed) == number) return block->place;
  Program& program = current_->program;
  const auto slot = static_cast<uint16_t>(program.slots.size());
  program.slots.push({block->born == number, true});
  program.blocks.push(block);
  current_->dead.push(false);
  block->place = {slot, -1, -1};
  block->window.store(this, std::memory_order_release);
  block->program.store(number, std::memory_order_release);
  return block->place;
}

SlotState& Window::state_of_temporary(uint16_t number) {
  SlotState& state = current_->temporaries[number - size_t{1}];
  if (state.last_access < 0) {
    Program& program = current_->program;
    state.slot = static_cast<uint16_t>(program.slots.size());
    program.slots.push({true, true});
    program.blocks.push(nullptr);
    current_->dead.push(true);
  }
  return state;
}

inline uint16_t Window::space_of(int64_t count) {
  auto& counts = current_->program.counts;
  for (size_t i = counts.size(); i-- > 0;) {
    if (counts[i] == count) return static_cast<uint16_t>(i);
  }
  counts.push(count);
  return static_cast<uint16_t>(counts.size() - 1);
}

uint16_t Window::shape_of(std::span<const int64_t> sizes) {
  auto& shapes = current_->program.shapes;
  if (shapes.empty()) shapes.emplace_back();
  for (size_t i = shapes.size(); i-- > 1;) {
    if (std::ranges::equal(shapes[i].sizes, sizes)) return static_cast<uint16_t>(i);
  }
  shapes.push_back({{sizes.begin(), sizes.end()}});
  return static_cast<uint16_t>(shapes.size() - 1);
}

// In line, with what is rare out of line: three calls of an instruction would take a quarter of the
// time in which it is recorded.
[[gnu::always_inline]] inline uint16_t Window::access_of(const View& view, const Operands& operands,
                                                         uint16_t space, uint64_t number,
                                                         bool written) {
  if (view.layout == Layout::strided) [[unlikely]]
    return strided_access_of(view, operands, space, number, written);
  Program& program = current_->program;
  SlotState& state = state_of(view, number);
  const uint64_t key = packed(state.slot, view.dtype, view.layout,
                              view.layout == Layout::scalar ? uint16_t{0} : space, uint16_t{0});
  if (state.last_access < 0) {  // nothing to compare with
    const auto access = static_cast<uint16_t>(program.accesses.size());
    program.accesses.push(std::bit_cast<AccessKey>(key));
    program.places.push({view.offset, -1, 0, written});
    state.last_access = access;
    return access;
  }
  int32_t i = state.crowd < 0 ? state.last_access : last_access_at(state, view.offset);
  while (i >= 0) {
    const auto known = static_cast<size_t>(i);
    const Place& place = program.places[known];
    if (place.offset == view.offset && std::bit_cast<uint64_t>(program.accesses[known]) == key) {
      if (written && !place.written) write(state, static_cast<uint16_t>(i));
      return static_cast<uint16_t>(i);
    }
    i = place.next;
  }
  return another_access(state, view, operands, key, written);
}

uint16_t Window::strided_access_of(const View& view, const Operands& operands, uint16_t space,
                                   uint64_t number, bool written) {
  Program& program = current_->program;
  SlotState& state = state_of(view, number);
  const uint64_t key = packed(state.slot, view.dtype, view.layout, space, shape_of(operands.sizes));
  int32_t i = state.last_access;
  if (state.crowd >= 0) [[unlikely]]
    i = last_access_at(state, view.offset);
  while (i >= 0) {
    const auto known = static_cast<size_t>(i);
    const Place& place = program.places[known];
    if (place.offset == view.offset && std::bit_cast<uint64_t>(program.accesses[known]) == key &&
        std::equal(view.strides, view.strides + operands.sizes.size(),
                   program.strides.data() + place.stride)) {
      if (written && !place.written) write(state, static_cast<uint16_t>(i));
      return static_cast<uint16_t>(i);
    }
    i = place.next;
  }
  return another_access(state, view, operands, key, written);
}

[[gnu::noinline]] uint16_t Window::another_access(SlotState& state, const View& view,
                                                  const Operands& operands, uint64_t key,
                                                  bool written) {
  Program& program = current_->program;
  const auto access = program.accesses.size();
  program.accesses.push(std::bit_cast<AccessKey>(key));
  program.places.push({view.offset, state.last_access,
                       static_cast<uint32_t>(program.strides.size()) & 0x7fff'ffff, written});
  if (view.layout == Layout::strided) {
    for (size_t d = 0; d < operands.sizes.size(); ++d) program.strides.push_back(view.strides[d]);
  }
  if (state.crowd >= 0) [[unlikely]] {
    Crowd& crowd = current_->crowds[static_cast<size_t>(state.crowd)];
    join_crowd(crowd, static_cast<uint16_t>(access));
    if (written) write_in_crowd(crowd, static_cast<uint16_t>(access));
    return static_cast<uint16_t>(access);
  }
  int others = 0;
  for (int32_t i = state.last_access; i >= 0; ++others) {
    const auto other = static_cast<uint16_t>(i);
    if (written || program.places[other].written) compare(static_cast<uint16_t>(access), other);
    i = program.places[other].next;
  }
  state.last_access = static_cast<int32_t>(access);
  if (others == kCrowded) [[unlikely]]
    make_crowd(state);
  return static_cast<uint16_t>(access);
}

// Notes that two accesses of a block, one of which is written, overlap, if they do.
void Window::compare(uint16_t access, uint16_t other) {
  ++current_->comparisons;
  if (!may_overlap(current_->program, access, other)) return;
  current_->program.overlaps.push_back({std::max(access, other), std::min(access, other)});
}

// An access that has been read is written now. With those that are written it was compared before.
void Window::write(const SlotState& state, uint16_t access) {
  auto& places = current_->program.places;
  if (state.crowd >= 0) [[unlikely]] {
    write_in_crowd(current_->crowds[static_cast<size_t>(state.crowd)], access);
  } else {
    for (int32_t i = state.last_access; i >= 0; i = places[static_cast<size_t>(i)].next) {
      const auto other = static_cast<uint16_t>(i);
      if (other != access && !places[other].written) compare(access, other);
    }
  }
  places[access].written = true;
}

// From here on the block's accesses are found by offset.
void Window::make_crowd(SlotState& state) {
  Program& program = current_->program;
  state.crowd = static_cast<int32_t>(current_->crowds.size());
  Crowd& crowd = current_->crowds.emplace_back();
  for (int32_t i = state.last_access; i >= 0;) {
    crowd.unsorted.push_back(static_cast<uint16_t>(i));
    i = program.places[static_cast<size_t>(i)].next;
  }
  std::ranges::reverse(crowd.unsorted);
  for (const uint16_t access : crowd.unsorted) {
    link(crowd, access);
    if (program.places[access].written) crowd.written.insert(program, access);
  }
}

void Window::link(Crowd& crowd, uint16_t access) {
  Place& place = current_->program.places[access];
  const auto [found, fresh] = crowd.last_at.try_emplace(place.offset, access);
  place.next = fresh ? -1 : std::exchange(found->second, access);
}

// Compares a new access with those that are written.
void Window::join_crowd(Crowd& crowd, uint16_t access) {
  link(crowd, access);
  crowd.written.find(current_->program, access, found_);
  for (const uint16_t other : found_) compare(access, other);
  crowd.unsorted.push_back(access);
}

// Compares an access with those that have only been read.
void Window::write_in_crowd(Crowd& crowd, uint16_t access) {
  const Program& program = current_->program;
  for (const uint16_t other : crowd.unsorted) crowd.all.insert(program, other);
  crowd.unsorted.clear();
  crowd.all.find(program, access, found_);
  for (const uint16_t other : found_) {
    if (other != access && !program.places[other].written) compare(access, other);
  }
  crowd.written.insert(program, access);
}

int32_t Window::last_access_at(const SlotState& state, int64_t offset) const {
  const auto& last_at = current_->crowds[static_cast<size_t>(state.crowd)].last_at;
  const auto found = last_at.find(offset);
  return found != last_at.end() ? found->second : -1;
}

inline Source Window::immediate_of(uint64_t bits, DType dtype) {
  Program& program = current_->program;
  bits = default_nan(bits, class_of(dtype));
  const Special special = special_of(bits, class_of(dtype));
  // Whoever of this program comes here has left its number, so one that an earlier program left
  // cannot be taken for it.
  uint16_t& known = current_->known[bits * 0x9e3779b97f4a7c15u >> 58];
  if (known < program.immediates.size() && program.immediates[known] == bits &&
      program.specials[known] == special) {
    return static_cast<Source>(kImmediate | known);
  }
  known = static_cast<uint16_t>(program.immediates.size());
  program.immediates.push(bits);
  program.specials.push(special);
  return static_cast<Source>(kImmediate | known);
}

[[gnu::always_inline]] inline void Window::append(const Operands& operands, uint64_t number) {
  const uint16_t space = space_of(operands.count);
  // Written where it stays, field by field: a copy would wait for these stores.
  Instruction& instruction = current_->program.code.push_unwritten();
  instruction.code = operands.code;
  instruction.dtype = operands.dtype;
  instruction.arity = static_cast<uint8_t>(operands.arity);
  instruction.space = space;
  instruction.kept = 0;
  instruction.turn = 0;
  for (size_t i = 0; i < 3; ++i) {
    const View& in = operands.in[i];
    if (static_cast<int>(i) >= operands.arity) {
      instruction.in[i] = kNothing;
    } else if (in.block == nullptr && in.temporary == 0) {
      instruction.in[i] = immediate_of(static_cast<uint64_t>(in.offset), operands.dtype);
    } else {
      instruction.in[i] = access_of(in, operands, space, number, false);
    }
  }
  instruction.out = access_of(operands.out, operands, space, number, true);
  current_->bytes += static_cast<size_t>(operands.count) * dtype_size(operands.out.dtype);
}

// Whether so many instructions of a thread in this mode can be appended.
inline bool Window::takes(size_t instructions, FloatMode mode) const {
  const size_t held = current_->program.code.size();
  return held + instructions <= kMostInstructions &&
         (held == 0 || (current_->bytes < kMostBytes && current_->comparisons < kMostComparisons &&
                        current_->program.float_mode == mode));
}

// A window with a program that touches a block of the instructions and has not been submitted; null
// where there is none but this.
Window* Window::pending_elsewhere(std::span<const Operands> list) const {
  Window* found = nullptr;
  const auto look_at = [&](const BlockState* block) {
    if (block == nullptr) return;
    Window* const window = block->window.load(std::memory_order_relaxed);
    if (window != nullptr && window != this && window->pending(*block)) found = window;
  };
  for (const Operands& operands : list) {
    look_at(operands.out.block);
    for (size_t i = 0; i < static_cast<size_t>(operands.arity); ++i) look_at(operands.in[i].block);
  }
  return found;
}

void Window::record(std::span<const Operands> list, size_t temporaries) {
  if (const Hook hook = before_record_.load(std::memory_order_acquire)) [[unlikely]]
    hook();
  std::string origin;
  if (capturing_.load(std::memory_order_relaxed)) [[unlikely]]
    origin = locate_();
  const FloatMode mode = float_mode();
  while (true) {
    FlushReason reason = FlushReason::full;
    Window* other = nullptr;
    {
      const std::lock_guard guard(lock_);
      if (!alone_) [[unlikely]]
        other = pending_elsewhere(list);
      if (other != nullptr) [[unlikely]] {
        reason = FlushReason::stream;
      } else if (takes(list.size(), mode)) [[likely]] {
        const size_t held = current_->program.code.size();
        current_->program.float_mode = mode;
        if (held + list.size() > current_->room) [[unlikely]]
          current_->reserve(std::max(held + list.size(), 2 * current_->room));
        const uint64_t number = open_.load(std::memory_order_relaxed);
        if (temporaries != 0) [[unlikely]]
          current_->temporaries.assign(temporaries, {});
        for (const Operands& operands : list) append(operands, number);
        if (!origin.empty()) [[unlikely]]
          current_->origins.resize(current_->program.code.size(), origin);
        stats_.recorded += list.size();
        empty_.store(false, std::memory_order_relaxed);
        break;
      } else if (current_->program.float_mode != mode) {
        reason = FlushReason::mode;
      }
    }
    if (list.size() > kMostInstructions) {
      throw Error(std::to_string(list.size()) + " instructions at once, where a window holds " +
                  std::to_string(kMostInstructions));
    }
    (other != nullptr ? other : this)->flush(reason);
  }
  if (!recording()) flush(FlushReason::eager);
}

bool Window::keep(BlockState* block) noexcept {
  if (block->program.load(std::memory_order_acquire) == 0) return false;
  Window& window = *block->window.load(std::memory_order_acquire);
  const std::lock_guard guard(window.lock_);
  if (!window.pending(*block)) return false;
  const bool open = block->program.load(std::memory_order_relaxed) ==
                    window.open_.load(std::memory_order_relaxed);
  Open& program = open ? *window.current_ : *window.running_;
  program.dead[block->place.slot] = true;
  // Under the lock: once the program has run, the block is gone.
  if (open && program.program.slots[block->place.slot].inside) {
    block->give_back_memory();
  } else {
    block->retire_memory();
  }
  return true;
}

void Window::flush(FlushReason reason) {
  if (reason == FlushReason::read) {
    if (const Hook hook = before_read_.load(std::memory_order_acquire)) [[unlikely]]
      hook();
  }
  std::shared_ptr<const Failure> raised;
  std::string origin;
  if (capturing_.load(std::memory_order_relaxed)) [[unlikely]]
    origin = locate_();
  {
    const std::lock_guard running(executing_);
    uint64_t number;
    {
      const std::lock_guard guard(lock_);
      if (current_->program.code.empty()) return;
      std::swap(current_, running_);
      number = open_.load(std::memory_order_relaxed);
      open_.store(next_program_number(), std::memory_order_relaxed);
      empty_.store(true, std::memory_order_relaxed);
      running_->program.contracts = contracting();
      for (size_t i = 0; i < running_->dead.size(); ++i) {
        running_->program.slots[i].live = !running_->dead[i];
      }
    }
    const size_t recorded = running_->program.code.size();
    if (keeping()) [[unlikely]]
      mark_kept(running_->program);
    Watcher* const watcher = watcher_ != nullptr && watcher_->watches() ? watcher_ : nullptr;
    const Watched whole(watcher, [&] {
      return std::string("hologram::flush (") + flush_reason_name(reason) + ")";
    });
    const Outcome outcome = run(*running_, watcher);
    raised = std::move(frame_.raised);
    if (!origin.empty()) [[unlikely]] {
      captured_.push_back({next_flush_number(), reason, std::move(origin), running_->program,
                           running_->origins,
                           outcome.compiled != nullptr ? outcome.compiled->plan : Plan{}});
      captured_.back().program.blocks.clear();
    }
    {
      const std::lock_guard guard(lock_);
      stats_.plan_hits += run_.plan_hits;
      stats_.plan_misses += run_.plan_misses;
      stats_.plan_evictions += run_.plan_evictions;
      stats_.bytes_moved += frame_.bytes_moved;
      run_ = {};
      stats_.executed += recorded - outcome.failed;
      stats_.failed += outcome.failed;
      ++stats_.flushes[static_cast<size_t>(reason)];
      if (outcome.compiled != nullptr) {
        stats_.passes += outcome.compiled->plan.batches.size();
        stats_.stores_elided += static_cast<uint64_t>(outcome.compiled->plan.stores_elided);
      }
      for (size_t i = 0; i < frame_.failures.size(); ++i) {
        BlockState* block = running_->program.blocks[i];
        if (block == nullptr) continue;
        block->failure = frame_.failures[i];
        block->failed.store(block->failure != nullptr, std::memory_order_release);
      }
      if (outcome.ticket != 0) [[likely]] {
        submitted_.store(outcome.ticket, std::memory_order_release);
        if (outcome.late) [[unlikely]] {
          for (BlockState* const block : running_->program.blocks) {
            if (block != nullptr) block->last_use.store({&queue_, outcome.ticket});
          }
        }
      }
      // From here on keep() leaves the program's blocks to their owners.
      done_.store(number, std::memory_order_release);
    }
    for (size_t i = 0; i < running_->dead.size(); ++i) {
      if (!running_->dead[i]) continue;
      BlockState* const block = running_->program.blocks[i];
      if (block == nullptr) continue;
      const SlotKey& slot = running_->program.slots[i];
      // What lived inside the program only has given its memory back already.
      if (slot.live || !slot.inside) block->give_back_memory();
      delete block;
    }
    running_->clear();
  }
  if (raised) raise_(*raised);
}

void Window::start_capture() {
  flush(FlushReason::user);
  capturing_.store(true, std::memory_order_relaxed);
}

std::vector<Flushed> Window::end_capture() {
  capturing_.store(false, std::memory_order_relaxed);
  const std::lock_guard running(executing_);
  return std::exchange(captured_, {});
}

void Window::wait(BlockState& block) {
  const Fence fence = block.last_use.load();
  fence.wait();
  // A block that no window has touched may be touched now, under a lock that is not known here.
  Window* const window = block.window.load(std::memory_order_acquire);
  if (window == nullptr) return;
  const std::lock_guard guard(window->lock_);
  if (block.last_use.load() == fence) block.last_use.clear();
}

void Window::begin_use(BlockState& block, FlushReason reason) {
  submit(block, reason);
  check(block);
  const std::lock_guard running(executing_);
  const Fence fence = block.last_use.load();
  if (fence.queue == &queue_ || !fence.outstanding() || waited_for_.covers(fence)) return;
  queue_.wait_for(fence);
  waited_for_.add(fence);
}

void Window::end_use(BlockState& block, Ticket ticket) {
  const std::lock_guard running(executing_);
  while (true) {
    Fence fence;
    {
      const std::lock_guard guard(lock_);
      fence = block.last_use.load();
      const bool own = fence.queue == &queue_;
      if (own || fence.ticket == 0 || waited_for_.covers(fence)) {
        block.last_use.store({&queue_, own ? std::max(fence.ticket, ticket) : ticket});
        return;
      }
    }
    // Another queue has been given work on the block meanwhile; the fence stands for that, too.
    queue_.wait_for(fence);
    waited_for_.add(fence);
    ticket = queue_.record(nullptr);
  }
}

void Window::raise(const BlockState& block) const {
  std::shared_ptr<const Failure> failure;
  {
    const std::lock_guard guard(lock_);
    failure = block.failure;
  }
  if (failure) raise_(*failure);
}

void Window::drop_plan() {
  const std::lock_guard running(executing_);
  compiled_.reset();
}

// So that what nobody reads shares no cache line.
static size_t aligned(size_t bytes) {
  return (bytes + 63) & ~size_t{63};
}

// What the turn that needs most stores for nobody.
static size_t discarded_bytes(const Plan& plan, const Program& program) {
  size_t most = 0;
  for (const auto& turn : plan.discarded) {
    size_t bytes = 0;
    for (const uint16_t slot : turn) bytes += aligned(slot_bytes(program, slot));
    most = std::max(most, bytes);
  }
  return most;
}

// Takes all the scratch that a plan needs, or nothing; where there is none, `unwritable` says why.
bool Window::reserve_scratch(const Plan& plan, const Program& program, Failures& unwritable,
                             std::shared_ptr<const Failure>& first) {
  const auto writer = [&](uint16_t slot) {
    std::string text;
    for (const Instruction& instruction : program.code) {
      if (program.accesses[instruction.out].slot != slot) continue;
      text = std::string(code_name(instruction.code)) + " (" + dtype_name(instruction.dtype) +
             ", " + std::to_string(program.counts[instruction.space]) + " elements)";
    }
    return text;
  };
  bool complete = true;
  held_.reserve(plan.scratch.size() + 1);
  for (const uint16_t slot : plan.scratch) {
    try {
      held_.push(scratch_.allocate_scratch(slot_bytes(program, slot), queue_));
    } catch (const OutOfMemory& error) {
      unwritable.resize(program.slots.size());
      unwritable[slot] = std::make_shared<const Failure>(Failure{
          std::string(error.what()) + " It was to hold the result of " + writer(slot) + ".", true});
      if (!first) first = unwritable[slot];
      complete = false;
    }
  }
  if (const size_t bytes = discarded_bytes(plan, program); bytes != 0) {
    try {
      held_.push(scratch_.allocate_scratch(bytes, queue_));
    } catch (const OutOfMemory& error) {
      unwritable.resize(program.slots.size());
      for (const auto& turn : plan.discarded) {
        for (const uint16_t slot : turn) {
          unwritable[slot] = std::make_shared<const Failure>(
              Failure{std::string(error.what()) + " It was to hold the result of " + writer(slot) +
                          ", which nobody reads and keep_results() stores.",
                      true});
          if (!first) first = unwritable[slot];
        }
      }
      complete = false;
    }
  }
  if (!complete) release_scratch(fence_behind_all());
  return complete;
}

// For memory that came from the pool and was not used: whoever had it before may still use it, and
// the queue waits for that.
Fence Window::fence_behind_all() noexcept {
  try {
    const Fence fence{&queue_, queue_.record(nullptr)};
    return fence.outstanding() ? fence : Fence{};
  } catch (const std::exception&) {
    return {&queue_, queue_.last()};
  }
}

// Before a program is submitted: other queues may still use its memory.
void Window::wait_for_other_queues(const Program& program) {
  fences_.clear();
  for (size_t i = 0; i < program.blocks.size(); ++i) {
    const SlotKey& slot = program.slots[i];
    if (!slot.live && slot.inside) continue;  // what was its memory is not touched
    const Fence fence = program.blocks[i]->last_use.load();
    if (fence.queue != &queue_ && fence.outstanding()) fences_.add(fence);
  }
  for (const Fence& fence : fences_) {
    if (waited_for_.covers(fence)) continue;
    queue_.wait_for(fence);
    waited_for_.add(fence);
  }
}

void Window::release_scratch(Fence fence) noexcept {
  for (void* memory : held_) scratch_.free_scratch(memory, fence);
  held_.clear();
}

Window::Outcome Window::run(Open& open, Watcher* watcher) {
  Program& program = open.program;
  Outcome outcome;
  Column<Instruction> recorded;  // all of them, once some have been dropped
  std::shared_ptr<const Failure> first;
  try {
    Failures unwritable, missing;
    for (bool whole = !touches_failed(program);; whole = false) {
      if (whole) [[likely]] {
        const auto [hit, evictions] = plans_.find(program, compiled_);
        ++(hit ? run_.plan_hits : run_.plan_misses);
        run_.plan_evictions += evictions;
      } else {
        if (recorded.empty()) recorded = program.code;
        program.code = recorded;
        drop_failed(program, unwritable, missing);
        compiled_ = plans_.compile(program);
      }
      if (reserve_scratch(compiled_->plan, program, unwritable, first)) [[likely]] {
        find_bases(compiled_->plan, program);
        frame_.begin(compiled_->plan, compiled_->traversals, program, watcher, std::move(missing));
        outcome.compiled = compiled_.get();
        if (!alone_) [[unlikely]]
          wait_for_other_queues(program);
        outcome.ticket = queue_.submit(compiled_, frame_);
        break;
      }
    }
  } catch (const std::exception& error) {
    // Nothing has been stored: it is the plan that could not be made.
    outcome.compiled = nullptr;
    const auto failure = failure_of(error);
    first = failure;
    frame_.failures.assign(program.slots.size(), nullptr);
    frame_.bytes_moved = 0;
    for (const Instruction& instruction : recorded.empty() ? program.code : recorded) {
      frame_.failures[program.accesses[instruction.out].slot] = failure;
    }
  }
  if (first) frame_.raised = std::move(first);
  if (!frame_.failures.empty()) [[unlikely]] {
    failures_ = true;
    for (const Instruction& instruction : recorded.empty() ? program.code : recorded) {
      outcome.failed += frame_.failures[program.accesses[instruction.out].slot] != nullptr;
    }
  }
  outcome.late = outcome.ticket != 0 && !queue_.done(outcome.ticket);
  if (!held_.empty()) {
    release_scratch(outcome.late          ? Fence{&queue_, outcome.ticket}
                    : outcome.ticket != 0 ? Fence{}
                                          : fence_behind_all());
  }
  return outcome;
}

// Whether values of a block are missing. Only now is this known: blocks fail as programs run, also
// while this one was recorded.
bool Window::touches_failed(const Program& program) const noexcept {
  return (failures_ || !alone_) && std::ranges::any_of(program.blocks, [](const BlockState* block) {
           return block != nullptr && block->failed.load(std::memory_order_relaxed);
         });
}

// Takes out the instructions whose result has no memory, and those that read what is missing.
void Window::drop_failed(Program& program, const Failures& unwritable, Failures& failures) {
  failures.assign(program.slots.size(), nullptr);
  for (size_t i = 0; i < failures.size(); ++i) {
    const BlockState* const block = program.blocks[i];
    if (block != nullptr && block->failed.load(std::memory_order_relaxed)) {
      failures[i] = block->failure;
    }
  }
  size_t kept = 0;
  for (const Instruction& instruction : program.code) {
    const uint16_t slot = program.accesses[instruction.out].slot;
    std::shared_ptr<const Failure> failure = unwritable.empty() ? nullptr : unwritable[slot];
    for (int i = 0; i < instruction.arity && !failure; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if ((source & kImmediate) == 0) failure = failures[program.accesses[source].slot];
    }
    if (failure) {
      failures[slot] = std::move(failure);
    } else {
      if (covers(program, instruction.out, instruction.space)) failures[slot] = nullptr;
      program.code[kept++] = instruction;
    }
  }
  program.code.truncate(kept);  // in place: the room that was made for recording stays
}

void Window::find_bases(const Plan& plan, const Program& program) {
  auto& bases = frame_.bases;
  bases.clear();
  bases.reserve(program.blocks.size());
  for (size_t i = 0; i < program.blocks.size(); ++i) {
    const SlotKey& slot = program.slots[i];
    bases.push(slot.live || !slot.inside ? program.blocks[i]->data : nullptr);
  }
  for (size_t i = 0; i < plan.scratch.size(); ++i) {
    bases[plan.scratch[i]] = static_cast<char*>(held_[i]);
  }
  for (const auto& turn : plan.discarded) {
    char* place = held_.empty() ? nullptr : static_cast<char*>(held_.back());
    for (const uint16_t slot : turn) {
      bases[slot] = place;
      place += aligned(slot_bytes(program, slot));
    }
  }
}

WindowStats Window::stats() const {
  const std::lock_guard guard(lock_);
  WindowStats stats = stats_;
  stats.plan_bytes = plans_.bytes();
  return stats;
}

void Window::reset_stats() {
  const std::lock_guard guard(lock_);
  stats_ = {};
}

void Window::lock_for_fork() noexcept {
  executing_.lock();
  if (alone_) lock_.lock();
}

void Window::unlock_after_fork() noexcept {
  if (alone_) lock_.unlock();
  executing_.unlock();
}

}  // namespace hologram
