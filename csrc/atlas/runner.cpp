#include "atlas/runner.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "atlas/block_state.h"
#include "atlas/error.h"
#include "atlas/overlap.h"

namespace hologram {
namespace {

// So that what nobody reads shares no cache line.
size_t aligned(size_t bytes) {
  return (bytes + 63) & ~size_t{63};
}

}  // namespace

Runner::Runner(PlanCache& plans, Queue& queue, Scratch& scratch, bool alone)
    : plans_(plans), queue_(queue), scratch_(scratch), alone_(alone) {}

void Runner::wait_for(const Fence& fence) {
  if (waited_for_.covers(fence)) return;
  queue_.wait_for(fence);
  waited_for_.add(fence);
}

size_t Runner::scratch_bytes(const Program& program, uint16_t slot) const {
  const size_t bytes = program.block_bytes[slot];
  return bytes != 0 ? bytes : temporary_bytes_[slot];
}

// What the turn that needs most stores for nobody.
size_t Runner::discarded_bytes(const Plan& plan, const Program& program) const {
  size_t most = 0;
  for (const auto& turn : plan.discarded) {
    size_t bytes = 0;
    for (const uint16_t slot : turn) bytes += aligned(scratch_bytes(program, slot));
    most = std::max(most, bytes);
  }
  return most;
}

// Takes all the scratch that a plan needs, or nothing; where there is none, `unwritable` says why.
bool Runner::reserve_scratch(const Plan& plan, const Program& program, Failures& unwritable,
                             std::shared_ptr<const Failure>& first) {
  const auto writer = [&](uint16_t slot) {
    std::string text;
    for (const Instruction& instruction : program.code) {
      if (program.accesses[instruction.out].slot != slot) continue;
      text = std::string(program.name_of(instruction)) + " (" + dtype_name(instruction.dtype) +
             ", " + std::to_string(program.counts[instruction.space]) + " elements)";
    }
    return text;
  };
  bool complete = true;
  held_.reserve(plan.scratch.size() + 1);
  places_.clear();
  places_.reserve(plan.scratch.size());
  rooms_.clear();
  if (!plan.scratch.empty() || !plan.discarded.empty()) temporary_bytes(program, temporary_bytes_);
  for (const Plan::Scratch& its : plan.scratch) {
    const uint16_t slot = its.slot;
    try {
      places_.push(take_scratch(its, scratch_bytes(program, slot)));
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

// Memory for a slot of a plan: what an earlier batch has done with, if that fits, the one that was
// used last first, since it is in the cache.
char* Runner::take_scratch(const Plan::Scratch& its, size_t bytes) {
  Room* best = nullptr;
  for (Room& room : rooms_) {
    if (room.last >= its.first || room.bytes < bytes || room.bytes > 2 * bytes) continue;
    if (best == nullptr || room.last > best->last) best = &room;
  }
  if (best == nullptr) {
    held_.push(scratch_.allocate_scratch(bytes, queue_));
    best = &rooms_.emplace_back(Room{0, bytes, static_cast<char*>(held_.back())});
  }
  best->last = its.last;
  return best->memory;
}

// For memory that came from the pool and was not used: whoever had it before may still use it, and
// the queue waits for that.
Fence Runner::fence_behind_all() noexcept {
  try {
    const Fence fence{&queue_, queue_.record(nullptr)};
    return fence.outstanding() ? fence : Fence{};
  } catch (const std::exception&) {
    return {&queue_, queue_.last()};
  }
}

// Before a program is submitted: other queues may still use its memory.
void Runner::wait_for_other_queues(const Program& program) {
  fences_.clear();
  for (size_t i = 0; i < program.blocks.size(); ++i) {
    const SlotKey& slot = program.slots[i];
    if (!slot.has_memory()) continue;  // what was its memory is not touched
    const Fence fence = program.blocks[i]->last_use.load();
    if (fence.queue != &queue_ && fence.outstanding()) fences_.add(fence);
  }
  for (const Fence& fence : fences_) wait_for(fence);
}

void Runner::release_scratch(Fence fence) noexcept {
  for (void* memory : held_) scratch_.free_scratch(memory, fence);
  held_.clear();
}

Runner::Outcome Runner::run(Program& program, Watcher* watcher) {
  Outcome outcome;
  Column<Instruction> recorded;  // all of them, once some have been dropped
  std::shared_ptr<const Failure> first;
  try {
    Failures unwritable, missing;
    for (bool whole = !touches_failed(program);; whole = false) {
      if (whole) [[likely]] {
        const auto [hit, evictions] = plans_.find(program, compiled_);
        ++(hit ? outcome.plan_hits : outcome.plan_misses);
        outcome.plan_evictions += evictions;
      } else {
        if (recorded.empty()) recorded = program.code;
        program.code = recorded;
        drop_failed(program, unwritable, missing);
        compiled_ = plans_.compile(program);
      }
      if (reserve_scratch(compiled_->plan, program, unwritable, first)) [[likely]] {
        find_bases(compiled_->plan, program);
        frame.begin(compiled_->plan, compiled_->traversals, program, watcher, std::move(missing));
        outcome.compiled = compiled_.get();
        if (!alone_) [[unlikely]]
          wait_for_other_queues(program);
        outcome.ticket = queue_.submit(compiled_, frame);
        break;
      }
    }
  } catch (const std::exception& error) {
    // Nothing has been stored: it is the plan that could not be made.
    outcome.compiled = nullptr;
    const auto failure = failure_of(error);
    first = failure;
    frame.failures.assign(program.slots.size(), nullptr);
    frame.bytes_moved = 0;
    for (const Instruction& instruction : recorded.empty() ? program.code : recorded) {
      for (const uint16_t access : program.writes_of(instruction)) {
        frame.failures[program.accesses[access].slot] = failure;
      }
    }
  }
  if (first) frame.raised = std::move(first);
  if (!frame.failures.empty()) [[unlikely]] {
    failures_ = true;
    for (const Instruction& instruction : recorded.empty() ? program.code : recorded) {
      outcome.failed += frame.failures[program.accesses[instruction.out].slot] != nullptr;
    }
  }
  outcome.late = outcome.ticket != 0 && !queue_.known_done(outcome.ticket);
  if (!held_.empty()) {
    release_scratch(outcome.late          ? Fence{&queue_, outcome.ticket}
                    : outcome.ticket != 0 ? Fence{}
                                          : fence_behind_all());
  }
  return outcome;
}

// Whether values of a block are missing. Only now is this known: blocks fail as programs run, also
// while this one was recorded.
bool Runner::touches_failed(const Program& program) const noexcept {
  return (failures_ || !alone_) && std::ranges::any_of(program.blocks, [](const BlockState* block) {
           return block != nullptr && block->failed.load(std::memory_order_relaxed);
         });
}

// Takes out the instructions whose result has no memory, and those that read what is missing.
void Runner::drop_failed(Program& program, const Failures& unwritable, Failures& failures) {
  failures.assign(program.slots.size(), nullptr);
  for (size_t i = 0; i < failures.size(); ++i) {
    const BlockState* const block = program.blocks[i];
    if (block != nullptr && block->failed.load(std::memory_order_relaxed)) {
      failures[i] = block->failure;
    }
  }
  size_t kept = 0;
  for (const Instruction& instruction : program.code) {
    const auto slot_of = [&](uint16_t access) { return program.accesses[access].slot; };
    std::shared_ptr<const Failure> failure =
        unwritable.empty() ? nullptr : unwritable[slot_of(instruction.out)];
    program.each_read(instruction, [&](uint16_t access) {
      if (!failure) failure = failures[slot_of(access)];
    });
    for (const uint16_t access : program.writes_of(instruction)) {
      if (failure || covers(program, access)) failures[slot_of(access)] = failure;
    }
    if (!failure) program.code[kept++] = instruction;
  }
  program.code.truncate(kept);  // in place: the room that was made for recording stays
}

void Runner::find_bases(const Plan& plan, const Program& program) {
  auto& bases = frame.bases;
  bases.clear();
  bases.reserve(program.blocks.size());
  for (size_t i = 0; i < program.blocks.size(); ++i) {
    const SlotKey& slot = program.slots[i];
    bases.push(slot.has_memory() ? program.blocks[i]->data : nullptr);
  }
  for (size_t i = 0; i < plan.scratch.size(); ++i) bases[plan.scratch[i].slot] = places_[i];
  for (const auto& turn : plan.discarded) {
    char* place = held_.empty() ? nullptr : static_cast<char*>(held_.back());
    for (const uint16_t slot : turn) {
      bases[slot] = place;
      place += aligned(scratch_bytes(program, slot));
    }
  }
}

}  // namespace hologram
