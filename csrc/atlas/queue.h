// Queues: where a device runs what is flushed.
//
// A flushed program becomes a plan (atlas/canonicalise.h). The backend compiles the plan once, and
// a queue runs the code with the addresses and numbers of each flush (atlas/frame.h). A queue runs
// what it is given in the order of submission; what was submitted is finished when its ticket is
// done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "atlas/attention.h"
#include "atlas/canonicalise.h"
#include "atlas/checks.h"
#include "atlas/error.h"
#include "atlas/export.h"
#include "atlas/fence.h"
#include "atlas/frame.h"
#include "atlas/product.h"
#include "atlas/program.h"
#include "atlas/strided_copy.h"

namespace hologram {

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

// A plan with its code.
struct Compiled {
  Compiled(PlanCompiler& compiler, const Program& program);
  size_t bytes() const;

  Program key;  // of the program, where a cache holds it
  Plan plan;
  Traversals traversals;
  std::unique_ptr<PlanCode> code;
  mutable std::atomic<uint64_t> used{0};  // when, in the cache's time
};

// For the error of a queue whose pass failed after submit() has returned: its operations, and those
// of the other passes of its program. `number` counts from 0.
HOLOGRAM_EXPORT std::string describe_pass(const Compiled& compiled, size_t number);

// Takes the time when a queue gets there.
class Moment {
 public:
  virtual ~Moment() = default;
  // Of the same backend; both have been reached. Negative where this one came first.
  virtual double milliseconds_since(const Moment& other) const = 0;
};

// Of a copy, between memory of the queue's device and of the host.
enum class Direction : uint8_t { to_device, to_host, on_device };

// All functions are thread-safe.
class Queue {
 public:
  virtual ~Queue() = default;
  // Enqueues the passes of a plan, in order. Never waits for what is enqueued already. What the
  // queue keeps of the frame it copies: the frame and its program are the caller's again on return.
  // The memory that they name is in use until the ticket is done; work of the same queue may use it
  // again at once. Code that is still needed after the return is kept by holding `compiled`. A pass
  // that cannot be enqueued is reported to the frame, before anything of it is stored; all others
  // are enqueued.
  virtual Ticket submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) = 0;

  // Enqueues a copy; the ranges do not overlap. Memory of the host is in use until the ticket is
  // done.
  virtual Ticket copy(void* to, const void* from, size_t bytes, Direction direction) = 0;

  // Whether copy_from() copies memory of the device of another queue.
  virtual bool reaches(const Queue& /*other*/) const noexcept { return false; }
  // Enqueues a copy to memory of the queue's device from memory of that of `source`, which reaches
  // it. What `source` has been given is not waited for.
  virtual Ticket copy_from(Queue& /*source*/, void* /*to*/, const void* /*from*/,
                           size_t /*bytes*/) {
    throw Error("a copy from a device that the queue does not reach");
  }

  // Enqueues to[i] = *element for i < count, of 1, 2, 4, 8 or 16 bytes, which are read at once.
  virtual Ticket fill(void* to, const void* element, size_t element_bytes, size_t count) = 0;

  // Enqueues a copy between strided memory of the queue's device; none, with nothing enqueued,
  // where it has no kernel for that. Never waits.
  virtual std::optional<Ticket> copy_strided(const StridedCopy& /*copy*/) { return std::nullopt; }
  // Whether it has one: programs have the copy as a call then (Call::strided_copy). Where
  // copy_strided() has none after all, the call runs.
  virtual bool copies_strided(const StridedCopy& /*copy*/) { return false; }

  // Enqueues a matrix product, where Backend::products() names a library that has an algorithm for
  // it; none, with nothing enqueued, elsewhere. Never waits.
  virtual std::optional<Ticket> product(const Product& /*product*/) { return std::nullopt; }
  // The same of attention, and of the gradients of its operands.
  virtual std::optional<Ticket> attention(const Attention& /*attention*/) { return std::nullopt; }
  virtual std::optional<Ticket> attention_backward(const Attention& /*attention*/,
                                                   const AttentionGradients& /*gradients*/) {
    return std::nullopt;
  }

  // Whether product() computes it: programs have the product as a call then (Call::product). Where
  // it does not after all, the call runs.
  virtual bool computes(const Product& /*product*/) { return false; }

  // Enqueues a mark: its ticket is done when all that was enqueued before is, and `moment`, where
  // it is not null, takes the time then. Never waits.
  virtual Ticket record(std::shared_ptr<Moment> moment) = 0;

  // What is enqueued from now on starts when a fence of another queue has been reached.
  virtual void wait_for(const Fence& fence) = 0;

  // The vendor's stream that it is, null for the default one; null where queues are no streams.
  virtual void* vendor_stream() const noexcept { return nullptr; }
  // False while somebody captures its stream into a graph: what it would be given became part of
  // that, and ran whenever the graph does. It throws Error then, with what it was.
  virtual bool takes_work() { return true; }
  void check_takes_work(const char* what) {
    if (!takes_work()) [[unlikely]]
      refuse_work(what);
  }
  // Throws Error where it takes none, with what it is: memory is handed out and work is ordered
  // when it is recorded, not when a graph runs.
  [[noreturn]] static void refuse_work(const char* what) {
    throw Error(std::string(what) +
                " on a hologram device cannot be captured into a graph, as the current stream is. "
                "Compute it before the capture begins. What can be captured are kernels of other "
                "libraries that are given the address of a tensor, and the vendor's kernels on "
                "tensors that share its memory");
  }

  // Kernels of the vendor (DeviceProperties::vendor) that are launched on this stream from the
  // return on run after all that has been enqueued so far. A stream is what the vendor calls one: a
  // cudaStream_t, null being the default one; null always where the kernels run on the host. May be
  // called again before take_back(), and for itself, to order a stream behind the queue. Never
  // waits for what the device does, as far as the vendor's kernels do not run on the host.
  virtual void lend(void* /*stream*/) {}
  // Enqueues a mark behind all that has been launched on the stream so far: its ticket is done when
  // these kernels are, and what is enqueued from now on runs after them. Never waits.
  virtual Ticket take_back(void* /*stream*/) { return record(nullptr); }

  // Of what was enqueued last.
  virtual Ticket last() noexcept = 0;
  // Whether everything up to a ticket is finished. Never waits.
  virtual bool done(Ticket ticket) noexcept = 0;
  // Whether that is known already: true, or false at no cost where the device has to be asked.
  virtual bool known_done(Ticket ticket) noexcept { return done(ticket); }
  // Returns when it is. Throws Error if anything up to now has failed that nobody has been told
  // of; it says which device and what it was (describe_pass). Once told, the queue goes on.
  virtual void wait(Ticket ticket) = 0;

  Checks* checks = nullptr;  // of the queue's device, whose channel sets it
};

inline bool Fence::reached() const noexcept {
  return queue->done(ticket);
}
inline bool Fence::known_reached() const noexcept {
  return queue->known_done(ticket);
}
inline void Fence::reach() const {
  queue->wait(ticket);
}
inline void Fence::reach_and_look() const {
  queue->wait(ticket);
  if (queue->checks != nullptr) queue->checks->raise();
}

}  // namespace hologram
