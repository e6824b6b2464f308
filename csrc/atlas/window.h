// The window of a stream: instructions that have been recorded and not yet executed.
//
// A thread records; whoever needs a result, or finds the window full, flushes: the program is
// closed, canonicalised (or its plan found in the cache) and run on the calling thread.
//
// Locks. `lock_` guards the open program and what Blocks say about it; it is held for nanoseconds,
// and under it nothing is called that could wait, allocate device memory or run foreign code.
// `executing_` is held by the thread that runs a program; it is taken before `lock_`, never after.
// A thread never runs the programs of two windows at once.
//
// Windows of one device (atlas/lanes.h) have one `lock_`, so that it guards all that Blocks say. A
// block waits in one of them at most: the others have that one flushed before they record it. So
// what touches a block is submitted in the order in which it was recorded, and each window has its
// queue wait for what another queue was given before of the same memory.
//
// Blocks. The window refers to blocks of memory, never to tensors. A block that is freed while the
// open program touches it stays with the window until the program has run; if it was allocated
// during the program its memory goes back at once, because its values need no memory of their own.
//
// Failures. What can fail - memory for values that pass from group to group - is reserved before
// the first store. An instruction that cannot run makes the block it writes fail, and whatever
// reads that block; all others run. The flush that meets a failure raises it, and so does every
// later read of a block that failed, until something writes the whole of it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "atlas/block_state.h"
#include "atlas/error.h"
#include "atlas/frame.h"
#include "atlas/overlap.h"
#include "atlas/plan_cache.h"
#include "atlas/program.h"
#include "atlas/queue.h"
#include "atlas/scratch.h"
#include "atlas/spin_lock.h"

namespace hologram {

// Grows with each call, and from flush to flush of all windows.
uint64_t next_flush_number() noexcept;

enum class FlushReason : uint8_t {
  read,  // something outside the stream touches a block of the program
  user,  // torch.hologram.flush()
  synchronize,
  full,  // too many instructions, too many bytes, or too many accesses of one memory
  eager,
  event,
  memory,  // an allocation found no room
  exit,
  mode,      // a thread records that treats denormal floats in another way
  exported,  // an instruction touches memory that somebody else may look at
  kernel,    // a vendor's kernel touches a block of the program, and is launched after it
  stream,    // another stream has to do with a block of the program
};
inline constexpr int kFlushReasons = 12;
const char* flush_reason_name(FlushReason reason) noexcept;

struct WindowStats {
  uint64_t recorded = 0;  // instructions
  uint64_t executed = 0;  // of these, instructions that ran
  uint64_t failed = 0;    // of these, instructions that could not run
  uint64_t passes = 0;    // traversals of an iteration space
  uint64_t stores_elided = 0;
  uint64_t plan_hits = 0, plan_misses = 0, plan_evictions = 0;
  uint64_t plan_bytes = 0;   // that the cache of plans holds now
  uint64_t bytes_moved = 0;  // loaded and stored by the groups
  std::array<uint64_t, kFlushReasons> flushes{};

  // Of two windows of a device, whose plans are the same ones.
  WindowStats& operator+=(const WindowStats& other) noexcept;
};

// A program that was flushed, for people to look at.
struct Flushed {
  uint64_t number;  // next_flush_number()
  FlushReason reason;
  std::string origin;                // where the flush came from
  Program program;                   // what was executed of it; without its blocks
  std::vector<std::string> origins;  // of its instructions
  Plan plan;
};

// An operand of an instruction. Elements lie in the order of the space.
struct View {
  BlockState* block;
  int64_t offset;  // bytes from the start of the block to element 0
  DType dtype;
  Layout layout;
  // Where `block` is null: 1 + the number of a value that only the instructions recorded with this
  // one use, and that has no memory unless the plan needs some.
  uint16_t temporary = 0;
  const int64_t* strides = nullptr;  // bytes, of a strided view: as many as the space has sizes
};

struct Operands {
  Code code;
  DType dtype;
  int arity;
  int64_t count;                     // elements of the space
  std::span<const int64_t> sizes{};  // needed where a view is strided
  View out;
  // Each is a view, or with neither block nor temporary an immediate: bits of the compute class in
  // `offset`.
  std::array<View, 3> in;
};

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
  static constexpr size_t kMostBytes = size_t{1} << 30;  // written by the open program
  // Accesses that were compared with another one, so that a program does not take a time that grows
  // with the square of its length: the overlaps that it can have are fewer.
  static constexpr size_t kMostComparisons = size_t{1} << 18;
  // Throws what a failure is reported as; by default Error. Set once, before any window is used.
  using Raise = void (*)(const Failure&);
  static void set_raise(Raise raise) noexcept { raise_ = raise; }

  // Called at the beginning of each record(), outside all locks, while it is not null.
  using Hook = void (*)();
  static void set_before_record(Hook hook) noexcept {
    before_record_.store(hook, std::memory_order_release);
  }

  // Called before what outside a stream touches makes a window run, outside all locks, while it is
  // not null. If it throws, nothing runs, and that is thrown.
  static void set_before_read(Hook hook) noexcept {
    before_read_.store(hook, std::memory_order_release);
  }

  // Set once, before any window is used.
  static void set_watcher(Watcher* watcher) noexcept { watcher_ = watcher; }

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
  void record(std::span<const Operands> list, size_t temporaries = 0);
  void record(const Operands& operands) { record({&operands, 1}); }

  // The number that a block allocated now is born with.
  uint64_t open_program() const noexcept { return open_.load(std::memory_order_relaxed); }

  // Submits what has been recorded, and what another thread is about to submit is on the queue on
  // return. Raises the first failure of the program that is known by then, after everything else is
  // on the queue.
  void flush(FlushReason reason);

  // Every record() of the device that began before has ended when this returns, and every later one
  // sees what the caller has done before it. So where one thread declares memory shared, calls this
  // and then synchronises, and others look whether memory is shared after they have recorded, no
  // instruction on shared memory is left waiting.
  void fence() noexcept { const std::lock_guard guard(lock_); }

  bool pending(const BlockState& block) const noexcept {
    return block.program.load(std::memory_order_acquire) > done_.load(std::memory_order_acquire);
  }

  // Called when the owner of a block is done with it. True if the window keeps it: it gives the
  // memory back and destroys the object later.
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

  // Work on a block that the queue is given beside programs, such as a copy. Before it: what is
  // recorded on the block is submitted, and the queue waits for other queues that use it. Raises
  // the failure of a block that failed.
  void begin_use(BlockState& block, FlushReason reason = FlushReason::read);
  // After it, with its ticket.
  void end_use(BlockState& block, Ticket ticket);

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
  static constexpr int kCrowded = 8;
  struct Open {
    Program program;
    std::vector<Crowd> crowds;
    Column<bool> dead;                   // by slot: the owner has freed the block
    std::vector<SlotState> temporaries;  // of the instructions that are being recorded
    // Immediates by a hash of their bits: where an equal one may be.
    std::array<uint16_t, 64> known{};
    size_t bytes = 0;
    size_t comparisons = 0;
    size_t room = 0;                   // instructions that can be appended without allocating
    std::vector<std::string> origins;  // of instructions, while capturing
    void reserve(size_t instructions);
    void clear() noexcept;
  };
  void append(const Operands& operands, uint64_t number);
  SlotState& state_of(const View& view, uint64_t number);
  SlotState& state_of_temporary(uint16_t number);
  bool takes(size_t instructions, FloatMode mode) const;
  Window* pending_elsewhere(std::span<const Operands> list) const;
  uint16_t access_of(const View& view, const Operands& operands, uint16_t space, uint64_t number,
                     bool written);
  uint16_t strided_access_of(const View& view, const Operands& operands, uint16_t space,
                             uint64_t number, bool written);
  uint16_t another_access(SlotState& state, const View& view, const Operands& operands,
                          uint64_t key, bool written);
  void write(const SlotState& state, uint16_t access);
  void compare(uint16_t access, uint16_t other);
  void make_crowd(SlotState& state);
  void link(Crowd& crowd, uint16_t access);
  void join_crowd(Crowd& crowd, uint16_t access);
  void write_in_crowd(Crowd& crowd, uint16_t access);
  int32_t last_access_at(const SlotState& state, int64_t offset) const;
  uint16_t space_of(int64_t count);
  uint16_t shape_of(std::span<const int64_t> sizes);
  Source immediate_of(uint64_t bits, DType dtype);
  static void wait(BlockState& block);
  void raise(const BlockState& block) const;

  struct Outcome {
    const Compiled* compiled = nullptr;  // null where no plan could be made
    size_t failed = 0;                   // instructions
    Ticket ticket = 0;
    bool late = false;  // the queue has not finished it on return
  };
  Outcome run(Open& open, Watcher* watcher);
  bool reserve_scratch(const Plan& plan, const Program& program, Failures& unwritable,
                       std::shared_ptr<const Failure>& first);
  void release_scratch(Fence fence) noexcept;
  Fence fence_behind_all() noexcept;
  void wait_for_other_queues(const Program& program);
  bool touches_failed(const Program& program) const noexcept;
  static void drop_failed(Program& program, const Failures& unwritable, Failures& failures);
  void find_bases(const Plan& plan, const Program& program);

  [[noreturn]] static void throw_error(const Failure& failure) { throw Error(failure.what); }
  inline static Raise raise_ = &throw_error;
  inline static Locate locate_ = [] { return std::string("?"); };
  inline static std::atomic<Hook> before_record_{nullptr};
  inline static std::atomic<Hook> before_read_{nullptr};
  inline static Watcher* watcher_ = nullptr;
  inline static std::atomic<bool> recording_{true};
  inline static std::atomic<bool> contracting_{false};
  inline static std::atomic<bool> keeping_{false};

  PlanCache& plans_;
  Queue& queue_;
  Scratch& scratch_;
  const bool alone_;  // there is no other window of the device
  mutable SpinLock own_lock_;
  SpinLock& lock_;  // own_lock_ or what is shared
  std::mutex executing_;
  std::atomic<uint64_t> open_;     // number of the open program
  std::atomic<uint64_t> done_{0};  // number of the last program that was submitted
  std::atomic<Ticket> submitted_{0};
  std::atomic<bool> empty_{true};
  std::atomic<bool> capturing_{false};
  std::array<Open, 2> programs_;
  Open* current_ = &programs_[0];  // the open one, guarded by lock_
  Open* running_ = &programs_[1];

  // Guarded by executing_.
  std::shared_ptr<const Compiled> compiled_;  // of the last program
  WindowStats run_;                           // of the program that is running
  bool failures_ = false;                     // some block has failed in this window
  Frame frame_;                               // kept, so that a flush allocates nothing
  Column<void*> held_;                        // scratch of the run
  Fences fences_;                             // that the run waits for
  Fences waited_for_;                         // by the queue, for earlier ones
  std::vector<Flushed> captured_;
  std::vector<uint16_t> found_;  // of an AccessIndex; kept. Guarded by lock_

  WindowStats stats_;  // guarded by lock_
};

}  // namespace hologram
