// The linear pool: blocks of any size, by size classes.
//
// A request is rounded up to a size class (multiples of 64 B up to 256 B, then four per power of
// two, so at most 25 % is lost). Blocks up to 512 KiB are carved from 1 MiB segments that hold one
// size class each; larger blocks are segments of their own. A freed block goes on top of its size
// class's stack and is the next to be handed out, because it is the warmest; or the one with the
// lowest address is (BlockOrder). Bookkeeping lies outside the blocks, so the memory itself need
// not be addressable by the host.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

#include "atlas/allocation.h"
#include "atlas/fence.h"
#include "atlas/queue.h"
#include "atlas/segment_map.h"

namespace hologram {

struct SizeClass;

// A range of memory from the backend, cut into blocks of one size class.
struct Segment {
  char* base;
  size_t bytes;
  SizeClass* size_class;
  size_t counted;     // bytes its blocks count as; a large one may serve a size class below its own
  size_t live = 0;    // blocks held by the user
  size_t carved = 0;  // blocks handed out at least once; the rest has never been touched
  // Bytes requested of each block, 0 when it is free, with kRetired when it is retired. A block at
  // `offset` has the entry offset >> shift: blocks are at least 2^shift bytes apart, so entries are
  // distinct.
  size_t* requested;
  std::array<size_t, 4> few{};     // the entries where this is room for them
  std::unique_ptr<size_t[]> many;  // else they are here
  Segment* next = nullptr;
  Segment* previous = nullptr;

  // Of a block in `requested`: it counts as freed.
  static constexpr size_t kRetired = size_t{1} << 63;
  size_t offset_of(const void* data) const noexcept {
    return static_cast<size_t>(static_cast<const char*>(data) - base);
  }
  size_t& requested_of(const void* data) const noexcept;
};

struct FreeBlock {
  char* data;
  Segment* segment;
  Queue* queue;  // with `ticket` the fence of its last owner
  Ticket ticket;
  Fence fence() const noexcept { return {queue, ticket}; }
};

// A stack of free blocks. Its room is made beforehand, so that a free never allocates, and is
// touched only as far as it is used.
class FreeStack {
 public:
  FreeStack() = default;
  explicit FreeStack(size_t room)
      : blocks_(std::make_unique_for_overwrite<FreeBlock[]>(room)), end_(blocks_.get()) {}
  FreeStack(const FreeStack&) = delete;
  FreeStack& operator=(const FreeStack&) = delete;

  bool empty() const noexcept { return end_ == blocks_.get(); }
  FreeBlock* begin() const noexcept { return blocks_.get(); }
  FreeBlock* end() const noexcept { return end_; }
  void push(const FreeBlock& block) noexcept { *end_++ = block; }
  FreeBlock pop() noexcept { return *--end_; }
  // As a heap whose first block has the lowest address, of all but the topmost so many.
  void make_heap(ptrdiff_t but = 0) noexcept { std::make_heap(begin(), end_ - but, has_higher); }
  void push_to_heap(const FreeBlock& block) noexcept {
    push(block);
    std::push_heap(begin(), end_, has_higher);
  }
  // Puts the first block on top; the others stay a heap.
  void raise_first() noexcept { std::pop_heap(begin(), end_, has_higher); }
  // Into one that is empty.
  void copy_from(const FreeStack& other) noexcept {
    end_ = std::copy(other.begin(), other.end(), begin());
  }
  template <class Leaves>
  void erase_if(Leaves&& leaves) noexcept {
    end_ = std::remove_if(begin(), end(), leaves);
  }
  void swap(FreeStack& other) noexcept {
    blocks_.swap(other.blocks_);
    std::swap(end_, other.end_);
  }

 private:
  static bool has_higher(const FreeBlock& a, const FreeBlock& b) noexcept {
    return a.data > b.data;
  }

  std::unique_ptr<FreeBlock[]> blocks_;
  FreeBlock* end_ = nullptr;
};

struct SizeClass {
  size_t capacity = 0;  // bytes of a block
  size_t segment_bytes = 0;
  size_t blocks_per_segment = 0;
  int shift = 0;
  size_t blocks = 0;           // in all segments of the size class
  FreeStack free;              // with room for every block
  size_t fenced = 0;           // of the free ones
  Segment* carving = nullptr;  // segment whose tail has not been handed out yet
  bool by_address = false;     // `free` is a heap

  bool large() const noexcept { return blocks_per_segment == 1; }
  bool starts_block(size_t offset) const noexcept {
    return large() ? offset == 0 : offset % capacity == 0;
  }

  // Puts a block on top that is ready for the queue, or is any where that is null. False where
  // there is none among the first few.
  bool find_free(const Queue* queue) noexcept {
    if (by_address) [[unlikely]]
      return find_first(queue);
    return !free.empty() && (fenced == 0 || queue == nullptr || find_ready(queue));
  }

 private:
  bool find_first(const Queue* queue) noexcept;
  bool find_ready(const Queue* queue) noexcept;
};

// A segment that the pool does not have yet, with the room that its size class needs for it.
struct NewSegment {
  std::unique_ptr<Segment> segment;
  FreeStack free;
};

// A block of the linear pool by its address.
struct LinearBlock {
  Segment* segment;  // null where none covers the address; the rest has no meaning then
  size_t* entry;     // of the segment's `requested`

  bool free() const noexcept { return *entry == 0; }
  bool retired() const noexcept { return (*entry & Segment::kRetired) != 0; }
  size_t requested() const noexcept { return *entry & ~Segment::kRetired; }
  size_t capacity() const noexcept { return segment->counted; }
};

// Bookkeeping of segments, whose memory it neither asks for nor touches. Not synchronised:
// MemoryPool calls it under its lock, but for what says otherwise.
class LinearPool {
 public:
  static constexpr size_t kLargestRequest = size_t{1} << 46;
  static constexpr int kSizeClasses = 4 + (46 - 8) * 4;

  explicit LinearPool(BlockOrder order = BlockOrder::warmest);
  LinearPool(const LinearPool&) = delete;
  LinearPool& operator=(const LinearPool&) = delete;

  // Capacity of a block for `nbytes` bytes; `nbytes` itself for more than kLargestRequest. Needs no
  // lock.
  static size_t round_size(size_t nbytes) noexcept;

  // Of a request of 1..kLargestRequest bytes. Needs no lock.
  SizeClass& size_class_of(size_t nbytes) noexcept { return size_classes_[index_of(nbytes)]; }

  // How many size classes up a request takes a block from before a segment is made for it. A large
  // one counts as what it is asked for, whatever serves it, which has at most twice its capacity; a
  // small one counts as what serves it, which has at most a quarter more. Of small ones every other
  // class only: a class that lends and borrows may have lent what it needs while what it has
  // borrowed lies idle, out of reach of who borrowed of it, and would grow for good.
  int size_classes_up(const SizeClass& size_class) const noexcept {
    return size_class.large() ? 4 : static_cast<int>((&size_class - size_classes_.get()) % 2);
  }

  // Hands out an idle block of the size class that is ready for the queue, to count as so many
  // bytes.
  bool take(SizeClass& size_class, size_t nbytes, size_t counted, const Queue* queue,
            Allocation& block) noexcept;

  // The same of the next so many size classes.
  bool take_larger(const SizeClass& size_class, int size_classes, size_t nbytes, const Queue* queue,
                   Allocation& block) noexcept;

  // Hands out a block that nobody had before, of the size class or of the next so many.
  bool carve(const SizeClass& size_class, int size_classes, size_t nbytes,
             Allocation& block) noexcept;

  // The block that starts at `data`, if one does.
  LinearBlock find(const void* data) const noexcept;

  // Takes back a block in use or retired, which starts at `data`.
  void give_back(const LinearBlock& block, void* data, Fence fence) noexcept;

  // Marks a block in use as one that is about to be freed.
  static void retire(const LinearBlock& block) noexcept { *block.entry |= Segment::kRetired; }

  bool contains(const void* pointer) const noexcept;
  // Whether `data` is where a block would start, if it is in a segment at all.
  bool starts_block(const void* data) const noexcept;
  // Usable bytes of the block in use that starts at `data`; 0 where none does.
  size_t block_capacity(const void* data) const noexcept;

  // A segment is made in three steps, because what can fail is not done under a lock: make() what
  // it is to be, prepare() for where it is, add() it. The first two throw std::bad_alloc; they are
  // for one thread at a time, and others may use the pool meanwhile.
  static NewSegment make(SizeClass& size_class);
  void prepare(NewSegment& made, void* base);
  void add(NewSegment& made) noexcept;

  // Takes out the segments without a live block, as a list by `next`. Adds the fences of their
  // blocks.
  Segment* remove_idle(Fences& fences) noexcept;
  // Takes out all.
  Segment* remove_all() noexcept;

  const Segment* segments() const noexcept { return segments_; }  // a list by `next`

 private:
  static size_t index_of(size_t nbytes) noexcept;
  // As how many bytes a block of `from` counts that serves a request of the size class.
  static size_t counted(const SizeClass& size_class, const SizeClass& from) noexcept {
    return from.large() ? size_class.capacity : from.capacity;
  }
  static void hand_out(const SizeClass& size_class, Segment& segment, char* data, size_t nbytes,
                       size_t counted) noexcept;

  std::unique_ptr<SizeClass[]> size_classes_ = std::make_unique<SizeClass[]>(kSizeClasses);
  std::unique_ptr<SegmentMap> map_ = std::make_unique<SegmentMap>();
  Segment* segments_ = nullptr;  // doubly linked list of all segments
};

inline size_t& Segment::requested_of(const void* data) const noexcept {
  return requested[offset_of(data) >> size_class->shift];
}

// With 2^k < nbytes <= 2^(k+1), k >= 8, the capacities are (5, 6, 7, 8) * 2^(k-2); up to 256 bytes
// they are 64, 128, 192, 256.
inline size_t LinearPool::index_of(size_t nbytes) noexcept {
  if (nbytes <= 256) return (nbytes + 63) / 64 - 1;
  const int k = std::bit_width(nbytes - 1) - 1;
  return static_cast<size_t>(4 + (k - 8) * 4 + static_cast<int>((nbytes - 1) >> (k - 2) & 3));
}

// Of the segment at `data`.
[[gnu::always_inline]] inline void LinearPool::hand_out(const SizeClass& size_class,
                                                        Segment& segment, char* data, size_t nbytes,
                                                        size_t counted) noexcept {
  ++segment.live;
  segment.requested[segment.offset_of(data) >> size_class.shift] = nbytes;
  segment.counted = counted;
}

[[gnu::always_inline]] inline bool LinearPool::take(SizeClass& size_class, size_t nbytes,
                                                    size_t counted, const Queue* queue,
                                                    Allocation& block) noexcept {
  if (!size_class.find_free(queue)) return false;
  FreeBlock found = size_class.free.pop();
  if (found.ticket != 0) [[unlikely]]
    --size_class.fenced;
  hand_out(size_class, *found.segment, found.data, nbytes, counted);
  block = {found.data, counted, found.fence()};
  return true;
}

inline LinearBlock LinearPool::find(const void* data) const noexcept {
  Segment* const segment = map_->find(data);
  return {segment, segment != nullptr ? &segment->requested_of(data) : nullptr};
}

[[gnu::always_inline]] inline void LinearPool::give_back(const LinearBlock& block, void* data,
                                                         Fence fence) noexcept {
  Segment* const segment = block.segment;
  SizeClass& size_class = *segment->size_class;
  *block.entry = 0;
  --segment->live;
  const FreeBlock freed{static_cast<char*>(data), segment, fence.queue, fence.ticket};
  if (size_class.by_address) [[unlikely]] {
    size_class.free.push_to_heap(freed);
  } else {
    size_class.free.push(freed);
  }
  if (fence.ticket != 0) [[unlikely]]
    ++size_class.fenced;
}

}  // namespace hologram
