// A window of the instruction stream: what has been recorded and not yet executed.
//
// A thread records; whoever needs a result, or finds the window full, flushes: the program is
// closed, canonicalised (or its plan found in the cache) and run on the calling thread.
//
// Locks. `lock_` guards the open program and what Blocks say about it; it is held for nanoseconds,
// and under it nothing is called that could wait, allocate device memory or run foreign code.
// `executing_` is held by the thread that runs a program; it is taken before `lock_`, never after.
// A thread never runs the programs of two windows at once.
//
// Windows of one device (atlas/channels.h) have one `lock_`, so that it guards all that Blocks say.
// A block waits in one of them at most: the others have that one flushed before they record it. So
// what touches a block is submitted in the order in which it was recorded, and each window has its
// queue wait for what another queue was given before of the same memory.
//
// Blocks. The window refers to blocks of memory, never to tensors. A block that is freed while the
// open program touches it stays with the window until the program has run; if it was allocated
// during the program its memory goes back at once, because its values need no memory of their own.
//
// Failures. What can fail - memory for values that pass from group to group - is reserved before
// the first store. An instruction that cannot run makes the block it writes fail, and whatever
// reads that block; all others run. The flush that finds a failure raises it, and so does every
// later read of a block that failed, until something writes the whole of it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "atlas/block_state.h"
#include "atlas/call.h"
#include "atlas/error.h"
#include "atlas/flush.h"
#include "atlas/frame.h"
#include "atlas/open_program.h"
#include "atlas/operands.h"
#include "atlas/plan_cache.h"
#include "atlas/queue.h"
#include "atlas/runner.h"
#include "atlas/scratch.h"
#include "atlas/spin_lock.h"

namespace hologram {

class Window {
 public:
  // With false each instruction is executed when it is recorded, by the same kernels.
  static void set_recording(bool on) noexcept { recording_.store(on, std::memory_order_relaxed); }
  static bool recording() noexcept { return recording_.load(std::memory_order_relaxed); }

  // With true programs are contracted (canonicalise.h); those that are open, too.
  static void set_contracting(bool on) noexcept {
    contracting_.store(on, std::memory_order_relaxed);
  }
  static bool contracting() noexcept { return contracting_.load(std::memory_order_relaxed); }

  // With true programs compute what nobody reads, too (keep.h); those that are open, too.
  static void set_keeping(bool on) noexcept { keeping_.store(on, std::memory_order_relaxed); }
  static bool keeping() noexcept { return keeping_.load(std::memory_order_relaxed); }

  // All outlive it. Programs run on `queue`, with plans out of `plans`. `shared` is the lock of all
  // windows of the device, null where there is no other.
  Window(PlanCache& plans, Queue& queue, Scratch& scratch, SpinLock* shared = nullptr);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  static constexpr size_t kMostInstructions = 4096;
  // Bytes of results that wait in the open program, more where the device has much memory, less
  // where it has less. What of them is freed while it is open gives its memory back, so chains over
  // large tensors stay whole. And, where it has calls and so is long, bytes of blocks from before
  // it that have been freed and whose memory waits for it.
  static constexpr size_t kMostBytes = size_t{1} << 30, kShareOfBytes = 16;
  static constexpr size_t kMostRetired = size_t{32} << 20, kShareOfRetired = 512;
  // Accesses that were compared with another one, so that a program does not take a time that grows
  // with the square of its length: the overlaps that it can have are fewer.
  static constexpr size_t kMostComparisons = size_t{1} << 18;
  // Calls of a program that a queue runs while the next one is recorded: with more, it would begin
  // late.
  static constexpr size_t kMostCalls = 16;
  // Throws what a failure is reported as; by default Error. Set once, before any window is used.
  using Raise = void (*)(const Failure&);
  static void set_raise(Raise raise) noexcept { raise_ = raise; }

  [[noreturn]] static void throw_failure(const Failure& failure) {
    raise_(failure);
    std::abort();
  }

  // Called at the beginning of each record(), outside all locks, while it is not null.
  using Hook = void (*)();
  static void set_before_record(Hook hook) noexcept {
    before_record_.store(hook, std::memory_order_release);
  }

  // Called before what outside the instruction stream touches makes a window run, outside all
  // locks, while it is not null. If it throws, nothing runs, and that is thrown.
  static void set_before_read(Hook hook) noexcept {
    before_read_.store(hook, std::memory_order_release);
  }

  // Set once, before any window is used.
  static void set_watcher(Watcher* watcher) noexcept { watcher_ = watcher; }
  // Null while it does not look.
  static Watcher* watcher() noexcept {
    return watcher_ != nullptr && watcher_->watches() ? watcher_ : nullptr;
  }

  // Keeps what is flushed, for explain. `locate` says where the calling thread is; it is called
  // outside all locks, and only while some window captures.
  using Locate = std::string (*)();
  static void set_locate(Locate locate) noexcept { locate_ = locate; }
  void start_capture();
  std::vector<Flushed> end_capture();

  // Appends instructions, all or none, at most kMostInstructions. `temporaries`: the number of
  // values that only these instructions use. Flushes when the window is full, or was recorded in
  // another FloatMode than the calling thread's, and flushes another window in which one of the
  // blocks is pending; throws then, with nothing appended, what that flush does.
  // `check`, where it is not null, is taken, and looked at when they have been executed; its block
  // is one that they write.
  void record(std::span<const Operands> list, size_t temporaries = 0, Check* check = nullptr);
  void record(const Operands& operands) { record({&operands, 1}); }
  // The same of a call, whose body is taken.
  void record(CallOperands& call);

  // Of what it runs: who asks for memory for it. Null where the device has one queue for all.
  const Queue* queue() const noexcept { return alone_ ? nullptr : &queue_; }

  // The number that a block allocated now is born with.
  uint64_t open_program() const noexcept { return open_.load(std::memory_order_relaxed); }

  // Submits what has been recorded, and what another thread is about to submit is on the queue on
  // return. Raises the first failure of the program that is known by then, after everything else is
  // on the queue.
  void flush(FlushReason reason);

  // Submits a program with calls in it. An optimizer has taken a step: what comes next looks like
  // what has been recorded, so programs that end here are the same ones again and again, and what
  // the step has done with gives its memory back. Without calls there is little of either, and
  // small steps had better be one program.
  void end_step();

  // Every record() of the device that began before has ended when this returns, and every later one
  // sees what the caller has done before it. So where one thread declares memory shared, calls this
  // and then synchronises, and others look whether memory is shared after they have recorded, no
  // instruction on shared memory is left waiting.
  void fence() noexcept { const std::lock_guard guard(lock_); }

  bool pending(const BlockState& block) const noexcept {
    return block.program.load(std::memory_order_acquire) > done_.load(std::memory_order_acquire);
  }

  // Called when the owner of a block is done with it. True if the window keeps it: it gives the
  // memory back and destroys the object later. A block that has lived inside the open program only
  // is not kept: its values need no memory, or what the plan has for them.
  static bool keep(BlockState* block) noexcept;

  // Before other work that the window's queue runs touches a block: what is recorded on it is on
  // the queue on return.
  static void submit(BlockState& block, FlushReason reason = FlushReason::read) {
    if (block.program.load(std::memory_order_acquire) == 0) return;
    // If it moves from one window to the next meanwhile, the one before has been flushed.
    Window* window = block.window.load(std::memory_order_acquire);
    if (window->pending(block)) window->flush(reason);
  }

  // Before the host, or anything else outside the queue, reads or writes a block: what is recorded
  // on it has been executed on return. Raises the failure of a block that failed, and what
  // Queue::wait does.
  static void finish(BlockState& block, FlushReason reason = FlushReason::read) {
    submit(block, reason);
    if (!block.last_use.empty()) [[unlikely]]
      wait(block);
    check(block);
  }

  // Raises the failure of a block that failed.
  static void check(const BlockState& block) {
    if (block.failed.load(std::memory_order_acquire)) [[unlikely]]
      block.window.load(std::memory_order_relaxed)->raise(block);
  }

  // Work on blocks that the queue is given beside programs, such as a copy. Before it: what is
  // recorded on the blocks is submitted, and the queue waits for other queues that use them. Raises
  // the failure of a block that failed.
  void begin_use(std::span<BlockState* const> blocks, FlushReason reason = FlushReason::read);
  void begin_use(BlockState& block, FlushReason reason = FlushReason::read) {
    begin_use(std::array{&block}, reason);
  }
  // After it, with its ticket.
  void end_use(std::span<BlockState* const> blocks, Ticket ticket);
  void end_use(BlockState& block, Ticket ticket) { end_use(std::array{&block}, ticket); }

  // Up to what was submitted last.
  Fence submitted() const noexcept { return {&queue_, submitted_.load(std::memory_order_acquire)}; }

  WindowStats stats() const;
  void reset_stats();
  // Lets go of the plan that ran last.
  void drop_plan();
  bool empty() const noexcept { return empty_.load(std::memory_order_relaxed); }

  // Used by the fork guard only, with nothing recorded if that can be helped. A lock that windows
  // share is the caller's.
  void lock_for_fork() noexcept;
  void unlock_after_fork() noexcept;

 private:
  void submit_checks(const std::vector<Check>& checks, Ticket program,
                     std::shared_ptr<const Failure>& raised);
  bool takes(size_t instructions, FloatMode mode) const;
  template <class EachBlock>
  Window* pending_elsewhere(EachBlock&& each_block) const;
  template <class EachBlock, class Append>
  void record_some(size_t instructions, EachBlock&& each_block, Append&& append);
  static void wait(BlockState& block);
  bool note_use(BlockState& block, Ticket ticket, Fence& fence) const noexcept;
  void raise(const BlockState& block) const;

  [[noreturn]] static void throw_error(const Failure& failure) { throw Error(failure.what); }
  inline static Raise raise_ = &throw_error;
  inline static Locate locate_ = [] { return std::string("?"); };
  inline static std::atomic<Hook> before_record_{nullptr};
  inline static std::atomic<Hook> before_read_{nullptr};
  inline static Watcher* watcher_ = nullptr;
  inline static std::atomic<bool> recording_{true};
  inline static std::atomic<bool> contracting_{false};
  inline static std::atomic<bool> keeping_{false};

  // The bounds of programs, by the memory that there is. Under lock_, once others see the window.
  void set_bounds(size_t memory) noexcept;

  PlanCache& plans_;
  Queue& queue_;
  const Scratch& scratch_;
  size_t most_bytes_ = 0, most_retired_ = 0;  // guarded by lock_
  const bool alone_;                          // there is no other window of the device
  mutable SpinLock own_lock_;
  SpinLock& lock_;  // own_lock_ or what is shared
  std::mutex executing_;
  std::atomic<uint64_t> open_;     // number of the open program
  std::atomic<uint64_t> done_{0};  // number of the last program that was submitted
  std::atomic<Ticket> submitted_{0};
  std::atomic<bool> empty_{true};
  std::atomic<bool> capturing_{false};
  std::array<OpenProgram, 2> programs_{OpenProgram(*this), OpenProgram(*this)};
  OpenProgram* current_ = &programs_[0];  // guarded by lock_
  OpenProgram* running_ = &programs_[1];

  // Guarded by executing_.
  Runner runner_;
  std::vector<Flushed> captured_;

  WindowStats stats_;  // guarded by lock_
};

}  // namespace hologram
