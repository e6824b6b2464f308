// The linear pool: a caching allocator of one device.
//
// A request is rounded up to a size class (multiples of 64 B up to 256 B, then four per power of
// two, so at most 25 % is lost). Blocks up to 512 KiB are carved from 1 MiB segments that hold one
// class each; larger blocks are segments of their own. A freed block goes on top of its class's
// stack and is the next to be handed out, because it is the warmest. Bookkeeping lies outside the
// blocks, so the memory itself need not be addressable by the host.
//
// One spin lock guards a pool. It is held for a few nanoseconds and never across a system call,
// which makes exact statistics (peaks included) as cheap as plain additions; there are no
// per-thread caches, so blocks of an exiting thread cannot leak and any thread may free any block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "atlas/backend.h"
#include "atlas/spin_lock.h"

namespace hologram {

// Fields mean what they mean in c10::CachingAllocator::Stat.
struct Counter {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // sum of all increases
  int64_t freed = 0;      // sum of all decreases
};

struct MemoryStats {
  Counter allocation;       // blocks held by the user
  Counter segment;          // segments held from the system
  Counter active;           // blocks held by the user or by queued work; equals `allocation` here
  Counter allocated_bytes;  // capacity of the blocks held by the user, foreign memory included
  Counter reserved_bytes;   // size of the segments, foreign memory included
  Counter requested_bytes;  // what the user asked for: allocated_bytes before rounding
  Counter foreign_bytes;    // of these: memory the device holds but another allocator owns
  int64_t num_alloc_retries = 0;  // requests that needed the cache to be given back first
  int64_t num_ooms = 0;
  int64_t num_device_alloc = 0;  // segments ever taken from the system
  int64_t num_device_free = 0;   // segments ever given back
  size_t limit = 0;
};

struct Allocation {
  void* data = nullptr;
  size_t capacity = 0;  // usable bytes, >= the request
};

struct BlockInfo {
  const void* address;
  size_t size;       // bytes
  size_t requested;  // bytes asked for, 0 when inactive
  bool active;       // held by the user; neighbouring inactive blocks are reported as one
};

struct SegmentInfo {
  const void* address;
  size_t total_size;
  size_t allocated_size;  // sum of the active blocks
  const char* pool;       // "linear"
  std::vector<BlockInfo> blocks;
};

class MemoryPool {
 public:
  // `backend` must outlive the pool. `limit` caps the reserved bytes.
  MemoryPool(Backend& backend, size_t limit);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // At least `nbytes` bytes, 64-byte aligned; {nullptr, 0} for nbytes == 0. When the limit or the
  // system is in the way the cache is given back and the request tried again.
  // Throws OutOfMemory.
  Allocation allocate(size_t nbytes);

  // Takes back a block of this pool, from any thread; nullptr is ignored and `capacity` is not
  // read. Aborts the process on a double free and on a pointer outside the pool.
  void deallocate(Allocation block) noexcept;

  // Adds `bytes` (negative: subtracts) to foreign_bytes and to the totals it is part of,
  // so it counts towards the limit.
  void note_foreign(ptrdiff_t bytes) noexcept;

  // note_foreign(nbytes) if the limit leaves room for it, with the cache given back if need be.
  // Throws OutOfMemory.
  void admit_foreign(size_t nbytes);

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

  // Whether `pointer` lies inside a segment of this pool.
  bool owns(const void* pointer) const noexcept;

  // Bytes `allocate(nbytes)` would hand out.
  static size_t round_size(size_t nbytes) noexcept;

  // Used by the fork guard only: no other thread is inside the pool between the two calls.
  void lock_for_fork() noexcept;
  void unlock_after_fork() noexcept;

 private:
  struct Segment;
  struct FreeBlock;
  struct SizeClass;
  class SegmentMap;
  // A counter whose `freed` is derived, so that a free costs one subtraction.
  struct FastCounter {
    int64_t current = 0, peak = 0, allocated = 0, base = 0;  // freed = base + allocated - current
    void add(int64_t amount) noexcept {
      current += amount;
      allocated += amount;
      peak = current > peak ? current : peak;
    }
    void subtract(int64_t amount) noexcept { current -= amount; }
    void reset_accumulated() noexcept {
      allocated = 0;
      base = current;
    }
    Counter read() const noexcept { return {current, peak, allocated, base + allocated - current}; }
  };

  [[noreturn]] void refuse(size_t nbytes);
  bool take(SizeClass& cls, size_t nbytes, Allocation& block) noexcept;
  bool grow(SizeClass& cls, size_t nbytes, Allocation& block);
  bool add_segment(SizeClass& cls);
  void trim_while_growing() noexcept;

  Backend& backend_;
  // Lock order: growth_ before lock_. growth_ serialises whatever calls the system; lock_ guards
  // all data below.
  mutable std::mutex growth_;
  mutable SpinLock lock_;
  FastCounter allocation_, allocated_bytes_, requested_bytes_;
  FastCounter segment_, reserved_bytes_, foreign_bytes_;
  int64_t num_alloc_retries_ = 0, num_ooms_ = 0, num_device_alloc_ = 0, num_device_free_ = 0;
  size_t limit_;
  Segment* segments_ = nullptr;  // doubly linked list of all segments
  std::unique_ptr<SizeClass[]> classes_;
  std::unique_ptr<SegmentMap> map_;
};

}  // namespace hologram
