// Runs programs that are closed: finds or makes the plan, has the memory ready that the plan needs,
// and gives it to the queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "atlas/column.h"
#include "atlas/fence.h"
#include "atlas/frame.h"
#include "atlas/plan_cache.h"
#include "atlas/program.h"
#include "atlas/queue.h"
#include "atlas/scratch.h"

namespace hologram {

// Guarded by the window's `executing_`.
class Runner {
 public:
  // All outlive it. `alone`: no other queue of the device uses its memory.
  Runner(PlanCache& plans, Queue& queue, Scratch& scratch, bool alone);

  struct Outcome {
    const Compiled* compiled = nullptr;  // null where no plan could be made
    size_t failed = 0;                   // instructions
    Ticket ticket = 0;
    bool late = false;  // the queue has not finished it on return
    uint64_t plan_hits = 0, plan_misses = 0, plan_evictions = 0;
  };
  // What could not run is in `frame`: failures by slot, and the first of them.
  Outcome run(Program& program, Watcher* watcher);

  // The queue waits for a fence of another one, unless it has waited for that.
  void wait_for(const Fence& fence);
  bool has_waited_for(const Fence& fence) const noexcept { return waited_for_.covers(fence); }

  // Lets go of the plan that ran last.
  void drop_plan() { compiled_.reset(); }

  Frame frame;  // of the last run; kept, so that a flush allocates nothing

 private:
  bool reserve_scratch(const Plan& plan, const Program& program, Failures& unwritable,
                       std::shared_ptr<const Failure>& first);
  char* take_scratch(const Plan::Scratch& its, size_t bytes);
  size_t scratch_bytes(const Program& program, uint16_t slot) const;
  size_t discarded_bytes(const Plan& plan, const Program& program) const;
  void release_scratch(Fence fence) noexcept;
  Fence fence_behind_all() noexcept;
  void wait_for_other_queues(const Program& program);
  bool touches_failed(const Program& program) const noexcept;
  static void drop_failed(Program& program, const Failures& unwritable, Failures& failures);
  void find_bases(const Plan& plan, const Program& program);

  PlanCache& plans_;
  Queue& queue_;
  Scratch& scratch_;
  const bool alone_;
  std::shared_ptr<const Compiled> compiled_;  // of the last program
  bool failures_ = false;                     // some block has failed in this window
  Column<void*> held_;                        // scratch of the run
  // Of the run: memory that is used up to a batch, and, once the plan has got past that, again.
  struct Room {
    uint32_t last;  // batch
    size_t bytes;
    char* memory;
  };
  std::vector<Room> rooms_;
  Column<char*> places_;                 // of each of Plan::scratch
  std::vector<size_t> temporary_bytes_;  // by slot, of the run
  Fences fences_;                        // that the run waits for
  Fences waited_for_;                    // by the queue, for earlier ones
};

}  // namespace hologram
