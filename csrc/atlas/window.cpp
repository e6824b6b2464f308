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
  if (compute == ComputeClass::i64) {
    return bits == 0 ? Special::zero : bits == 1 ? Special::one : Special::none;
  }
  double value;
  if (compute == ComputeClass::f32) {
    float narrow;
    std::memcpy(&narrow, &bits, sizeof narrow);
    value = static_cast<double>(narrow);
  } else {
    std::memcpy(&value, &bits, sizeof value);
  }
  if (value == 0) return std::signbit(value) ? Special::negative_zero : Special::zero;
  if (value == 1) return Special::one;
  return value == -1 ? Special::minus_one : Special::none;
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

// Bytes from element 0 of an access to the end of its last one.
int64_t extent(const Program& program, size_t access) {
  const AccessKey& key = program.accesses[access];
  const auto size = static_cast<int64_t>(dtype_size(key.dtype));
  switch (key.layout) {
    case Layout::scalar: return size;
    case Layout::dense: return program.counts[key.space] * size;
    case Layout::strided: break;
  }
  const auto& sizes = program.shapes[key.shape].sizes;
  const int64_t* strides = program.strides.data() + program.places[access].stride;
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + size;
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
  static constexpr const char* names[] = {"read",  "user",   "synchronize", "full",    "eager",
                                          "event", "memory", "exit",        "exported"};
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
  poisoned = false;
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
  if (block->failed.load(std::memory_order_relaxed)) [[unlikely]]
    current_->poisoned = true;
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
                                  uint64_t number) {
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
      return static_cast<uint16_t>(i);
    }
    i = place.next;
  }
  return another_access(view, key);
}

inline uint16_t Window::another_access(const View& view, uint64_t key) {
  Program& program = current_->program;
  const auto access = program.accesses.size();
  BlockState& block = *view.block;
  program.accesses.push(std::bit_cast<AccessKey>(key));
  program.places.push(
      {view.offset, block.last_access, static_cast<uint32_t>(program.strides.size())});
  if (view.layout == Layout::strided) {
    for (const int64_t stride : view.strides) program.strides.push_back(stride);
  }
  if (block.crowd >= 0) [[unlikely]] {
    join_crowd(block, static_cast<uint16_t>(access));
    return static_cast<uint16_t>(access);
  }
  int others = 0;
  if (block.last_access >= 0) {
    const int64_t end = view.offset + extent(program, access);
    for (int32_t i = block.last_access; i >= 0; ++others) {
      const auto other = static_cast<size_t>(i);
      const Place& place = program.places[other];
      if (place.offset < end && view.offset < place.offset + extent(program, other)) {
        program.overlaps.push_back({static_cast<uint16_t>(access), static_cast<uint16_t>(other)});
      }
      i = place.next;
    }
  }
  block.last_access = static_cast<int32_t>(access);
  if (others == kCrowded) [[unlikely]]
    make_crowd(block);
  return static_cast<uint16_t>(access);
}

// From here on the block's accesses are found by offset.
void Window::make_crowd(BlockState& block) {
  Program& program = current_->program;
  std::vector<uint16_t> accesses;
  for (int32_t i = block.last_access; i >= 0; i = program.places[static_cast<size_t>(i)].next) {
    accesses.push_back(static_cast<uint16_t>(i));
  }
  block.crowd = static_cast<int32_t>(current_->crowds.size());
  current_->crowds.emplace_back();
  const size_t known = program.overlaps.size();
  for (size_t i = accesses.size(); i-- > 0;) join_crowd(block, accesses[i]);
  program.overlaps.truncate(known);  // those were recorded before
}

// Notes which accesses of its block a new one overlaps, in time that does not depend on how many
// there are elsewhere in the block.
void Window::join_crowd(BlockState& block, uint16_t access) {
  Program& program = current_->program;
  Crowd& crowd = current_->crowds[static_cast<size_t>(block.crowd)];
  Place& place = program.places[access];
  const auto [found, fresh] = crowd.last_at.try_emplace(place.offset, access);
  place.next = fresh ? -1 : std::exchange(found->second, access);

  const int64_t begin = place.offset, end = begin + extent(program, access);
  auto first =
      std::ranges::lower_bound(crowd.regions, begin, std::less_equal{}, &Crowd::Region::end);
  auto last = first;
  Crowd::Region joined{begin, end, {}};
  for (; last != crowd.regions.end() && last->begin < end; ++last) {
    for (const uint16_t other : last->accesses) {
      const int64_t other_begin = program.places[other].offset;
      if (other_begin < end && begin < other_begin + extent(program, other)) {
        program.overlaps.push_back({access, other});
      }
    }
    joined.begin = std::min(joined.begin, last->begin);
    joined.end = std::max(joined.end, last->end);
    if (joined.accesses.empty()) {
      joined.accesses = std::move(last->accesses);
    } else {
      joined.accesses.insert(joined.accesses.end(), last->accesses.begin(), last->accesses.end());
    }
  }
  joined.accesses.push_back(access);
  if (first == last) {
    crowd.regions.insert(first, std::move(joined));
  } else {
    *first = std::move(joined);
    crowd.regions.erase(first + 1, last);
  }
}

int32_t Window::last_access_at(const BlockState& block, int64_t offset) const {
  const auto& last_at = current_->crowds[static_cast<size_t>(block.crowd)].last_at;
  const auto found = last_at.find(offset);
  return found != last_at.end() ? found->second : -1;
}

inline Source Window::immediate_of(uint64_t bits, DType dtype) {
  Program& program = current_->program;
  bits = default_nan(bits, class_of(dtype));
  program.immediates.push(bits);
  program.specials.push(special_of(bits, class_of(dtype)));
  return static_cast<Source>(kImmediate | (program.immediates.size() - 1));
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
      instruction.in[i] = access_of(in, operands, space, number);
    }
  }
  instruction.out = access_of(operands.out, operands, space, number);
  current_->bytes += static_cast<size_t>(operands.count) * dtype_size(operands.out.dtype);
}

void Window::record(std::span<const Operands> list, std::span<BlockState* const> temporaries) {
  if (const Hook hook = before_record_.load(std::memory_order_acquire)) [[unlikely]]
    hook();
  std::string origin;
  if (capturing_.load(std::memory_order_relaxed)) [[unlikely]]
    origin = locate_();
  while (true) {
    {
      const std::lock_guard guard(lock_);
      const size_t held = current_->program.code.size();
      if (held == 0 || (held + list.size() <= kMostInstructions && current_->bytes < kMostBytes)) {
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
    }
    try {
      flush(FlushReason::full);
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
  const uint64_t hash = program.hash();
  const auto [first, last] = plans_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second.key.same_key(program)) {
      it->second.used = ++uses_;
      ++run_.plan_hits;
      return *it->second.compiled;
    }
  }
  ++run_.plan_misses;
  auto compiled = compile(program);
  // A program that is seen once may never be seen again.
  if (const auto [seen, fresh] = seen_.try_emplace(hash, ++uses_); !fresh) {
    if (plans_.size() >= kMostPlans) evict();
    Program key;
    key.code = program.code;
    key.accesses = program.accesses;
    key.overlaps = program.overlaps;
    key.specials = program.specials;
    key.slots = program.slots;
    key.contracts = program.contracts;
    return *plans_.emplace(hash, Cached{std::move(key), std::move(compiled), uses_})
                ->second.compiled;
  }
  if (seen_.size() > 4 * kMostPlans) seen_.clear();
  passing_ = std::move(compiled);
  return *passing_;
}

// Drops the quarter of the plans that was not used for the longest time.
void Window::evict() {
  std::vector<uint64_t> uses;
  for (const auto& [hash, cached] : plans_) uses.push_back(cached.used);
  const auto quarter = uses.begin() + static_cast<ptrdiff_t>(uses.size() / 4);
  std::nth_element(uses.begin(), quarter, uses.end());
  const uint64_t oldest_kept = *quarter;
  run_.plan_evictions +=
      std::erase_if(plans_, [&](const auto& item) { return item.second.used < oldest_kept; });
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
    for (bool whole = !open.poisoned;; whole = false) {
      if (whole) [[likely]] {
        outcome.compiled = &plan_for(program);
      } else {
        if (recorded.empty()) recorded = program.code;
        program.code = recorded;
        drop_failed(program, unwritable, outcome.failures);
        passing_ = compile(program);  // not to be met again
        outcome.compiled = passing_.get();
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
      bytes_moved += traversals[k] * dtype_size(key.dtype) *
                     (key.layout == Layout::scalar ? 1 : static_cast<size_t>(count));
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
  return stats_;
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
