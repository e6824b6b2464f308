#include "atlas/window.h"

#include <algorithm>
#include <cstring>

#include "atlas/error.h"

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
  bits = default_nan(bits, class_of(dtype));
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
  while (true) {
    {
      const std::lock_guard guard(lock_);
      const size_t held = current_.program.code.size();
      if (held == 0 || (held + list.size() <= kMostInstructions && current_.bytes < kMostBytes)) {
        for (const Operands& operands : list) append(operands);
        for (const BlockState* block : temporaries) current_.slots[block->slot].dead = true;
        stats_.recorded += list.size();
        empty_.store(false, std::memory_order_relaxed);
        break;
      }
    }
    flush(FlushReason::full);
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
    const auto compiled = plan_for(running_.program);
    execute(*compiled, running_.program);
    {
      const std::lock_guard guard(lock_);
      stats_.plan_hits += run_.plan_hits;
      stats_.plan_misses += run_.plan_misses;
      stats_.plan_evictions += run_.plan_evictions;
      stats_.bytes_moved += run_.bytes_moved;
      run_ = {};
      stats_.executed += running_.program.code.size();
      ++stats_.flushes[static_cast<size_t>(reason)];
      stats_.passes += compiled->plan.batches.size();
      stats_.stores_elided += static_cast<uint64_t>(compiled->plan.stores_elided);
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
  auto compiled = std::make_shared<Compiled>();
  compiled->plan = canonicalise(program);
  for (const Batch& batch : compiled->plan.batches) {
    compiled->codes.push_back(executor_.compile(batch.group));
  }
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

void Window::execute(const Compiled& compiled, const Program& program) {
  struct Scratch {
    Executor& executor;
    std::vector<void*> memory;
    ~Scratch() {
      for (void* block : memory) executor.free_scratch(block);
    }
  } scratch{executor_, {}};
  auto& bases = frame_.bases;
  bases.resize(program.blocks.size());
  for (size_t i = 0; i < bases.size(); ++i) {
    const SlotKey& slot = program.slots[i];
    bases[i] = slot.live || !slot.inside ? program.blocks[i]->data : nullptr;
  }
  for (const uint16_t slot : compiled.plan.scratch) {
    scratch.memory.push_back(executor_.allocate_scratch(program.blocks[slot]->bytes));
    bases[slot] = static_cast<char*>(scratch.memory.back());
  }
  for (size_t i = 0; i < compiled.plan.batches.size(); ++i) {
    frame_.bind(compiled.plan.batches[i], program, run_.bytes_moved);
    executor_.run(*compiled.codes[i], frame_.bindings);
  }
}

void Window::Frame::bind(const Batch& batch, const Program& program, uint64_t& bytes_moved) {
  bindings.clear();
  operands.clear();
  immediates.clear();
  strides.clear();
  // The members have equally many operands and immediates, but spaces of their own.
  for (const auto& member : batch.members) {
    std::span<const int64_t> sizes;
    if (member.shape != 0) sizes = program.shapes[member.shape].sizes;
    const int64_t count = program.counts[member.space];
    for (const uint16_t access : member.accesses) {
      const AccessKey& key = program.accesses[access];
      operands.push_back(bases[key.slot] + program.offsets[access]);
      bytes_moved +=
          dtype_size(key.dtype) * (key.layout == Layout::scalar ? 1 : static_cast<size_t>(count));
      if (key.layout == Layout::strided) {
        const auto& own = program.strides[access];
        strides.insert(strides.end(), own.begin(), own.end());
      } else {
        strides.resize(strides.size() + sizes.size());
      }
    }
    for (const uint16_t number : member.immediates) {
      immediates.push_back(program.immediates[number]);
    }
    bindings.push_back(
        {nullptr, nullptr, count, static_cast<int>(sizes.size()), sizes.data(), nullptr});
  }
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
