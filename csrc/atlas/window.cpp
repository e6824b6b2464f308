#include "atlas/window.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "atlas/error.h"

namespace hologram {
namespace {

uint64_t next_program_number() noexcept {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
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

// Bytes from element 0 of an access to the end of its last one.
int64_t extent(const Program& program, uint16_t access) {
  const AccessKey& key = program.accesses[access];
  const auto size = static_cast<int64_t>(dtype_size(key.dtype));
  switch (key.layout) {
    case Layout::scalar: return size;
    case Layout::dense: return program.counts[key.space] * size;
    case Layout::strided: break;
  }
  const auto& sizes = program.shapes[key.shape].sizes;
  const auto& strides = program.strides[access];
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

}  // namespace

const char* flush_reason_name(FlushReason reason) noexcept {
  static constexpr const char* names[] = {"read",  "user",  "synchronize", "full", "other_window",
                                          "eager", "event", "memory",      "exit"};
  static_assert(std::size(names) == kFlushReasons);
  return names[static_cast<size_t>(reason)];
}

void Window::Open::clear() noexcept {
  program.clear();
  next_access.clear();
  slots.clear();
  bytes = 0;
  poisoned = false;
  origins.clear();
}

Window::Window(Executor& executor) : executor_(executor), open_(next_program_number()) {}

Window::~Window() = default;

uint16_t Window::slot_of(BlockState* block) {
  const uint64_t number = open_.load(std::memory_order_relaxed);
  if (block->program.load(std::memory_order_relaxed) == number) return block->slot;
  Program& program = current_.program;
  const auto slot = static_cast<uint16_t>(program.slots.size());
  program.slots.push_back({block->born == number || block->born == BlockState::kBornInside, true});
  program.blocks.push_back(block);
  current_.slots.emplace_back();
  if (block->failed.load(std::memory_order_relaxed)) [[unlikely]]
    current_.poisoned = true;
  block->slot = slot;
  block->window.store(this, std::memory_order_relaxed);
  block->program.store(number, std::memory_order_release);
  return slot;
}

uint16_t Window::space_of(int64_t count) {
  auto& counts = current_.program.counts;
  for (size_t i = counts.size(); i-- > 0;) {
    if (counts[i] == count) return static_cast<uint16_t>(i);
  }
  counts.push_back(count);
  return static_cast<uint16_t>(counts.size() - 1);
}

uint16_t Window::shape_of(std::span<const int64_t> sizes) {
  auto& shapes = current_.program.shapes;
  if (shapes.empty()) shapes.emplace_back();
  for (size_t i = shapes.size(); i-- > 1;) {
    if (std::ranges::equal(shapes[i].sizes, sizes)) return static_cast<uint16_t>(i);
  }
  shapes.push_back({{sizes.begin(), sizes.end()}});
  return static_cast<uint16_t>(shapes.size() - 1);
}

uint16_t Window::access_of(const View& view, int64_t count, std::span<const int64_t> sizes) {
  Program& program = current_.program;
  const uint16_t slot = slot_of(view.block);
  const bool strided = view.layout == Layout::strided;
  const AccessKey key{slot, view.dtype, view.layout,
                      view.layout == Layout::scalar ? uint16_t{0} : space_of(count),
                      strided ? shape_of(sizes) : uint16_t{0}};
  SlotState& state = current_.slots[slot];
  for (int32_t i = state.first_access; i >= 0; i = current_.next_access[static_cast<size_t>(i)]) {
    const auto known = static_cast<size_t>(i);
    if (program.offsets[known] == view.offset &&
        std::memcmp(&program.accesses[known], &key, sizeof key) == 0 &&
        (!strided || std::ranges::equal(program.strides[known], view.strides))) {
      return static_cast<uint16_t>(i);
    }
  }
  const auto access = static_cast<uint16_t>(program.accesses.size());
  program.accesses.push_back(key);
  program.offsets.push_back(view.offset);
  program.strides.emplace_back(view.strides.begin(), view.strides.end());
  if (state.first_access >= 0) {
    const int64_t end = view.offset + extent(program, access);
    for (int32_t i = state.first_access; i >= 0; i = current_.next_access[static_cast<size_t>(i)]) {
      const int64_t other = program.offsets[static_cast<size_t>(i)];
      if (other < end && view.offset < other + extent(program, static_cast<uint16_t>(i))) {
        program.overlaps.push_back({access, static_cast<uint16_t>(i)});
      }
    }
  }
  current_.next_access.push_back(state.first_access);
  state.first_access = access;
  return access;
}

Source Window::immediate_of(uint64_t bits, DType dtype) {
  Program& program = current_.program;
  program.immediates.push_back(bits);
  program.specials.push_back(special_of(bits, class_of(dtype)));
  return static_cast<Source>(kImmediate | (program.immediates.size() - 1));
}

void Window::append(const Operands& operands) {
  Instruction instruction{
      operands.code,           operands.dtype, static_cast<uint8_t>(operands.arity), 0, {},
      space_of(operands.count)};
  for (size_t i = 0; i < 3; ++i) {
    const View& in = operands.in[i];
    if (static_cast<int>(i) >= operands.arity) {
      instruction.in[i] = kNothing;
    } else if (in.block == nullptr) {
      instruction.in[i] = immediate_of(static_cast<uint64_t>(in.offset), operands.dtype);
    } else {
      instruction.in[i] = access_of(in, operands.count, operands.sizes);
    }
  }
  instruction.out = access_of(operands.out, operands.count, operands.sizes);
  current_.program.code.push_back(instruction);
  current_.bytes += static_cast<size_t>(operands.count) * dtype_size(operands.out.dtype);
}

void Window::record(std::span<const Operands> list, std::span<BlockState* const> temporaries) {
  if (const Hook hook = before_record_.load(std::memory_order_acquire)) [[unlikely]]
    hook();
  const std::string origin = locate();
  while (true) {
    {
      const std::lock_guard guard(lock_);
      const size_t held = current_.program.code.size();
      if (held == 0 || (held + list.size() <= kMostInstructions && current_.bytes < kMostBytes)) {
        for (const Operands& operands : list) append(operands);
        for (const BlockState* block : temporaries) current_.slots[block->slot].dead = true;
        if (!origin.empty()) [[unlikely]] {
          current_.origins.resize(current_.program.code.size(), origin);
        }
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
  Open& program = open ? window.current_ : window.running_;
  program.slots[block->slot].dead = true;
  // Under the lock: once the program has run, the block is gone.
  if (open && program.program.slots[block->slot].inside) block->give_back_memory();
  return true;
}

void Window::flush(FlushReason reason) {
  std::vector<std::pair<BlockState*, bool>> dead;  // and whether they still have memory
  Outcome outcome;
  std::string origin = locate();
  {
    const std::lock_guard running(executing_);
    uint64_t number;
    {
      const std::lock_guard guard(lock_);
      if (current_.program.code.empty()) return;
      std::swap(current_, running_);
      number = open_.load(std::memory_order_relaxed);
      open_.store(next_program_number(), std::memory_order_relaxed);
      empty_.store(true, std::memory_order_relaxed);
      for (size_t i = 0; i < running_.slots.size(); ++i) {
        running_.program.slots[i].live = !running_.slots[i].dead;
      }
    }
    const size_t recorded = running_.program.code.size();
    outcome = run(running_);
    if (!origin.empty()) [[unlikely]] {
      captured_.push_back({reason, std::move(origin), running_.program, running_.origins,
                           outcome.compiled ? outcome.compiled->plan : Plan{}});
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
      if (outcome.compiled) {
        stats_.passes += outcome.compiled->plan.batches.size();
        stats_.stores_elided += static_cast<uint64_t>(outcome.compiled->plan.stores_elided);
      }
      for (size_t i = 0; i < outcome.failures.size(); ++i) {
        BlockState* block = running_.program.blocks[i];
        block->failure = outcome.failures[i];
        block->failed.store(block->failure != nullptr, std::memory_order_release);
      }
      for (size_t i = 0; i < running_.slots.size(); ++i) {
        if (!running_.slots[i].dead) continue;
        const SlotKey& slot = running_.program.slots[i];
        // What lived inside the program only has given its memory back already.
        dead.emplace_back(running_.program.blocks[i], slot.live || !slot.inside);
      }
      done_.store(number, std::memory_order_release);
      running_.clear();
    }
  }
  for (const auto& [block, has_memory] : dead) {
    if (has_memory) block->give_back_memory();
    delete block;
  }
  if (outcome.raised) raise_(*outcome.raised);
}

std::string Window::locate() const {
  return capturing_.load(std::memory_order_relaxed) && locate_ != nullptr ? locate_()
                                                                          : std::string();
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

std::shared_ptr<const Window::Compiled> Window::compile(const Program& program) {
  auto compiled = std::make_shared<Compiled>();
  compiled->plan = canonicalise(program);
  for (const Batch& batch : compiled->plan.batches) {
    compiled->codes.push_back(executor_.compile(batch.group));
    compiled->traversals.push_back(traversals(batch.group));
  }
  return compiled;
}

std::shared_ptr<const Window::Compiled> Window::plan_for(const Program& program) {
  const uint64_t hash = program.hash();
  const auto [first, last] = plans_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second.key.same_key(program)) {
      it->second.used = ++uses_;
      ++run_.plan_hits;
      return it->second.compiled;
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
    plans_.emplace(hash, Cached{std::move(key), compiled, uses_});
  } else if (seen_.size() > 4 * kMostPlans) {
    seen_.clear();
  }
  return compiled;
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

// Memory for values that pass from group to group although their block is gone.
class Window::Scratch {
 public:
  explicit Scratch(Executor& executor) : executor_(executor) {}
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Takes all that a plan needs, or nothing; where there is none, `unwritable` says why.
  bool reserve(const Plan& plan, const Program& program, Failures& unwritable,
               std::shared_ptr<const Failure>& first) {
    bool complete = true;
    for (const uint16_t slot : plan.scratch) {
      try {
        memory_.emplace_back(slot, executor_.allocate_scratch(program.blocks[slot]->bytes));
      } catch (const OutOfMemory& error) {
        unwritable.resize(program.slots.size());
        unwritable[slot] = std::make_shared<const Failure>(
            Failure{std::string(error.what()) + " It was to hold the result of " +
                        describe_writer(program, slot) + ".",
                    true});
        if (!first) first = unwritable[slot];
        complete = false;
      }
    }
    if (!complete) release();
    return complete;
  }

  void put_into(std::vector<char*>& bases) const {
    for (const auto& [slot, memory] : memory_) bases[slot] = static_cast<char*>(memory);
  }

 private:
  static std::string describe_writer(const Program& program, uint16_t slot) {
    std::string text;
    for (const Instruction& instruction : program.code) {
      if (program.accesses[instruction.out].slot != slot) continue;
      text = std::string(code_name(instruction.code)) + " (" + dtype_name(instruction.dtype) +
             ", " + std::to_string(program.counts[instruction.space]) + " elements)";
    }
    return text;
  }
  void release() noexcept {
    for (const auto& [slot, memory] : memory_) executor_.free_scratch(memory);
    memory_.clear();
  }

  Executor& executor_;
  std::vector<std::pair<uint16_t, void*>> memory_;
};

Window::Outcome Window::run(Open& open) {
  Program& program = open.program;
  Outcome outcome;
  std::vector<Instruction> recorded;  // all of them, once some have been dropped
  try {
    Failures unwritable;
    for (bool whole = !open.poisoned;; whole = false) {
      if (whole) [[likely]] {
        outcome.compiled = plan_for(program);
      } else {
        if (recorded.empty()) recorded = program.code;
        program.code = recorded;
        drop_failed(program, unwritable, outcome.failures);
        outcome.compiled = compile(program);  // not to be met again
      }
      Scratch scratch(executor_);
      if (scratch.reserve(outcome.compiled->plan, program, unwritable, outcome.raised)) [[likely]] {
        execute(*outcome.compiled, program, scratch, outcome);
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
  return outcome;
}

// Whether storing to an access leaves nothing of what its block held.
bool Window::covers(const Program& program, uint16_t access, uint16_t space) {
  const AccessKey& key = program.accesses[access];
  return key.layout == Layout::dense && program.offsets[access] == 0 &&
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
  std::vector<Instruction> kept;
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
      kept.push_back(instruction);
    }
  }
  program.code = std::move(kept);
}

void Window::execute(const Compiled& compiled, const Program& program, const Scratch& scratch,
                     Outcome& outcome) {
  std::vector<char*> bases(program.blocks.size());
  for (size_t i = 0; i < bases.size(); ++i) {
    const SlotKey& slot = program.slots[i];
    bases[i] = slot.live || !slot.inside ? program.blocks[i]->data : nullptr;
  }
  scratch.put_into(bases);
  std::vector<void*> operands;
  std::vector<uint64_t> immediates;
  std::vector<int64_t> strides;
  for (size_t i = 0; i < compiled.plan.batches.size(); ++i) {
    const Batch& batch = compiled.plan.batches[i];
    for (const auto& member : batch.members) {
      if (!outcome.failures.empty() && is_poisoned(program, batch, member, outcome)) [[unlikely]] {
        continue;
      }
      operands.clear();
      immediates.clear();
      strides.clear();
      const bool strided = member.shape != 0;
      const auto& sizes = strided ? program.shapes[member.shape].sizes : std::vector<int64_t>{};
      for (size_t k = 0; k < member.accesses.size(); ++k) {
        const uint16_t access = member.accesses[k];
        const AccessKey& key = program.accesses[access];
        operands.push_back(bases[key.slot] + program.offsets[access]);
        run_.bytes_moved +=
            compiled.traversals[i][k] * dtype_size(key.dtype) *
            (key.layout == Layout::scalar ? 1 : static_cast<size_t>(program.counts[member.space]));
        if (!strided) continue;
        if (key.layout == Layout::strided) {
          strides.insert(strides.end(), program.strides[access].begin(),
                         program.strides[access].end());
        } else {
          strides.resize(strides.size() + sizes.size());
        }
      }
      for (const uint16_t number : member.immediates) {
        immediates.push_back(program.immediates[number]);
      }
      try {
        executor_.run(*compiled.codes[i],
                      {operands.data(), immediates.data(), program.counts[member.space],
                       static_cast<int>(sizes.size()), sizes.data(), strides.data()});
      } catch (const std::exception& error) {
        auto failure = failure_of(error);
        if (!outcome.raised) outcome.raised = failure;
        outcome.failures.resize(program.slots.size());
        mark_stores(program, batch, member, failure, outcome);
      }
    }
  }
}

// Says of the blocks that a member of a batch stores to that they failed, or with null that they
// are computed, where the store covers them.
void Window::mark_stores(const Program& program, const Batch& batch, const Batch::Member& member,
                         const std::shared_ptr<const Failure>& failure, Outcome& outcome) {
  for (const Node& node : batch.group.nodes) {
    if (node.kind != NodeKind::store) continue;
    const uint16_t access = member.accesses[node.b];
    if (failure || covers(program, access, member.space)) {
      outcome.failures[program.accesses[access].slot] = failure;
    }
  }
}

// Whether a member of a batch loads what is missing. What it stores fails then.
bool Window::is_poisoned(const Program& program, const Batch& batch, const Batch::Member& member,
                         Outcome& outcome) {
  std::shared_ptr<const Failure> failure;
  for (const Node& node : batch.group.nodes) {
    if (node.kind != NodeKind::load || failure) continue;
    failure = outcome.failures[program.accesses[member.accesses[node.a]].slot];
  }
  // One that runs again over what a failed one left is taken to succeed; if not, it says so.
  mark_stores(program, batch, member, failure, outcome);
  return failure != nullptr;
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
