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

std::shared_ptr<const Failure> failure_of(const std::exception& error) {
  const bool out_of_memory = dynamic_cast<const OutOfMemory*>(&error) != nullptr ||
                             dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return std::make_shared<const Failure>(Failure{error.what(), out_of_memory});
}

// Tells a watcher, if there is one, how long it lives.
class Watched {
 public:
  template <class Name>
  Watched(Watcher* watcher, Name&& name) : watcher_(watcher) {
    if (watcher_ != nullptr) [[unlikely]]
      watcher_->begin(name());
  }
  ~Watched() {
    if (watcher_ != nullptr) [[unlikely]]
      watcher_->end();
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Watcher* watcher_;
};

// What a profiler shows of a pass: its operations, in order, each once.
std::string pass_name(const Group& group) {
  constexpr size_t kMostNames = 8;
  std::vector<std::string_view> names;
  for (const Node& node : group.nodes) {
    if (node.kind != NodeKind::compute) continue;
    const std::string_view name = op_info(node.op).name;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  if (names.empty()) names.push_back("copy");
  std::string text = "hologram::pass (";
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    if (i != 0) text += ", ";
    text += names[i];
  }
  return text + (names.size() > kMostNames ? ", ...)" : ")");
}

}  // namespace

const char* flush_reason_name(FlushReason reason) noexcept {
  static constexpr const char* names[] = {"read",  "user",   "synchronize", "full", "eager",
                                          "event", "memory", "exit",        "mode", "exported"};
  static_assert(std::size(names) == kFlushReasons);
  return names[static_cast<size_t>(reason)];
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

Window::Window(Executor& executor) : executor_(executor), open_(next_program_number()) {}

Window::~Window() = default;

inline uint16_t Window::slot_of(BlockState* block, uint64_t number) {
  if (block->program.load(std::memory_order_relaxed) == number) return block->slot;
  Program& program = current_->program;
  const auto slot = static_cast<uint16_t>(program.slots.size());
  program.slots.push({block->born == number || block->born == BlockState::kBornInside, true});
  program.blocks.push(block);
  current_->dead.push(false);
  block->slot = slot;
  block->last_access = -1;
  block->crowd = -1;
  block->window.store(this, std::memory_order_relaxed);
  block->program.store(number, std::memory_order_release);
  return slot;
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

inline uint16_t Window::access_of(const View& view, const Operands& operands, uint16_t space,
                                  uint64_t number, bool written) {
  Program& program = current_->program;
  const uint16_t slot = slot_of(view.block, number);
  const bool strided = view.layout == Layout::strided;
  const uint64_t key =
      packed(slot, view.dtype, view.layout, view.layout == Layout::scalar ? uint16_t{0} : space,
             strided ? shape_of(operands.sizes) : uint16_t{0});
  int32_t i = view.block->last_access;
  if (view.block->crowd >= 0) [[unlikely]]
    i = last_access_at(*view.block, view.offset);
  while (i >= 0) {
    const auto known = static_cast<size_t>(i);
    const Place& place = program.places[known];
    if (place.offset == view.offset && std::bit_cast<uint64_t>(program.accesses[known]) == key &&
        (!strided || std::equal(view.strides.begin(), view.strides.end(),
                                program.strides.data() + place.stride))) {
      if (written && !place.written) write(*view.block, static_cast<uint16_t>(i));
      return static_cast<uint16_t>(i);
    }
    i = place.next;
  }
  return another_access(view, key, written);
}

inline uint16_t Window::another_access(const View& view, uint64_t key, bool written) {
  Program& program = current_->program;
  const auto access = program.accesses.size();
  BlockState& block = *view.block;
  program.accesses.push(std::bit_cast<AccessKey>(key));
  program.places.push({view.offset, block.last_access,
                       static_cast<uint32_t>(program.strides.size()) & 0x7fff'ffff, written});
  if (view.layout == Layout::strided) {
    for (const int64_t stride : view.strides) program.strides.push_back(stride);
  }
  if (block.crowd >= 0) [[unlikely]] {
    Crowd& crowd = current_->crowds[static_cast<size_t>(block.crowd)];
    join_crowd(crowd, static_cast<uint16_t>(access));
    if (written) write_in_crowd(crowd, static_cast<uint16_t>(access));
    return static_cast<uint16_t>(access);
  }
  int others = 0;
  for (int32_t i = block.last_access; i >= 0; ++others) {
    const auto other = static_cast<uint16_t>(i);
    if (written || program.places[other].written) compare(static_cast<uint16_t>(access), other);
    i = program.places[other].next;
  }
  block.last_access = static_cast<int32_t>(access);
  if (others == kCrowded) [[unlikely]]
    make_crowd(block);
  return static_cast<uint16_t>(access);
}

// Notes that two accesses of a block, one of which is written, overlap, if they do.
void Window::compare(uint16_t access, uint16_t other) {
  ++current_->comparisons;
  if (!may_overlap(current_->program, access, other)) return;
  current_->program.overlaps.push_back({std::max(access, other), std::min(access, other)});
}

// An access that has been read is written now. With those that are written it was compared before.
void Window::write(const BlockState& block, uint16_t access) {
  auto& places = current_->program.places;
  if (block.crowd >= 0) [[unlikely]] {
    write_in_crowd(current_->crowds[static_cast<size_t>(block.crowd)], access);
  } else {
    for (int32_t i = block.last_access; i >= 0; i = places[static_cast<size_t>(i)].next) {
      const auto other = static_cast<uint16_t>(i);
      if (other != access && !places[other].written) compare(access, other);
    }
  }
  places[access].written = true;
}

// From here on the block's accesses are found by offset.
void Window::make_crowd(BlockState& block) {
  Program& program = current_->program;
  block.crowd = static_cast<int32_t>(current_->crowds.size());
  Crowd& crowd = current_->crowds.emplace_back();
  for (int32_t i = block.last_access; i >= 0;) {
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

int32_t Window::last_access_at(const BlockState& block, int64_t offset) const {
  const auto& last_at = current_->crowds[static_cast<size_t>(block.crowd)].last_at;
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

inline void Window::append(const Operands& operands, uint64_t number) {
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
    } else if (in.block == nullptr) {
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

void Window::record(std::span<const Operands> list, std::span<BlockState* const> temporaries) {
  if (const Hook hook = before_record_.load(std::memory_order_acquire)) [[unlikely]]
    hook();
  std::string origin;
  if (capturing_.load(std::memory_order_relaxed)) [[unlikely]]
    origin = locate_();
  const FloatMode mode = float_mode();
  while (true) {
    FlushReason reason = FlushReason::full;
    {
      const std::lock_guard guard(lock_);
      if (takes(list.size(), mode)) [[likely]] {
        const size_t held = current_->program.code.size();
        current_->program.float_mode = mode;
        if (held + list.size() > current_->room) [[unlikely]]
          current_->reserve(std::max(held + list.size(), 2 * current_->room));
        const uint64_t number = open_.load(std::memory_order_relaxed);
        for (const Operands& operands : list) append(operands, number);
        for (const BlockState* block : temporaries) current_->dead[block->slot] = true;
        if (!origin.empty()) [[unlikely]]
          current_->origins.resize(current_->program.code.size(), origin);
        stats_.recorded += list.size();
        empty_.store(false, std::memory_order_relaxed);
        break;
      }
      if (current_->program.float_mode != mode) reason = FlushReason::mode;
    }
    try {
      if (list.size() > kMostInstructions) {
        throw Error(std::to_string(list.size()) + " instructions at once, where a window holds " +
                    std::to_string(kMostInstructions));
      }
      flush(reason);
    } catch (...) {
      for (const BlockState* block : temporaries) delete block;
      throw;
    }
  }
  if (!recording()) flush(FlushReason::eager);
}

bool Window::keep(BlockState* block) noexcept {
  if (block->program.load(std::memory_order_acquire) == 0) return false;
  Window& window = *block->window.load(std::memory_order_relaxed);
  const std::lock_guard guard(window.lock_);
  if (!window.pending(*block)) return false;
  const bool open = block->program.load(std::memory_order_relaxed) ==
                    window.open_.load(std::memory_order_relaxed);
  Open& program = open ? *window.current_ : *window.running_;
  program.dead[block->slot] = true;
  // Under the lock: once the program has run, the block is gone.
  if (open && program.program.slots[block->slot].inside) {
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
  Outcome outcome;
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
    const bool watched = watcher_ != nullptr && watcher_->watches();
    const Watched whole(watched ? watcher_ : nullptr, [&] {
      return std::string("hologram::flush (") + flush_reason_name(reason) + ")";
    });
    outcome = run(*running_, watched);
    if (!origin.empty()) [[unlikely]] {
      captured_.push_back({reason, std::move(origin), running_->program, running_->origins,
                           outcome.compiled != nullptr ? outcome.compiled->plan : Plan{}});
      captured_.back().program.blocks.clear();
    }
    {
      const std::lock_guard guard(lock_);
      stats_.plan_hits += run_.plan_hits;
      stats_.plan_misses += run_.plan_misses;
      stats_.plan_evictions += run_.plan_evictions;
      stats_.bytes_moved += run_.bytes_moved;
      run_ = {};
      stats_.executed += recorded - outcome.failed;
      stats_.failed += outcome.failed;
      ++stats_.flushes[static_cast<size_t>(reason)];
      if (outcome.compiled != nullptr) {
        stats_.passes += outcome.compiled->plan.batches.size();
        stats_.stores_elided += static_cast<uint64_t>(outcome.compiled->plan.stores_elided);
      }
      for (size_t i = 0; i < outcome.failures.size(); ++i) {
        BlockState* block = running_->program.blocks[i];
        block->failure = outcome.failures[i];
        block->failed.store(block->failure != nullptr, std::memory_order_release);
      }
      // From here on keep() leaves the program's blocks to their owners.
      done_.store(number, std::memory_order_release);
    }
    for (size_t i = 0; i < running_->dead.size(); ++i) {
      if (!running_->dead[i]) continue;
      BlockState* const block = running_->program.blocks[i];
      const SlotKey& slot = running_->program.slots[i];
      // What lived inside the program only has given its memory back already.
      if (slot.live || !slot.inside) block->give_back_memory();
      delete block;
    }
    running_->clear();
  }
  if (outcome.raised) raise_(*outcome.raised);
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

void Window::raise(const BlockState& block) const {
  std::shared_ptr<const Failure> failure;
  {
    const std::lock_guard guard(lock_);
    failure = block.failure;
  }
  if (failure) raise_(*failure);
}

std::unique_ptr<const Window::Compiled> Window::compile(const Program& program) {
  auto compiled = std::make_unique<Compiled>();
  compiled->plan = canonicalise(program);
  for (const Batch& batch : compiled->plan.batches) {
    compiled->codes.push_back(executor_.compile(batch.group));
    compiled->traversals.push_back(traversals(batch.group));
  }
  return compiled;
}

const Window::Compiled& Window::plan_for(const Program& program) {
  const auto hit = [&](Cached& cached) -> const Compiled& {
    latest_ = &cached;
    cached.used = ++uses_;
    ++run_.plan_hits;
    return *cached.compiled;
  };
  // In a loop the program is often the one before: that spares the hash.
  if (latest_ != nullptr && latest_->key.same_key(program)) return hit(*latest_);
  const uint64_t hash = program.hash();
  const auto [first, last] = plans_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second.key.same_key(program)) return hit(it->second);
  }
  ++run_.plan_misses;
  auto compiled = compile(program);
  // A program that is seen once may never be seen again.
  if (seen_.size() > 4 * kMostPlans) seen_.clear();
  if (seen_.try_emplace(hash, ++uses_).second) return pass(std::move(compiled));
  const size_t bytes = program.key_bytes() + compiled->bytes();
  // Nor may one plan push out most of the others.
  if (bytes > kMostPlanBytes / 4) return pass(std::move(compiled));
  make_room(bytes);
  plan_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return *plans_.emplace(hash, Cached{program.key(), std::move(compiled), bytes, uses_})
              ->second.compiled;
}

const Window::Compiled& Window::pass(std::unique_ptr<const Compiled> compiled) {
  passing_ = std::move(compiled);
  return *passing_;
}

size_t Window::Compiled::bytes() const {
  size_t sum = sizeof *this + plan.scratch.size() * sizeof plan.scratch[0];
  for (const auto& turn : plan.discarded) sum += sizeof turn + turn.size() * sizeof turn[0];
  for (size_t i = 0; i < plan.batches.size(); ++i) {
    const Batch& batch = plan.batches[i];
    sum += sizeof batch +
           batch.group.operands.size() * (sizeof(Operand) + sizeof traversals[i][0]) +
           batch.group.nodes.size() * sizeof(Node) + sizeof traversals[i] + codes[i]->bytes();
    for (const auto& member : batch.members) {
      sum += sizeof member + (member.accesses.size() + member.immediates.size()) * sizeof(uint16_t);
    }
  }
  return sum;
}

// Where the cache has no room for a plan, drops those that were not used for the longest time until
// a quarter of it is free.
void Window::make_room(size_t bytes) {
  size_t held = plan_bytes_.load(std::memory_order_relaxed);
  if (plans_.size() < kMostPlans && held + bytes <= kMostPlanBytes) return;
  latest_ = nullptr;
  std::vector<decltype(plans_)::iterator> oldest;
  for (auto it = plans_.begin(); it != plans_.end(); ++it) oldest.push_back(it);
  std::ranges::sort(oldest, {}, [](const auto& it) { return it->second.used; });
  for (const auto& it : oldest) {
    if (plans_.size() <= kMostPlans / 4 * 3 && held + bytes <= kMostPlanBytes / 4 * 3) break;
    held -= it->second.bytes;
    plans_.erase(it);
    ++run_.plan_evictions;
  }
  plan_bytes_.store(held, std::memory_order_relaxed);
}

void Window::drop_plans() {
  const std::lock_guard running(executing_);
  latest_ = nullptr;
  plans_.clear();
  seen_.clear();
  passing_.reset();
  plan_bytes_.store(0, std::memory_order_relaxed);
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
    for (const uint16_t slot : turn) bytes += aligned(program.blocks[slot]->bytes);
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
  frame_.scratch.reserve(plan.scratch.size() + 1);
  for (const uint16_t slot : plan.scratch) {
    try {
      frame_.scratch.push(executor_.allocate_scratch(program.blocks[slot]->bytes));
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
      frame_.scratch.push(executor_.allocate_scratch(bytes));
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
  if (!complete) release_scratch();
  return complete;
}

void Window::release_scratch() noexcept {
  for (void* memory : frame_.scratch) executor_.free_scratch(memory);
  frame_.scratch.clear();
}

Window::Outcome Window::run(Open& open, bool watched) {
  Program& program = open.program;
  Outcome outcome;
  Column<Instruction> recorded;  // all of them, once some have been dropped
  try {
    Failures unwritable;
    for (bool whole = !touches_failed(program);; whole = false) {
      if (whole) [[likely]] {
        outcome.compiled = &plan_for(program);
      } else {
        if (recorded.empty()) recorded = program.code;
        program.code = recorded;
        drop_failed(program, unwritable, outcome.failures);
        outcome.compiled = &pass(compile(program));  // not to be met again
      }
      if (reserve_scratch(outcome.compiled->plan, program, unwritable, outcome.raised)) [[likely]] {
        execute(*outcome.compiled, program, outcome, watched);
        break;
      }
    }
  } catch (const std::exception& error) {
    // Nothing has been stored: it is the plan that could not be made.
    outcome.compiled = nullptr;
    outcome.raised = failure_of(error);
    outcome.failures.resize(program.slots.size());
    for (const Instruction& instruction : recorded.empty() ? program.code : recorded) {
      outcome.failures[program.accesses[instruction.out].slot] = outcome.raised;
    }
  }
  if (!outcome.failures.empty()) [[unlikely]] {
    failures_ = true;
    for (const Instruction& instruction : recorded.empty() ? program.code : recorded) {
      outcome.failed += outcome.failures[program.accesses[instruction.out].slot] != nullptr;
    }
  }
  release_scratch();
  return outcome;
}

// Whether storing to an access leaves nothing of what its block held.
bool Window::covers(const Program& program, uint16_t access, uint16_t space) {
  const AccessKey& key = program.accesses[access];
  return key.layout == Layout::dense && program.places[access].offset == 0 &&
         static_cast<size_t>(program.counts[space]) * dtype_size(key.dtype) >=
             program.blocks[key.slot]->bytes;
}

// Whether values of a block are missing. Only now is this known: blocks fail as programs run, also
// while this one was recorded.
bool Window::touches_failed(const Program& program) const noexcept {
  return failures_ && std::ranges::any_of(program.blocks, [](const BlockState* block) {
           return block->failed.load(std::memory_order_relaxed);
         });
}

// Takes out the instructions whose result has no memory, and those that read what is missing.
void Window::drop_failed(Program& program, const Failures& unwritable, Failures& failures) {
  failures.assign(program.slots.size(), nullptr);
  for (size_t i = 0; i < failures.size(); ++i) {
    if (program.blocks[i]->failed.load(std::memory_order_relaxed)) {
      failures[i] = program.blocks[i]->failure;
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

void Window::execute(const Compiled& compiled, const Program& program, Outcome& outcome,
                     bool watched) {
  const FloatModeGuard mode(program.float_mode);
  auto& bases = frame_.bases;
  bases.clear();
  bases.reserve(program.blocks.size());
  for (size_t i = 0; i < program.blocks.size(); ++i) {
    const SlotKey& slot = program.slots[i];
    bases.push(slot.live || !slot.inside ? program.blocks[i]->data : nullptr);
  }
  for (size_t i = 0; i < compiled.plan.scratch.size(); ++i) {
    bases[compiled.plan.scratch[i]] = static_cast<char*>(frame_.scratch[i]);
  }
  for (const auto& turn : compiled.plan.discarded) {
    char* place =
        frame_.scratch.empty() ? nullptr : static_cast<char*>(*(frame_.scratch.end() - 1));
    for (const uint16_t slot : turn) {
      bases[slot] = place;
      place += aligned(program.blocks[slot]->bytes);
    }
  }
  for (size_t i = 0; i < compiled.plan.batches.size(); ++i) {
    const Batch* batch = &compiled.plan.batches[i];
    Batch rest;
    if (!outcome.failures.empty()) [[unlikely]] {
      rest = what_can_run(*batch, program, outcome.failures);
      batch = &rest;
    }
    frame_.bind(*batch, compiled.traversals[i], program, run_.bytes_moved);
    const Watched pass(watched ? watcher_ : nullptr, [&] { return pass_name(batch->group); });
    try {
      executor_.run(*compiled.codes[i], {frame_.bindings.data(), frame_.bindings.size()});
    } catch (const std::exception& error) {
      const auto failure = failure_of(error);
      if (!outcome.raised) outcome.raised = failure;
      outcome.failures.resize(program.slots.size());
      for (const auto& member : batch->members) {
        mark_stores(program, batch->group, member, failure, outcome.failures);
      }
    }
  }
}

// Says of the blocks that a member of a batch stores to that they failed, or with null that they
// are computed, where the store covers them.
void Window::mark_stores(const Program& program, const Group& group, const Batch::Member& member,
                         const std::shared_ptr<const Failure>& failure, Failures& failures) {
  for (const Node& node : group.nodes) {
    if (node.kind != NodeKind::store) continue;
    const uint16_t access = member.accesses[node.b];
    if (failure || covers(program, access, member.space)) {
      failures[program.accesses[access].slot] = failure;
    }
  }
}

// The members that load nothing that is missing. What the others store fails.
Batch Window::what_can_run(const Batch& batch, const Program& program, Failures& failures) {
  Batch result{batch.group, {}};
  for (const auto& member : batch.members) {
    std::shared_ptr<const Failure> failure;
    for (const Node& node : batch.group.nodes) {
      if (node.kind != NodeKind::load || failure) continue;
      failure = failures[program.accesses[member.accesses[node.a]].slot];
    }
    if (!failure) result.members.push_back(member);
    mark_stores(program, batch.group, member, failure, failures);
  }
  return result;
}

void Window::Frame::bind(const Batch& batch, const std::vector<uint8_t>& traversals,
                         const Program& program, uint64_t& bytes_moved) {
  bindings.clear();
  operands.clear();
  immediates.clear();
  strides.clear();
  for (const auto& member : batch.members) {
    std::span<const int64_t> sizes;
    if (member.shape != 0) sizes = program.shapes[member.shape].sizes;
    const int64_t count = program.counts[member.space];
    for (size_t k = 0; k < member.accesses.size(); ++k) {
      const uint16_t access = member.accesses[k];
      const AccessKey& key = program.accesses[access];
      const Place& place = program.places[access];
      operands.push_back(bases[key.slot] + place.offset);
      bytes_moved += traversals[k] * footprint(program, access);
      if (sizes.empty()) continue;
      const int64_t* own =
          key.layout == Layout::strided ? program.strides.data() + place.stride : nullptr;
      for (size_t d = 0; d < sizes.size(); ++d) strides.push_back(own != nullptr ? own[d] : 0);
    }
    for (const uint16_t number : member.immediates) {
      immediates.push_back(program.immediates[number]);
    }
    bindings.push_back(
        {nullptr, nullptr, count, static_cast<int>(sizes.size()), sizes.data(), nullptr});
  }
  // Only now they have stopped moving.
  size_t operand = 0, immediate = 0, stride = 0;
  for (size_t i = 0; i < bindings.size(); ++i) {
    const auto& member = batch.members[i];
    Binding& binding = bindings[i];
    binding.operands = operands.data() + operand;
    binding.immediates = immediates.data() + immediate;
    binding.strides = strides.data() + stride;
    operand += member.accesses.size();
    immediate += member.immediates.size();
    stride += member.accesses.size() * static_cast<size_t>(binding.rank);
  }
}

WindowStats Window::stats() const {
  const std::lock_guard guard(lock_);
  WindowStats stats = stats_;
  stats.plan_bytes = plan_bytes_.load(std::memory_order_relaxed);
  return stats;
}

void Window::reset_stats() {
  const std::lock_guard guard(lock_);
  stats_ = {};
}

void Window::lock_for_fork() noexcept {
  try {
    flush(FlushReason::exit);
  } catch (...) {
    // What could not run raises where it is read.
  }
  executing_.lock();
  lock_.lock();
}

void Window::unlock_after_fork() noexcept {
  lock_.unlock();
  executing_.unlock();
}

}  // namespace hologram
