// The memory of one device: the boundary pool (atlas/boundary.h) for small blocks and the linear
// pool (atlas/linear_pool.h), a caching allocator, for all others and for what the boundary pool
// has no room for.
//
// Segments stay when their blocks are freed. They go back to the system
// - when the limit, or the system, has no room for a new one;
// - before a new one of 32 MiB or more for which the system has too little memory at hand;
// - before a new one when more lies idle than the device has ever had allocated, and more than
//   64 MiB. So whatever shapes come, about twice the peak is the most that is held; and since what
//   goes back was mapped after the last time, mapping it anew at most doubles what mapping costs;
// - at trim(), and at set_limit() below what is held.
// Before a segment is made for it, a large request is served by an idle block of up to twice its
// size, a small one by a block of the next size class; and rather than fail, it takes any block
// that is larger. Idle ones come before memory that nobody has touched.
//
// The region of the boundary pool is taken from the system by the first small request that would
// otherwise need a new segment. Where the limit leaves no room for it the linear pool serves alone.
//
// One spin lock guards a pool. It is held for a few nanoseconds and never across a system call,
// which makes exact statistics (peaks included) as cheap as plain additions; there are no
// per-thread caches, so blocks of an exiting thread cannot leak and any thread may free any block.
//
// Memory is ordered as queues are: a block that comes back while submitted work uses it has a
// fence, and is handed out again with it. So it may serve the fence's queue at once; other queues
// get a block that is ready for them, where there is one or room for one, and else one that they
// have to wait for. In the boundary pool all blocks share the last fence, so that a block has no
// more than its bit: it serves one queue at a time, and others take small blocks from the linear
// pool until that one's fence is reached. A block that does not fit in - of the boundary pool with
// another queue's fence, or with fences of several queues - is *late*: retired until they are
// reached.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "atlas/allocation.h"
#include "atlas/backend.h"
#include "atlas/boundary.h"
#include "atlas/fence.h"
#include "atlas/late_blocks.h"
#include "atlas/linear_pool.h"
#include "atlas/memory_counters.h"
#include "atlas/memory_stats.h"
#include "atlas/queue.h"
#include "atlas/scratch.h"
#include "atlas/spin_lock.h"

namespace hologram {

class MemoryPool final : public Scratch {
 public:
  // `backend` must outlive the pool. `limit` caps the reserved bytes. With `poison_freed` bytes
  // 0xFF overwrite what deallocate() is given, where it is the host's or one queue has used it.
  MemoryPool(Backend& backend, size_t limit, bool poison_freed = false);
  ~MemoryPool() override;
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // Requests up to this many bytes go to the boundary pool first.
  static constexpr size_t kLargestBoundaryRequest = kBoundaryClassBytes;

  // At least `nbytes` bytes, 64-byte aligned; {nullptr, 0} for nbytes == 0. When the limit or the
  // system is in the way the cache is given back and the request tried again. Work of `queue` is to
  // use it first; with null nothing is known of who will.
  // Throws OutOfMemory.
  Allocation allocate(size_t nbytes, const Queue* queue = nullptr);

  // Takes back a block of this pool, from any thread; nullptr is ignored and `capacity` is not
  // read. Until the fence is reached the memory stays mapped, and whoever gets it next is told of
  // the fence. Aborts the process on a double free and on a pointer outside the pool.
  void deallocate(Allocation block) noexcept;

  // The same of a block that several queues may use. Nobody gets it before all fences are reached.
  void deallocate(void* data, Fences fences) noexcept;

  void* allocate_scratch(size_t bytes, Queue& queue) override;
  void free_scratch(void* memory, Fence fence) noexcept override { deallocate({memory, 0, fence}); }

  // Counts a block as freed, which stays in use until deallocate(): its owner is done with it, but
  // work that has not run yet is not. Aborts as deallocate() does, and for a block retired before.
  void retire(void* data) noexcept;

  // The same as deallocate() with an error in place of the end of the process: Error, with nothing
  // changed, where no block in use starts at `data`.
  void release(void* data);

  // A block of the boundary pool in class 0..95, for 1..12288 bytes. Throws Error for a class or a
  // size outside its range and where the class has no run of free pages that is long enough,
  // OutOfMemory where the region cannot be had from the system.
  Allocation allocate_in_class(int class_index, size_t nbytes);

  // What is free in class 0..95 of the boundary pool. Throws Error for another class.
  BoundaryClassUsage boundary_class(int class_index) const;

  // The same of all classes, at one moment.
  std::array<BoundaryClassUsage, kBoundaryClasses> boundary_classes() const;

  // Start of the boundary pool's region, to which boundary_offset() refers; nullptr while there is
  // none. It stays until a trim finds it empty.
  const void* boundary_base() const noexcept;

  // Adds `bytes` (negative: subtracts) to foreign_bytes and to the totals it is part of,
  // so it counts towards the limit.
  void note_foreign(ptrdiff_t bytes) noexcept;

  // note_foreign(nbytes) if the limit leaves room for it, with the cache given back if need be.
  // Throws OutOfMemory.
  void admit_foreign(size_t nbytes);
  // Takes back the count of the last OutOfMemory: its cause can be remedied, so nobody sees it.
  void forget_refusal() noexcept;

  MemoryStats stats() const;
  void reset_peak() noexcept;         // peak := current, in every counter
  void reset_accumulated() noexcept;  // allocated := freed := 0, in every counter

  // Gives every segment without a live block back to the system.
  void trim() noexcept;
  // The same unless another thread is growing or trimming the pool.
  void try_trim() noexcept;
  // The same as trim(), and has others who hold memory of the device do so.
  void trim_everywhere() noexcept;
  // Bytes that are held and not in use.
  size_t idle_bytes() const noexcept;

  // Asks others who hold memory of the same hardware to give back what they do not use; false where
  // there is nobody. Set once, before any pool is used.
  using AskOthers = bool (*)(const DeviceProperties&) noexcept;
  static void set_ask_others(AskOthers ask) noexcept { ask_others_ = ask; }

  // limit := fraction of the device's total memory. Throws Error unless 0 <= fraction <= 1.
  void set_fraction(double fraction);

  // New cap in bytes. Trims when more is reserved; live blocks stay valid beyond the cap.
  void set_limit(size_t bytes) noexcept;
  size_t limit() const noexcept;
  size_t most_bytes() const noexcept override { return limit(); }

  // (free, total) in bytes. free = what may still be reserved: the smaller of what the limit leaves
  // and what the system has; cached blocks count as used.
  std::pair<size_t, size_t> info() const noexcept;

  std::vector<SegmentInfo> snapshot() const;

  // Whether the host may read and write the memory.
  bool host_addressable() const noexcept { return host_addressable_; }

  // Whether `pointer` lies inside a segment of this pool.
  bool owns(const void* pointer) const noexcept;

  // Usable bytes of the block in use that starts at `data`; 0 where none does.
  size_t block_capacity(const void* data) const noexcept;

  // Capacity of a block of the linear pool for `nbytes` bytes.
  static size_t round_size(size_t nbytes) noexcept { return LinearPool::round_size(nbytes); }

  // Used by the fork guard only: no other thread is inside the pool between the two calls.
  void lock_for_fork() noexcept;
  void unlock_after_fork() noexcept;

 private:
  inline static AskOthers ask_others_ = [](const DeviceProperties&) noexcept { return false; };

  [[noreturn]] void refuse(size_t nbytes);
  void poison(Allocation& block) const noexcept;
  bool take_boundary(size_t nbytes, const Queue* queue, Allocation& block) noexcept;
  bool take_linear(SizeClass& size_class, size_t nbytes, const Queue* queue,
                   Allocation& block) noexcept;
  bool take_larger(const SizeClass& size_class, int size_classes, size_t nbytes, const Queue* queue,
                   Allocation& block) noexcept;
  bool take_held(SizeClass& size_class, size_t nbytes, const Queue* queue,
                 Allocation& block) noexcept;
  const char* give_back(void* data, Fence fence) noexcept;
  const char* give_back_under_lock(void* data, Fence fence) noexcept;
  void give_back_unless_late(void* data, Fence fence) noexcept;
  void give_back_late(void* data, Fences fences) noexcept;
  void look_at_late() noexcept;
  void wait_for_late() noexcept;
  bool is_retired(const void* data) const noexcept;
  void retire_under_lock(void* data) noexcept;
  bool starts_block(const void* data) const noexcept;

  // memory_growth.cpp
  bool grow(SizeClass& size_class, size_t nbytes, const Queue* queue, Allocation& block);
  bool has_room(size_t nbytes) const noexcept;
  bool idle_beyond_need() const noexcept;
  bool add_segment(SizeClass& size_class);
  bool add_boundary() noexcept;
  void trim_while_growing() noexcept;
  void free_segments(Segment* list) noexcept;

  // memory_report.cpp
  SegmentInfo boundary_snapshot() const;
  SegmentInfo linear_snapshot(const Segment& segment) const;

  Backend& backend_;
  const bool host_addressable_, poison_freed_;
  // Lock order: growth_ before lock_. growth_ serialises whatever calls the system; lock_ guards
  // all data below.
  mutable std::mutex growth_;
  mutable SpinLock lock_;
  MemoryCounters counters_;
  // What is retired: blocks of the boundary pool, bytes in both.
  size_t boundary_retired_ = 0;
  int64_t retired_bytes_ = 0;
  size_t limit_;
  LinearPool linear_;
  BoundaryPool boundary_;
  Fence boundary_fence_;  // the last one of a block that came back
  LateBlocks late_;
};

}  // namespace hologram
