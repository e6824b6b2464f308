#include "atlas/window.h"

#include <algorithm>
#include <utility>

#include "atlas/append.h"
#include "atlas/error.h"
#include "atlas/keep.h"

namespace hologram {
namespace {

uint64_t next_program_number() noexcept {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Window::Window(PlanCache& plans, Queue& queue, Scratch& scratch, SpinLock* shared)
    : plans_(plans),
      queue_(queue),
      scratch_(scratch),
      alone_(shared == nullptr),
      lock_(alone_ ? own_lock_ : *shared),
      open_(next_program_number()),
      runner_(plans, queue, scratch, alone_) {
  set_bounds(scratch.most_bytes());
}

Window::~Window() = default;

void Window::set_bounds(size_t memory) noexcept {
  most_bytes_ = std::min(memory, std::max(kMostBytes, memory / kShareOfBytes));
  most_retired_ = std::min(kMostRetired, memory / kShareOfRetired);
}

// Whether so many instructions of a thread in this mode can be appended.
inline bool Window::takes(size_t instructions, FloatMode mode) const {
  const size_t held = current_->held();
  return held + instructions <= kMostInstructions &&
         (held == 0 ||
          (current_->bytes < most_bytes_ &&
           (current_->program.calls.empty() || current_->retired < most_retired_) &&
           (alone_ || current_->program.calls.size() < kMostCalls) &&
           current_->comparisons < kMostComparisons && current_->program.float_mode == mode));
}

// A window with a program that touches one of the blocks and has not been submitted; null where
// there is none but this.
template <class EachBlock>
Window* Window::pending_elsewhere(EachBlock&& each_block) const {
  Window* found = nullptr;
  each_block([&](const BlockState* block) {
    if (block == nullptr) return;
    Window* const window = block->window.load(std::memory_order_relaxed);
    if (window != nullptr && window != this && window->pending(*block)) found = window;
  });
  return found;
}

// Makes room for so many instructions, which touch some blocks, and has them appended.
template <class EachBlock, class Append>
inline void Window::record_some(size_t instructions, EachBlock&& each_block, Append&& append) {
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
        other = pending_elsewhere(each_block);
      if (other != nullptr) [[unlikely]] {
        reason = FlushReason::stream;
      } else if (takes(instructions, mode)) [[likely]] {
        const size_t held = current_->held();
        current_->program.float_mode = mode;
        if (held + instructions > current_->capacity()) [[unlikely]]
          current_->reserve(std::max(held + instructions, 2 * current_->capacity()));
        append(open_.load(std::memory_order_relaxed));
        if (!origin.empty()) [[unlikely]]
          current_->origins.resize(current_->program.code.size(), origin);
        empty_.store(false, std::memory_order_relaxed);
        break;
      } else if (current_->program.float_mode != mode) {
        reason = FlushReason::mode;
      }
    }
    if (instructions > kMostInstructions) {
      throw Error(std::to_string(instructions) + " instructions at once, where a window holds " +
                  std::to_string(kMostInstructions));
    }
    (other != nullptr ? other : this)->flush(reason);
  }
  if (!recording()) flush(FlushReason::eager);
}

void Window::record(std::span<const Operands> list, size_t temporaries, Check* check) {
  if (!alone_ && !queue_.takes_work()) [[unlikely]]
    queue_.refuse_work(code_name(list.front().code));
  const auto each_block = [&](auto&& look_at) {
    for (const Operands& operands : list) {
      look_at(operands.out.block);
      for (size_t i = 0; i < static_cast<size_t>(operands.arity); ++i) {
        look_at(operands.in[i].block);
      }
    }
  };
  record_some(list.size(), each_block, [&](uint64_t number) {
    if (temporaries != 0) [[unlikely]]
      current_->begin_temporaries(temporaries);
    for (const Operands& operands : list) current_->append(operands, number);
    if (check != nullptr) [[unlikely]]
      current_->checks.push_back(std::move(*check));
    stats_.recorded += list.size();
  });
}

void Window::record(CallOperands& call) {
  if (!alone_ && !queue_.takes_work()) [[unlikely]]
    queue_.refuse_work(call.name);
  const auto each_block = [&](auto&& look_at) {
    for (const Range& range : call.reads) look_at(range.block);
    for (const Range& range : call.writes) look_at(range.block);
  };
  record_some(OpenProgram::instructions_of(call), each_block, [&](uint64_t number) {
    current_->append(call, number);
    ++stats_.recorded;
  });
}

bool Window::keep(BlockState* block) noexcept {
  if (block->program.load(std::memory_order_acquire) == 0) return false;
  Window& window = *block->window.load(std::memory_order_acquire);
  const std::lock_guard guard(window.lock_);
  if (!window.pending(*block)) return false;
  const bool open = block->program.load(std::memory_order_relaxed) ==
                    window.open_.load(std::memory_order_relaxed);
  OpenProgram& program = open ? *window.current_ : *window.running_;
  program.dead[block->place.slot] = true;
  if (open && program.program.slots[block->place.slot].inside) {
    program.bytes -= block->bytes;
    program.program.blocks[block->place.slot] = nullptr;
    return false;
  }
  if (open) program.retired += block->bytes;
  // Under the lock: once the program has run, the block is gone.
  block->retire_memory();
  return true;
}

void Window::flush(FlushReason reason) {
  if (reason == FlushReason::read) {
    if (const Hook hook = before_read_.load(std::memory_order_acquire)) [[unlikely]]
      hook();
  }
  std::shared_ptr<const Failure> raised;
  std::vector<Check> checks;
  std::string origin;
  if (capturing_.load(std::memory_order_relaxed)) [[unlikely]]
    origin = locate_();
  {
    const std::lock_guard running(executing_);
    const size_t memory = scratch_.most_bytes();
    uint64_t number;
    {
      const std::lock_guard guard(lock_);
      if (current_->program.code.empty()) return;
      set_bounds(memory);
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
    Watcher* const watcher = Window::watcher();
    const Watched whole(watcher, [&] {
      return std::string("hologram::flush (") + flush_reason_name(reason) + ")";
    });
    const Runner::Outcome outcome = runner_.run(running_->program, watcher);
    Frame& frame = runner_.frame;
    raised = std::move(frame.raised);
    if (!origin.empty()) [[unlikely]] {
      captured_.push_back({next_flush_number(), reason, std::move(origin), running_->program,
                           running_->origins,
                           outcome.compiled != nullptr ? outcome.compiled->plan : Plan{}});
      captured_.back().program.blocks.clear();
      captured_.back().program.bodies.clear();
    }
    {
      const std::lock_guard guard(lock_);
      stats_.plan_hits += outcome.plan_hits;
      stats_.plan_misses += outcome.plan_misses;
      stats_.plan_evictions += outcome.plan_evictions;
      stats_.bytes_moved += frame.bytes_moved;
      stats_.executed += recorded - outcome.failed;
      stats_.failed += outcome.failed;
      ++stats_.flushes[static_cast<size_t>(reason)];
      if (outcome.compiled != nullptr) {
        const Plan& plan = outcome.compiled->plan;
        stats_.calls += plan.calls;
        stats_.passes += plan.batches.size() - plan.calls;
        stats_.stores_elided += static_cast<uint64_t>(outcome.compiled->plan.stores_elided);
      }
      for (size_t i = 0; i < frame.failures.size(); ++i) {
        BlockState* block = running_->program.blocks[i];
        if (block == nullptr) continue;
        block->failure = frame.failures[i];
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
      block->give_back_memory();
      delete block;
    }
    checks.swap(running_->checks);
    if (!checks.empty()) [[unlikely]]
      submit_checks(checks, outcome.ticket, raised);
    running_->clear();
  }
  if (raised) raise_(*raised);
  // What is done already is not waited for.
  if (!checks.empty()) [[unlikely]]
    queue_.checks->raise();
}

void Window::end_step() {
  {
    const std::lock_guard guard(lock_);
    if (current_->program.calls.empty()) return;
  }
  flush(FlushReason::step);
}

// Behind a program; of blocks that could not be computed there is nothing to be checked.
void Window::submit_checks(const std::vector<Check>& checks, Ticket program,
                           std::shared_ptr<const Failure>& raised) {
  for (const Check& check : checks) {
    if (program == 0 || check.block->failed.load(std::memory_order_acquire)) continue;
    try {
      const Ticket copied = queue_.checks->add(queue_, program, check);
      const std::lock_guard guard(lock_);
      if (!queue_.known_done(copied)) check.block->last_use.store({&queue_, copied});
      submitted_.store(copied, std::memory_order_release);
    } catch (const std::exception& error) {
      if (!raised) raised = failure_of(error);
    }
  }
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
  fence.finish();
  // A block that no window has touched may be touched now, under a lock that is not known here.
  Window* const window = block.window.load(std::memory_order_acquire);
  if (window == nullptr) return;
  const std::lock_guard guard(window->lock_);
  if (block.last_use.load() == fence) block.last_use.clear();
}

void Window::begin_use(std::span<BlockState* const> blocks, FlushReason reason) {
  for (BlockState* const block : blocks) {
    submit(*block, reason);
    check(*block);
  }
  const std::lock_guard running(executing_);
  for (BlockState* const block : blocks) {
    const Fence fence = block->last_use.load();
    if (fence.queue != &queue_ && fence.outstanding()) runner_.wait_for(fence);
  }
}

// Under both locks. False where another queue, which `fence` is of, has been given work on the
// block since begin_use(): then the block's fence stands for that, too.
bool Window::note_use(BlockState& block, Ticket ticket, Fence& fence) const noexcept {
  fence = block.last_use.load();
  const bool own = fence.queue == &queue_;
  if (!own && fence.ticket != 0 && !runner_.has_waited_for(fence)) return false;
  block.last_use.store({&queue_, own ? std::max(fence.ticket, ticket) : ticket});
  return true;
}

void Window::end_use(std::span<BlockState* const> blocks, Ticket ticket) {
  const std::lock_guard running(executing_);
  size_t noted = 0;
  while (true) {
    Fence fence;
    {
      const std::lock_guard guard(lock_);
      while (noted < blocks.size() && note_use(*blocks[noted], ticket, fence)) ++noted;
    }
    if (noted == blocks.size()) return;
    // Another queue has been given work on the block meanwhile; the fence stands for that, too, and
    // for what the caller will launch on the queue's stream.
    runner_.wait_for(fence);
    ticket = queue_.take_back(queue_.vendor_stream());
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
  runner_.drop_plan();
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
