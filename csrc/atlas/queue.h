// Queues: where a device runs what is flushed.
//
// A flushed program becomes a plan (atlas/canonicalise.h). The backend compiles the plan once, and
// a queue runs the code with the addresses and numbers of each flush (atlas/frame.h). A queue runs
// what it is given in the order of submission; what was submitted is finished when its ticket is
// done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "atlas/canonicalise.h"
#include "atlas/frame.h"

namespace hologram {

// Of one queue: tickets grow with each submission. 0 is done from the start.
using Ticket = uint64_t;

// A plan as a backend's code. Immutable; any thread may submit it.
class PlanCode {
 public:
  virtual ~PlanCode() = default;
  virtual size_t bytes() const noexcept = 0;  // that it holds, about
};

class PlanCompiler {
 public:
  virtual ~PlanCompiler() = default;
  // The plan outlives its code. Thread-safe. Throws Error for a plan that it cannot compute.
  virtual std::unique_ptr<PlanCode> compile(const Plan& plan) = 0;
};

class Queue {
 public:
  virtual ~Queue() = default;
  // Enqueues the passes of a plan, in order. Never waits for what is enqueued already. What the
  // queue keeps of the frame it copies: the frame and its program are the caller's again on return,
  // the memory that they name only when the ticket is done. A pass that cannot be enqueued is
  // reported to the frame, before anything of it is stored; all others are enqueued.
  virtual Ticket submit(const PlanCode& code, Frame& frame) = 0;

  virtual bool done(Ticket ticket) noexcept = 0;
  virtual void wait(Ticket ticket) = 0;
};

}  // namespace hologram
