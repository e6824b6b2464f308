// The memory of one device: the boundary pool (atlas/boundary.h) for small blocks and the linear
// pool, a caching allocator, for all others and for what the boundary pool has no room for.
//
// In the linear pool a request is rounded up to a size class (multiples of 64 B up to 256 B, then
// four per power of two, so at most 25 % is lost). Blocks up to 512 KiB are carved from 1 MiB
// segments that hold one class each; larger blocks are segments of their own. A freed block goes on
// top of its class's stack and is the next to be handed out, because it is the warmest. Bookkeeping
// lies outside the blocks, so the memory itself need not be addressable by the host.
//
// Segments stay when their blocks are freed. They go back to the system
// - when the limit, or the system, has no room for a new one;
// - before a new one of 32 MiB or more for which the system has too little memory at hand;
// - before a new one when more lies idle than the device has ever had allocated, and more than
//   64 MiB. So whatever shapes come, about twice the peak is the most that is held; and since what
//   goes back was mapped after the last time, mapping it anew at most doubles what mapping costs;
// - at trim(), and at set_limit() below what is held.
// A large block is served by an idle one of up to twice its size before a segment is made for it;
// and rather than fail, a request of any size takes an idle block that is larger.
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
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "atlas/backend.h"
#include "atlas/boundary.h"
#include "atlas/scratch.h"
#include "atlas/spin_lock.h"

namespace hologram {

// Fields mean what they mean in c10::CachingAllocator::Stat.
struct Counter {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // sum of all increases
  int64_t freed = 0;      // sum of all decreases
};

// The part of one pool. What neither pool holds is foreign.
struct PoolStats {
  Counter allocation;
  Counter segment;
  Counter allocated_bytes;
  Counter reserved_bytes;
};

struct MemoryStats {
  Counter allocation;       // blocks held by the user
  Counter segment;          // segments held from the system
  Counter active;           // equals `allocation` here: retired blocks do not count
  Counter allocated_bytes;  // capacity of the blocks held by the user, foreign memory included
  Counter reserved_bytes;   // size of the segments, foreign memory included
  Counter requested_bytes;  // what the user asked for: allocated_bytes before rounding
  Counter foreign_bytes;    // of these: memory the device holds but another allocator owns
  int64_t num_alloc_retries = 0;  // requests that needed the cache to be given back first
  int64_t num_ooms = 0;
  int64_t num_device_alloc = 0;  // segments ever taken from the system
  int64_t num_device_free = 0;   // segments ever given back
  size_t limit = 0;
  PoolStats boundary, linear;
};

struct Allocation {
  void* data = nullptr;
  size_t capacity = 0;  // usable bytes, >= the request
  Fence fence{};        // up to which its last owner's work may still use it
};

struct BlockInfo {
  const void* address;
  size_t size;       // bytes
  size_t requested;  // bytes asked for, 0 when inactive
  bool active;       // held by the user, or retired
  bool retired;
};

struct SegmentInfo {
  const void* address;
  size_t total_size;
  size_t allocated_size;  // sum of the blocks held by the user
  const char* pool;       // "boundary" or "linear"
  // In order and without gaps. Neighbouring inactive blocks are reported as one, but not across
  // classes of the boundary pool.
  std::vector<BlockInfo> blocks;
};

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

  // limit := fraction of the device's total memory. Throws Error unless 0 <= fraction <= 1.
  void set_fraction(double fraction);

  // New cap in bytes. Trims when more is reserved; live blocks stay valid beyond the cap.
  void set_limit(size_t bytes) noexcept;
  size_t limit() const noexcept;

  // (free, total) in bytes. free = what may still be reserved: the smaller of what the limit leaves
  // and what the system has; cached blocks count as used.
  std::pair<size_t, size_t> info() const noexcept;

  std::vector<SegmentInfo> snapshot() const;

  // Whether the host may read and write the memory.
  bool host_addressable() const noexcept { return host_addressable_; }

  // Whether kernels of a vendor run on the memory (DeviceProperties::vendor).
  bool has_vendor() const noexcept { return has_vendor_; }

  // Whether `pointer` lies inside a segment of this pool.
  bool owns(const void* pointer) const noexcept;

  // Usable bytes of the block in use that starts at `data`; 0 where none does.
  size_t block_capacity(const void* data) const noexcept;

  // Capacity of a block of the linear pool for `nbytes` bytes.
  static size_t round_size(size_t nbytes) noexcept;

  // Used by the fork guard only: no other thread is inside the pool between the two calls.
  void lock_for_fork() noexcept;
  void unlock_after_fork() noexcept;

 private:
  struct Segment;
  struct FreeBlock;
  struct SizeClass;
  struct Late;
  class SegmentMap;
  // A counter with `current` derived, so that it costs one addition per allocation and per free.
  struct FastCounter {
    int64_t allocated = 0, freed = 0, peak = 0;
    int64_t allocated_before = 0, freed_before = 0;  // at the last reset_accumulated()
    int64_t current() const noexcept { return allocated - freed; }
    void add(int64_t amount) noexcept {
      allocated += amount;
      if (current() > peak) peak = current();
    }
    void subtract(int64_t amount) noexcept { freed += amount; }
    Counter read() const noexcept {
      return {current(), peak, allocated - allocated_before, freed - freed_before};
    }
  };
  struct Level {
    int64_t current = 0, peak = 0;
    void add(int64_t amount) noexcept {
      current += amount;
      if (current > peak) peak = current;
    }
  };
  struct PoolCounters {
    FastCounter allocation, allocated_bytes, segment, reserved_bytes;
    PoolStats read() const noexcept {
      return {allocation.read(), segment.read(), allocated_bytes.read(), reserved_bytes.read()};
    }
  };

  [[noreturn]] void refuse(size_t nbytes);
  void poison(Allocation& block) const noexcept;
  bool take(SizeClass& cls, size_t nbytes, size_t counted, const Queue* queue,
            Allocation& block) noexcept;
  bool take_larger(const SizeClass& cls, int classes, size_t nbytes, const Queue* queue,
                   Allocation& block) noexcept;
  bool take_boundary(size_t nbytes, const Queue* queue, Allocation& block) noexcept;
  const char* give_back(void* data, Fence fence) noexcept;
  const char* give_back_under_lock(void* data, Fence fence) noexcept;
  void give_back_unless_late(void* data, Fence fence) noexcept;
  void give_back_late(void* data, Fences fences) noexcept;
  void look_at_late() noexcept;
  void wait_for_late() noexcept;
  bool is_retired(const void* data) const noexcept;
  void retire_under_lock(void* data) noexcept;
  bool starts_block(const void* data) const noexcept;
  bool grow(SizeClass& cls, size_t nbytes, const Queue* queue, Allocation& block);
  bool has_room(size_t nbytes) const noexcept;
  bool idle_beyond_need() const noexcept;
  bool add_segment(SizeClass& cls);
  bool add_boundary() noexcept;
  void count_allocation(PoolCounters& pool, size_t capacity, size_t nbytes) noexcept;
  void count_deallocation(PoolCounters& pool, size_t capacity, size_t nbytes) noexcept;
  void count_segment(PoolCounters& pool, size_t nbytes) noexcept;
  void count_segment_end(PoolCounters& pool, size_t nbytes) noexcept;
  std::array<FastCounter*, 10> counters() noexcept;
  SegmentInfo boundary_snapshot() const;
  void trim_while_growing() noexcept;

  Backend& backend_;
  const bool host_addressable_, has_vendor_, poison_freed_;
  // Lock order: growth_ before lock_. growth_ serialises whatever calls the system; lock_ guards
  // all data below.
  mutable std::mutex growth_;
  mutable SpinLock lock_;
  // Of the device's totals only levels are kept: the rest is the sum of the parts.
  PoolCounters boundary_counters_, linear_counters_;
  FastCounter requested_bytes_, foreign_bytes_;
  Level allocation_, allocated_bytes_, segment_, reserved_bytes_;
  // What is retired: blocks of the boundary pool, bytes in both.
  size_t boundary_retired_ = 0;
  int64_t retired_bytes_ = 0;
  int64_t num_alloc_retries_ = 0, num_ooms_ = 0, num_device_alloc_ = 0, num_device_free_ = 0;
  int64_t most_allocated_ = 0;  // bytes, before the last reset_peak()
  size_t limit_;
  Segment* segments_ = nullptr;  // doubly linked list of all segments
  std::unique_ptr<SizeClass[]> classes_;
  std::unique_ptr<SegmentMap> map_;
  BoundaryPool boundary_;
  Fence boundary_fence_;  // the last one of a block that came back
  // In a list, in the order in which they are looked at.
  Late* late_ = nullptr;
  Late* last_late_ = nullptr;
};

}  // namespace hologram
