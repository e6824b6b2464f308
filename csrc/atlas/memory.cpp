#include "atlas/memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "atlas/error.h"
#include "atlas/queue.h"

namespace hologram {
namespace {

constexpr size_t kSmallSegment = kSegmentAlignment;
constexpr size_t kLargestSmall = kSmallSegment / 2;
constexpr size_t kLargestRequest = size_t{1} << 46;
constexpr int kClassCount = 4 + (46 - 8) * 4;

// From this size on the system is asked for its free memory before a new segment is made: the
// question (about 30 us) is cheap against the page faults, and the cache is given back before
// others are pushed out.
constexpr size_t kPressureCheck = size_t{32} << 20;

// Idle memory that is never too much.
constexpr int64_t kIdleAllowance = int64_t{64} << 20;

// How many classes up a large request may take an idle block from: at most twice its capacity.
constexpr int kClassesToTwice = 4;

// Class of a request of 1..kLargestRequest bytes. With 2^k < nbytes <= 2^(k+1), k >= 8, the
// capacities are (5, 6, 7, 8) * 2^(k-2); up to 256 bytes they are 64, 128, 192, 256.
int class_of(size_t nbytes) {
  if (nbytes <= 256) return static_cast<int>((nbytes + 63) / 64) - 1;
  const int k = std::bit_width(nbytes - 1) - 1;
  return 4 + (k - 8) * 4 + static_cast<int>((nbytes - 1) >> (k - 2) & 3);
}

size_t capacity_of(int class_index) {
  if (class_index < 4) return static_cast<size_t>(class_index + 1) * 64;
  const int k = 8 + (class_index - 4) / 4;
  return static_cast<size_t>(5 + class_index % 4) << (k - 2);
}

// Of a block, in what the linear pool knows of it: it counts as freed.
constexpr size_t kRetired = size_t{1} << 63;

size_t boundary_capacity(size_t nbytes) {
  return static_cast<size_t>(BoundaryPool::pages_for(nbytes)) * kBoundaryPageBytes;
}

// Adds the block that follows the ones listed so far; requested == 0: it is not in use. `joins`:
// whether it may become one with an inactive block before it.
void append_block(SegmentInfo& segment, const char* address, size_t size, size_t requested,
                  bool retired = false, bool joins = true) {
  if (requested != 0) {
    if (!retired) segment.allocated_size += size;
    segment.blocks.push_back({address, size, requested, true, retired});
  } else if (joins && !segment.blocks.empty() && !segment.blocks.back().active) {
    segment.blocks.back().size += size;
  } else {
    segment.blocks.push_back({address, size, 0, false, false});
  }
}

// Whether work of a queue that is enqueued now may use memory with this fence.
bool is_ready(const Fence& fence, const Queue* queue) noexcept {
  return fence.ticket == 0 || fence.queue == queue || !fence.outstanding();
}

// What the work before the fence did wrong is for those to hear who wait for its results.
void wait_until_idle(const Fence& fence) noexcept {
  try {
    if (fence.outstanding()) fence.wait();
  } catch (const std::exception&) {
  }
}

[[noreturn]] void die(const char* what, const void* pointer) noexcept {
  std::fprintf(stderr, "hologram: %s: %p\n", what, pointer);
  std::abort();
}

}  // namespace

// A range of memory from the backend, cut into blocks of one class.
struct MemoryPool::Segment {
  char* base;
  size_t bytes;
  SizeClass* size_class;
  size_t counted;     // bytes its blocks count as; a large one may serve a class below its own
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
};

struct MemoryPool::FreeBlock {
  char* data;
  Segment* segment;
  Fence fence{};
};

struct MemoryPool::Late {
  void* data;
  Fences fences;
  Late* next = nullptr;
};

struct MemoryPool::SizeClass {
  size_t capacity = 0;  // bytes of a block
  size_t segment_bytes = 0;
  size_t blocks_per_segment = 0;
  int shift = 0;
  size_t blocks = 0;            // in all segments of the class
  std::vector<FreeBlock> free;  // a stack with room for every block, so that a free never allocates
  size_t fenced = 0;            // of the free ones
  Segment* carving = nullptr;   // segment whose tail has not been handed out yet

  bool large() const noexcept { return blocks_per_segment == 1; }

  // Puts a block on top that is ready for the queue, or is any where that is null. False where
  // there is none among the first few.
  bool find_free(const Queue* queue) noexcept {
    return !free.empty() && (fenced == 0 || queue == nullptr || find_ready(queue));
  }

 private:
  // Its own first, so that queues that take turns do not end up with one another's: then each would
  // need new memory in the end.
  [[gnu::noinline]] bool find_ready(const Queue* queue) noexcept {
    return find(64, [&](const Fence& fence) { return fence.queue == queue; }) ||
           find(16, [&](const Fence& fence) { return is_ready(fence, queue); });
  }
  template <class Suits>
  bool find(ptrdiff_t most, Suits&& suits) noexcept {
    const auto end = free.end(), last = end - std::min(most, std::ssize(free));
    for (auto it = end; it != last;) {
      if (!suits((--it)->fence)) continue;
      std::rotate(it, it + 1, end);
      return true;
    }
    return false;
  }
};

// Which segment covers an address: a two-level table over the 1 MiB units of a 48-bit address
// space. No unit is covered by two segments, since each starts at a multiple of the unit.
class MemoryPool::SegmentMap {
 public:
  ~SegmentMap() {
    for (auto& entry : root_) delete entry.load();
  }

  Segment* find(const void* pointer) const noexcept {
    const size_t unit = unit_of(pointer);
    if (unit >> (2 * kBits) != 0) return nullptr;
    const Leaf* leaf = root_[unit >> kBits].load(std::memory_order_acquire);
    return leaf != nullptr ? leaf->entries[unit & kMask] : nullptr;
  }

  // Makes the table cover [base, base + bytes), so that set() cannot fail. Throws std::bad_alloc.
  // Callers hold growth_.
  void prepare(const void* base, size_t bytes) {
    for (size_t i = unit_of(base) >> kBits; i <= last_unit(base, bytes) >> kBits; ++i) {
      if (root_.at(i).load(std::memory_order_relaxed) == nullptr) {
        root_[i].store(new Leaf(), std::memory_order_release);
      }
    }
  }

  // Callers hold lock_.
  void set(const void* base, size_t bytes, Segment* segment) noexcept {
    for (size_t unit = unit_of(base); unit <= last_unit(base, bytes); ++unit) {
      root_[unit >> kBits].load(std::memory_order_relaxed)->entries[unit & kMask] = segment;
    }
  }

 private:
  static constexpr int kBits = 14;
  static constexpr size_t kMask = (size_t{1} << kBits) - 1;
  struct Leaf {
    std::array<Segment*, kMask + 1> entries{};
  };

  static size_t unit_of(const void* pointer) noexcept {
    return reinterpret_cast<uintptr_t>(pointer) / kSegmentAlignment;
  }
  static size_t last_unit(const void* base, size_t bytes) noexcept {
    return (reinterpret_cast<uintptr_t>(base) + bytes - 1) / kSegmentAlignment;
  }

  std::array<std::atomic<Leaf*>, kMask + 1> root_{};
};

MemoryPool::MemoryPool(Backend& backend, size_t limit, bool poison_freed)
    : backend_(backend),
      host_addressable_(backend.properties().host_addressable),
      has_vendor_(!backend.properties().vendor.empty()),
      poison_freed_(poison_freed),
      limit_(limit),
      classes_(std::make_unique<SizeClass[]>(kClassCount)),
      map_(std::make_unique<SegmentMap>()) {
  for (int i = 0; i < kClassCount; ++i) {
    SizeClass& cls = classes_[static_cast<size_t>(i)];
    cls.capacity = capacity_of(i);
    if (cls.capacity <= kLargestSmall) {
      cls.segment_bytes = kSmallSegment;
      cls.blocks_per_segment = kSmallSegment / cls.capacity;
      cls.shift = std::bit_width(cls.capacity) - 1;
    } else {
      cls.segment_bytes = cls.capacity;
      cls.blocks_per_segment = 1;
      cls.shift = 63;  // the only block has entry 0
    }
  }
}

MemoryPool::~MemoryPool() {
  while (Late* late = late_) {
    late_ = late->next;
    delete late;
  }
  if (boundary_.attached()) backend_.free_segment(boundary_.detach(), kBoundaryBytes);
  while (Segment* segment = segments_) {
    segments_ = segment->next;
    backend_.free_segment(segment->base, segment->bytes);
    delete segment;
  }
}

size_t MemoryPool::round_size(size_t nbytes) noexcept {
  if (nbytes == 0) return 0;
  return nbytes > kLargestRequest ? nbytes : capacity_of(class_of(nbytes));
}

inline void MemoryPool::count_allocation(PoolCounters& pool, size_t capacity,
                                         size_t nbytes) noexcept {
  pool.allocation.add(1);
  pool.allocated_bytes.add(static_cast<int64_t>(capacity));
  requested_bytes_.add(static_cast<int64_t>(nbytes));
  allocation_.add(1);
  allocated_bytes_.add(static_cast<int64_t>(capacity));
}

inline void MemoryPool::count_deallocation(PoolCounters& pool, size_t capacity,
                                           size_t nbytes) noexcept {
  pool.allocation.subtract(1);
  pool.allocated_bytes.subtract(static_cast<int64_t>(capacity));
  requested_bytes_.subtract(static_cast<int64_t>(nbytes));
  allocation_.add(-1);
  allocated_bytes_.add(-static_cast<int64_t>(capacity));
}

void MemoryPool::count_segment(PoolCounters& pool, size_t nbytes) noexcept {
  pool.segment.add(1);
  pool.reserved_bytes.add(static_cast<int64_t>(nbytes));
  segment_.add(1);
  reserved_bytes_.add(static_cast<int64_t>(nbytes));
  ++num_device_alloc_;
}

void MemoryPool::count_segment_end(PoolCounters& pool, size_t nbytes) noexcept {
  pool.segment.subtract(1);
  pool.reserved_bytes.subtract(static_cast<int64_t>(nbytes));
  segment_.add(-1);
  reserved_bytes_.add(-static_cast<int64_t>(nbytes));
  ++num_device_free_;
}

// Hands out a block of the class if it has one that is ready for the queue, to count as so many
// bytes. Callers hold lock_.
[[gnu::always_inline]] inline bool MemoryPool::take(SizeClass& cls, size_t nbytes, size_t counted,
                                                    const Queue* queue,
                                                    Allocation& block) noexcept {
  FreeBlock found;
  if (cls.find_free(queue)) {
    found = cls.free.back();
    cls.free.pop_back();
    if (found.fence.ticket != 0) [[unlikely]]
      --cls.fenced;
  } else if (Segment* segment = cls.carving) {
    found = {segment->base + segment->carved * cls.capacity, segment};
    if (++segment->carved == cls.blocks_per_segment) cls.carving = nullptr;
  } else {
    return false;
  }
  Segment& segment = *found.segment;
  ++segment.live;
  segment.requested[static_cast<size_t>(found.data - segment.base) >> cls.shift] = nbytes;
  segment.counted = counted;
  block = {found.data, counted, found.fence};
  count_allocation(linear_counters_, block.capacity, nbytes);
  return true;
}

// Hands out an idle block of the next so many classes. Callers hold lock_.
bool MemoryPool::take_larger(const SizeClass& cls, int classes, size_t nbytes, const Queue* queue,
                             Allocation& block) noexcept {
  const auto first = static_cast<int>(&cls - classes_.get()) + 1;
  for (int i = first; i < std::min(first + classes, kClassCount); ++i) {
    SizeClass& larger = classes_[static_cast<size_t>(i)];
    const size_t counted = larger.large() ? cls.capacity : larger.capacity;
    if (take(larger, nbytes, counted, queue, block)) return true;
  }
  return false;
}

// Hands out a block of the boundary pool if it has one and serves the queue. Callers hold lock_.
inline bool MemoryPool::take_boundary(size_t nbytes, const Queue* queue,
                                      Allocation& block) noexcept {
  if (boundary_fence_.ticket != 0 && queue != nullptr && !is_ready(boundary_fence_, queue))
      [[unlikely]] {
    return false;
  }
  char* const data = boundary_.allocate(nbytes);
  if (data == nullptr) return false;
  block = {data, boundary_capacity(nbytes), boundary_fence_};
  count_allocation(boundary_counters_, block.capacity, nbytes);
  return true;
}

// Not split in two for the sake of its callers here, which are rare.
[[gnu::noinline]] Allocation MemoryPool::allocate(size_t nbytes, const Queue* queue) {
  if (nbytes == 0) return {};
  if (nbytes <= kLargestRequest) {
    Allocation block;
    SizeClass* cls;
    {
      const std::lock_guard guard(lock_);
      if (late_ != nullptr) [[unlikely]]
        look_at_late();
      if (nbytes <= kLargestBoundaryRequest && take_boundary(nbytes, queue, block)) return block;
      cls = &classes_[static_cast<size_t>(class_of(nbytes))];
      if (take(*cls, nbytes, cls->capacity, queue, block)) return block;
    }
    if (grow(*cls, nbytes, queue, block)) return block;
  }
  refuse(nbytes);
}

void* MemoryPool::allocate_scratch(size_t bytes, Queue& queue) {
  const Allocation taken = allocate(bytes, &queue);
  if (!is_ready(taken.fence, &queue)) [[unlikely]] {
    try {
      queue.wait_for(taken.fence);
    } catch (...) {
      deallocate(taken);
      throw;
    }
  }
  return taken.data;
}

void MemoryPool::refuse(size_t nbytes) {
  size_t allocated, reserved, limit;
  {
    const std::lock_guard guard(lock_);
    ++num_ooms_;
    allocated = static_cast<size_t>(allocated_bytes_.current);
    reserved = static_cast<size_t>(reserved_bytes_.current);
    limit = limit_;
  }
  throw OutOfMemory(nbytes, allocated, reserved, limit);
}

// Takes a block back; where there is none at `data`, says so and changes nothing.
[[gnu::always_inline]] inline const char* MemoryPool::give_back(void* data, Fence fence) noexcept {
  const std::lock_guard guard(lock_);
  return give_back_under_lock(data, fence);
}

[[gnu::always_inline]] inline const char* MemoryPool::give_back_under_lock(void* data,
                                                                           Fence fence) noexcept {
  if (boundary_.contains(data)) {
    const bool retired = boundary_retired_ != 0 && boundary_.is_retired(data);
    const size_t nbytes = boundary_.deallocate(data);
    if (nbytes == 0) return "freed a block twice, or a pointer into the middle of one";
    if (retired) {
      --boundary_retired_;
      retired_bytes_ -= static_cast<int64_t>(boundary_capacity(nbytes));
    } else {
      count_deallocation(boundary_counters_, boundary_capacity(nbytes), nbytes);
    }
    if (fence.ticket != 0) [[unlikely]]
      boundary_fence_ = fence;
    return nullptr;
  }
  Segment* segment = map_->find(data);
  if (segment == nullptr) return "freed a pointer that is not of this pool";
  SizeClass& cls = *segment->size_class;
  char* const start = static_cast<char*>(data);
  size_t& requested = segment->requested[static_cast<size_t>(start - segment->base) >> cls.shift];
  if (requested == 0) return "freed a block twice";
  if ((requested & kRetired) == 0) {
    count_deallocation(linear_counters_, segment->counted, requested);
  } else {
    retired_bytes_ -= static_cast<int64_t>(segment->counted);
  }
  requested = 0;
  --segment->live;
  cls.free.push_back({start, segment, fence});
  if (fence.ticket != 0) [[unlikely]]
    ++cls.fenced;
  return nullptr;
}

// Flattened: with the calls in it a free takes a fifth longer.
// The next owner comes after it, as after any other work of the last one.
[[gnu::noinline]] void MemoryPool::poison(Allocation& block) const noexcept {
  constexpr uint64_t kWord = ~uint64_t{0};
  const size_t capacity = block_capacity(block.data);
  if (block.fence.outstanding() || (block.fence.queue != nullptr && !host_addressable_)) {
    block.fence.ticket =
        block.fence.queue->fill(block.data, &kWord, sizeof kWord, capacity / sizeof kWord);
  } else if (host_addressable_) {
    std::memset(block.data, 0xFF, capacity);
  }
}

[[gnu::flatten]] void MemoryPool::deallocate(Allocation block) noexcept {
  if (block.data == nullptr) return;
  if (poison_freed_) [[unlikely]]
    poison(block);
  if (block.fence.outstanding()) [[unlikely]] {
    give_back_unless_late(block.data, block.fence);
  } else if (const char* complaint = give_back(block.data, {})) {
    die(complaint, block.data);
  }
}

void MemoryPool::deallocate(void* data, Fences fences) noexcept {
  if (data == nullptr) return;
  fences.drop_reached();
  if (fences.size() > 1) {
    give_back_late(data, std::move(fences));
  } else {
    deallocate({data, 0, fences.size() != 0 ? *fences.begin() : Fence{}});
  }
}

// Takes back a block that is used up to a fence.
[[gnu::noinline]] void MemoryPool::give_back_unless_late(void* data, Fence fence) noexcept {
  const char* complaint = nullptr;
  bool late = false;
  {
    const std::lock_guard guard(lock_);
    if (boundary_.contains(data)) {
      if (fence.queue == boundary_fence_.queue) {
        fence.ticket = std::max(fence.ticket, boundary_fence_.ticket);
      } else {
        late = boundary_fence_.outstanding();
      }
    }
    if (!late) complaint = give_back_under_lock(data, fence);
  }
  if (complaint != nullptr) die(complaint, data);
  if (late) {
    Fences fences;
    fences.add(fence);
    give_back_late(data, std::move(fences));
  }
}

void MemoryPool::give_back_late(void* data, Fences fences) noexcept {
  auto* const late = new (std::nothrow) Late{data, std::move(fences)};
  if (late == nullptr) {
    for (const Fence& fence : fences) wait_until_idle(fence);
    deallocate({data});
    return;
  }
  const std::lock_guard guard(lock_);
  if (!is_retired(data)) retire_under_lock(data);
  (last_late_ != nullptr ? last_late_->next : late_) = late;
  last_late_ = late;
}

// Takes back what has been late, if it is among the next few. Callers hold lock_.
void MemoryPool::look_at_late() noexcept {
  constexpr int kLookedAt = 4;
  for (int i = 0; i < kLookedAt && late_ != nullptr; ++i) {
    Late* const late = std::exchange(late_, late_->next);
    if (late_ == nullptr) last_late_ = nullptr;
    late->fences.drop_reached();
    if (late->fences.size() != 0) {
      late->next = nullptr;
      (last_late_ != nullptr ? last_late_->next : late_) = late;
      last_late_ = late;
    } else {
      if (const char* complaint = give_back_under_lock(late->data, {})) die(complaint, late->data);
      delete late;
    }
  }
}

// Takes back all that is late.
void MemoryPool::wait_for_late() noexcept {
  Late* first;
  {
    const std::lock_guard guard(lock_);
    first = std::exchange(late_, nullptr);
    last_late_ = nullptr;
  }
  while (first != nullptr) {
    const std::unique_ptr<Late> late(std::exchange(first, first->next));
    for (const Fence& fence : late->fences) wait_until_idle(fence);
    deallocate({late->data});
  }
}

void MemoryPool::retire(void* data) noexcept {
  if (data == nullptr) return;  // of a block without bytes
  const std::lock_guard guard(lock_);
  retire_under_lock(data);
}

void MemoryPool::retire_under_lock(void* data) noexcept {
  if (boundary_.contains(data)) {
    const size_t nbytes = boundary_.retire(data);
    if (nbytes == 0) die("retired what is no block in use", data);
    count_deallocation(boundary_counters_, boundary_capacity(nbytes), nbytes);
    ++boundary_retired_;
    retired_bytes_ += static_cast<int64_t>(boundary_capacity(nbytes));
    return;
  }
  Segment* segment = map_->find(data);
  if (segment == nullptr) die("retired a pointer that is not of this pool", data);
  const auto offset = static_cast<size_t>(static_cast<char*>(data) - segment->base);
  size_t& requested = segment->requested[offset >> segment->size_class->shift];
  if (requested == 0 || (requested & kRetired) != 0) die("retired what is no block in use", data);
  count_deallocation(linear_counters_, segment->counted, requested);
  retired_bytes_ += static_cast<int64_t>(segment->counted);
  requested |= kRetired;
}

// Of a block in use. Callers hold lock_.
bool MemoryPool::is_retired(const void* data) const noexcept {
  if (boundary_.contains(data)) return boundary_.is_retired(data);
  const Segment* segment = map_->find(data);
  if (segment == nullptr) return false;
  const auto offset = static_cast<size_t>(static_cast<const char*>(data) - segment->base);
  return (segment->requested[offset >> segment->size_class->shift] & kRetired) != 0;
}

// Whether `data` is where a block of the pool would start, if it is in the pool at all.
bool MemoryPool::starts_block(const void* data) const noexcept {
  const std::lock_guard guard(lock_);
  const Segment* segment = map_->find(data);
  if (segment == nullptr) return true;
  const auto offset = static_cast<size_t>(static_cast<const char*>(data) - segment->base);
  return segment->size_class->large() ? offset == 0 : offset % segment->size_class->capacity == 0;
}

size_t MemoryPool::block_capacity(const void* data) const noexcept {
  const std::lock_guard guard(lock_);
  if (boundary_.contains(data)) {
    const size_t nbytes = boundary_.requested(data);
    return nbytes == 0 ? 0 : boundary_capacity(nbytes);
  }
  const Segment* segment = map_->find(data);
  if (segment == nullptr) return 0;
  const SizeClass& cls = *segment->size_class;
  const auto offset = static_cast<size_t>(static_cast<const char*>(data) - segment->base);
  const bool starts = cls.large() ? offset == 0 : offset % cls.capacity == 0;
  return starts && segment->requested[offset >> cls.shift] != 0 ? segment->counted : 0;
}

void MemoryPool::release(void* data) {
  // deallocate() is spared the division: it is given what allocate() returned.
  const char* const complaint =
      starts_block(data) ? give_back(data, {}) : "freed a pointer into the middle of a block";
  if (complaint != nullptr) {
    char address[32];
    std::snprintf(address, sizeof address, "%p", data);
    throw Error("hologram: " + std::string(complaint) + ": " + address);
  }
}

Allocation MemoryPool::allocate_in_class(int class_index, size_t nbytes) {
  check_boundary_class(class_index);
  if (nbytes == 0 || nbytes > kBoundaryClassBytes) {
    throw Error("a block of a boundary class has from 1 to " + std::to_string(kBoundaryClassBytes) +
                " bytes, not " + std::to_string(nbytes));
  }
  while (true) {
    BoundaryClassUsage usage;
    bool attached;
    {
      const std::lock_guard guard(lock_);
      if (char* const data = boundary_.allocate_in(class_index, nbytes)) {
        const Allocation block{data, boundary_capacity(nbytes), boundary_fence_};
        count_allocation(boundary_counters_, block.capacity, nbytes);
        return block;
      }
      attached = boundary_.attached();
      usage = boundary_.usage(class_index);
    }
    if (attached) {
      throw Error("boundary class " + std::to_string(class_index) + " has no run of " +
                  std::to_string(BoundaryPool::pages_for(nbytes)) + " free pages: " +
                  std::to_string(usage.free_pages) + " of its " + std::to_string(kBoundaryPages) +
                  " pages are free, the longest run is " + std::to_string(usage.longest_free_run));
    }
    const std::lock_guard growing(growth_);
    if (boundary_.attached() || add_boundary()) continue;
    wait_for_late();
    trim_while_growing();
    if (!add_boundary()) refuse(kBoundaryBytes);
  }
}

BoundaryClassUsage MemoryPool::boundary_class(int class_index) const {
  check_boundary_class(class_index);
  const std::lock_guard guard(lock_);
  return boundary_.usage(class_index);
}

std::array<BoundaryClassUsage, kBoundaryClasses> MemoryPool::boundary_classes() const {
  std::array<BoundaryClassUsage, kBoundaryClasses> usage;
  const std::lock_guard guard(lock_);
  for (int i = 0; i < kBoundaryClasses; ++i) {
    usage[static_cast<size_t>(i)] = boundary_.usage(i);
  }
  return usage;
}

const void* MemoryPool::boundary_base() const noexcept {
  const std::lock_guard guard(lock_);
  return boundary_.base();
}

// The slow path of allocate(): false when neither the system nor the cache can serve the request.
bool MemoryPool::grow(SizeClass& cls, size_t nbytes, const Queue* queue, Allocation& block) {
  const std::lock_guard growing(growth_);
  const bool small = nbytes <= kLargestBoundaryRequest;
  const auto take_held = [&](const Queue* ready_for) {
    const std::lock_guard guard(lock_);
    if (small && take_boundary(nbytes, ready_for, block)) return true;
    if (take(cls, nbytes, cls.capacity, ready_for, block)) return true;
    // Its pages are there already, which is worth more than its unused end.
    return cls.large() && take_larger(cls, kClassesToTwice, nbytes, ready_for, block);
  };
  bool retried = false;
  while (true) {
    // Another thread may have grown the class or freed a block in the meantime.
    if (take_held(queue)) return true;
    if (!retried) {
      const bool pressure =
          cls.segment_bytes >= kPressureCheck && backend_.available_memory() < cls.segment_bytes;
      if (pressure || idle_beyond_need()) trim_while_growing();
    }
    if ((small && add_boundary()) || add_segment(cls)) continue;
    // Better a queue waits than the host does.
    if (queue != nullptr && take_held(nullptr)) return true;
    if (retried) {
      const std::lock_guard guard(lock_);
      return take_larger(cls, kClassCount, nbytes, nullptr, block);
    }
    {
      const std::lock_guard guard(lock_);
      ++num_alloc_retries_;
    }
    wait_for_late();
    trim_while_growing();
    retried = true;
  }
}

// Whether more is held without use than the device has ever had in use.
bool MemoryPool::idle_beyond_need() const noexcept {
  const std::lock_guard guard(lock_);
  const int64_t most = std::max({kIdleAllowance, most_allocated_, allocated_bytes_.peak});
  return reserved_bytes_.current - allocated_bytes_.current - retired_bytes_ > most;
}

// Whether the limit leaves room for so many more bytes.
bool MemoryPool::has_room(size_t nbytes) const noexcept {
  const std::lock_guard guard(lock_);
  const auto used = static_cast<size_t>(reserved_bytes_.current);
  return used <= limit_ && nbytes <= limit_ - used;
}

// Gives the boundary pool its region; false when it has one or it does not fit. Callers hold
// growth_, under which alone a region comes and goes.
bool MemoryPool::add_boundary() noexcept {
  if (boundary_.attached() || !has_room(kBoundaryBytes)) return false;
  void* const base = backend_.allocate_segment(kBoundaryBytes);
  if (base == nullptr) return false;
  const std::lock_guard guard(lock_);
  boundary_.attach(base);
  count_segment(boundary_counters_, kBoundaryBytes);
  return true;
}

// Gives the class a new segment; false when it does not fit. Callers hold growth_.
bool MemoryPool::add_segment(SizeClass& cls) {
  if (!has_room(cls.segment_bytes)) return false;
  auto segment = std::make_unique<Segment>();
  const size_t entries = cls.blocks_per_segment == 1 ? 1 : cls.segment_bytes >> cls.shift;
  if (entries > segment->few.size()) segment->many = std::make_unique<size_t[]>(entries);
  segment->requested = segment->many ? segment->many.get() : segment->few.data();
  segment->bytes = cls.segment_bytes;
  segment->size_class = &cls;
  std::vector<FreeBlock> free;  // allocated before the lock is taken
  free.reserve(cls.blocks + cls.blocks_per_segment);

  segment->base = static_cast<char*>(backend_.allocate_segment(cls.segment_bytes));
  if (segment->base == nullptr) return false;
  try {
    map_->prepare(segment->base, segment->bytes);
  } catch (...) {
    backend_.free_segment(segment->base, segment->bytes);
    throw;
  }

  const std::lock_guard guard(lock_);
  free.assign(cls.free.begin(), cls.free.end());
  cls.free.swap(free);
  cls.blocks += cls.blocks_per_segment;
  cls.carving = segment.get();
  map_->set(segment->base, segment->bytes, segment.get());
  segment->next = segments_;
  if (segments_ != nullptr) segments_->previous = segment.get();
  segments_ = segment.release();
  count_segment(linear_counters_, cls.segment_bytes);
  return true;
}

void MemoryPool::trim() noexcept {
  const std::lock_guard growing(growth_);
  wait_for_late();
  trim_while_growing();
}

// Callers hold growth_.
void MemoryPool::trim_while_growing() noexcept {
  Segment* idle = nullptr;  // singly linked by `next`
  void* idle_boundary = nullptr;
  Fence boundary_fence;
  Fences fences;  // of the blocks in what goes
  if (backend_.properties().asynchronous) fences.reserve(64);
  {
    const std::lock_guard guard(lock_);
    if (boundary_.attached() && boundary_counters_.allocation.current() == 0 &&
        boundary_retired_ == 0) {
      idle_boundary = boundary_.detach();
      boundary_fence = std::exchange(boundary_fence_, {});
      count_segment_end(boundary_counters_, kBoundaryBytes);
    }
    for (int i = 0; i < kClassCount; ++i) {
      SizeClass& cls = classes_[static_cast<size_t>(i)];
      std::erase_if(cls.free, [&](const FreeBlock& block) {
        if (block.segment->live != 0) return false;
        fences.add(block.fence);
        cls.fenced -= block.fence.ticket != 0;
        return true;
      });
      if (cls.carving != nullptr && cls.carving->live == 0) cls.carving = nullptr;
    }
    for (Segment *segment = segments_, *next; segment != nullptr; segment = next) {
      next = segment->next;
      if (segment->live != 0) continue;
      (segment->previous != nullptr ? segment->previous->next : segments_) = next;
      if (next != nullptr) next->previous = segment->previous;
      segment->size_class->blocks -= segment->size_class->blocks_per_segment;
      map_->set(segment->base, segment->bytes, nullptr);
      count_segment_end(linear_counters_, segment->bytes);
      segment->next = idle;
      idle = segment;
    }
  }
  if (idle_boundary != nullptr) {
    wait_until_idle(boundary_fence);
    backend_.free_segment(idle_boundary, kBoundaryBytes);
  }
  for (const Fence& fence : fences) wait_until_idle(fence);
  while (Segment* segment = idle) {
    idle = segment->next;
    backend_.free_segment(segment->base, segment->bytes);
    delete segment;
  }
}

void MemoryPool::forget_refusal() noexcept {
  const std::lock_guard guard(lock_);
  --num_ooms_;
}

void MemoryPool::admit_foreign(size_t nbytes) {
  if (!has_room(nbytes)) {
    trim();
    if (!has_room(nbytes)) refuse(nbytes);
  }
  note_foreign(static_cast<ptrdiff_t>(nbytes));
}

void MemoryPool::note_foreign(ptrdiff_t bytes) noexcept {
  const std::lock_guard guard(lock_);
  for (FastCounter* counter : {&foreign_bytes_, &requested_bytes_}) {
    if (bytes >= 0) {
      counter->add(bytes);
    } else {
      counter->subtract(-bytes);
    }
  }
  allocated_bytes_.add(bytes);
  reserved_bytes_.add(bytes);
}

MemoryStats MemoryPool::stats() const {
  const std::lock_guard guard(lock_);
  const PoolStats boundary = boundary_counters_.read(), linear = linear_counters_.read();
  const Counter foreign = foreign_bytes_.read();
  const auto sum = [](const Level& level, const Counter& a, const Counter& b, const Counter& c) {
    return Counter{level.current, level.peak, a.allocated + b.allocated + c.allocated,
                   a.freed + b.freed + c.freed};
  };
  const Counter allocation = sum(allocation_, boundary.allocation, linear.allocation, {});
  return {
      .allocation = allocation,
      .segment = sum(segment_, boundary.segment, linear.segment, {}),
      .active = allocation,
      .allocated_bytes =
          sum(allocated_bytes_, boundary.allocated_bytes, linear.allocated_bytes, foreign),
      .reserved_bytes =
          sum(reserved_bytes_, boundary.reserved_bytes, linear.reserved_bytes, foreign),
      .requested_bytes = requested_bytes_.read(),
      .foreign_bytes = foreign,
      .num_alloc_retries = num_alloc_retries_,
      .num_ooms = num_ooms_,
      .num_device_alloc = num_device_alloc_,
      .num_device_free = num_device_free_,
      .limit = limit_,
      .boundary = boundary,
      .linear = linear,
  };
}

std::array<MemoryPool::FastCounter*, 10> MemoryPool::counters() noexcept {
  PoolCounters &boundary = boundary_counters_, &linear = linear_counters_;
  return {&boundary.allocation,     &linear.allocation,        &boundary.segment,
          &linear.segment,          &boundary.allocated_bytes, &linear.allocated_bytes,
          &boundary.reserved_bytes, &linear.reserved_bytes,    &requested_bytes_,
          &foreign_bytes_};
}

void MemoryPool::reset_peak() noexcept {
  const std::lock_guard guard(lock_);
  most_allocated_ = std::max(most_allocated_, allocated_bytes_.peak);
  for (FastCounter* counter : counters()) counter->peak = counter->current();
  for (Level* level : {&allocation_, &allocated_bytes_, &segment_, &reserved_bytes_}) {
    level->peak = level->current;
  }
}

void MemoryPool::reset_accumulated() noexcept {
  const std::lock_guard guard(lock_);
  for (FastCounter* counter : counters()) {
    counter->allocated_before = counter->allocated;
    counter->freed_before = counter->freed;
  }
  num_alloc_retries_ = num_ooms_ = num_device_alloc_ = num_device_free_ = 0;
}

void MemoryPool::set_fraction(double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    throw Error("memory fraction must be from 0 to 1, not " + std::to_string(fraction));
  }
  set_limit(
      static_cast<size_t>(fraction * static_cast<double>(backend_.properties().total_memory)));
}

void MemoryPool::set_limit(size_t bytes) noexcept {
  const std::lock_guard growing(growth_);
  bool over;
  {
    const std::lock_guard guard(lock_);
    limit_ = bytes;
    over = static_cast<size_t>(reserved_bytes_.current) > bytes;
  }
  if (over) {
    wait_for_late();
    trim_while_growing();
  }
}

size_t MemoryPool::limit() const noexcept {
  const std::lock_guard guard(lock_);
  return limit_;
}

std::pair<size_t, size_t> MemoryPool::info() const noexcept {
  const size_t available = backend_.available_memory();
  const size_t total = backend_.properties().total_memory;
  const std::lock_guard guard(lock_);
  const auto used = static_cast<size_t>(reserved_bytes_.current);
  const size_t left = used < limit_ ? limit_ - used : 0;
  return {std::min({left, available, total}), total};
}

// Callers hold growth_.
SegmentInfo MemoryPool::boundary_snapshot() const {
  const auto requests = std::make_unique<BoundaryPool::Requests>();
  {
    const std::lock_guard guard(lock_);
    *requests = boundary_.requests();
  }
  SegmentInfo info{boundary_.base(), kBoundaryBytes, 0, "boundary", {}};
  for (size_t place = 0, pages; place < requests->size(); place += pages) {
    const bool retired = ((*requests)[place] & BoundaryPool::kRetired) != 0;
    const size_t nbytes = (*requests)[place] & ~BoundaryPool::kRetired;
    const size_t capacity = boundary_capacity(std::max(nbytes, size_t{1}));
    append_block(info, boundary_.base() + place * kBoundaryPageBytes, capacity, nbytes, retired,
                 place % kBoundaryPages != 0);
    pages = capacity / kBoundaryPageBytes;
  }
  return info;
}

std::vector<SegmentInfo> MemoryPool::snapshot() const {
  // growth_ keeps the list of segments still, so that memory for the answer can be had before
  // lock_.
  const std::lock_guard growing(growth_);
  std::vector<SegmentInfo> answer;
  if (boundary_.attached()) answer.push_back(boundary_snapshot());
  for (const Segment* segment = segments_; segment != nullptr; segment = segment->next) {
    const SizeClass& cls = *segment->size_class;
    std::vector<size_t> requested(cls.blocks_per_segment);
    size_t counted;
    {
      const std::lock_guard guard(lock_);
      counted = segment->counted;
      for (size_t i = 0; i < requested.size(); ++i) {
        requested[i] = segment->requested[i * cls.capacity >> cls.shift];
      }
    }
    SegmentInfo info{segment->base, segment->bytes, 0, "linear", {}};
    for (size_t i = 0; i < requested.size(); ++i) {
      const char* const start = segment->base + i * cls.capacity;
      const size_t used = requested[i] == 0 ? cls.capacity : counted;
      append_block(info, start, used, requested[i] & ~kRetired, (requested[i] & kRetired) != 0);
      if (used != cls.capacity) {
        append_block(info, start + used, cls.capacity - used, 0, false, /*joins=*/false);
      }
    }
    // What is left of a segment that its blocks do not divide.
    const size_t cut = requested.size() * cls.capacity;
    if (cut < segment->bytes) append_block(info, segment->base + cut, segment->bytes - cut, 0);
    answer.push_back(std::move(info));
  }
  std::sort(answer.begin(), answer.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return answer;
}

bool MemoryPool::owns(const void* pointer) const noexcept {
  const std::lock_guard guard(lock_);
  if (boundary_.contains(pointer)) return true;
  const Segment* segment = map_->find(pointer);
  return segment != nullptr &&
         static_cast<size_t>(static_cast<const char*>(pointer) - segment->base) < segment->bytes;
}

void MemoryPool::lock_for_fork() noexcept {
  growth_.lock();
  lock_.lock();
}

void MemoryPool::unlock_after_fork() noexcept {
  lock_.unlock();
  growth_.unlock();
}

}  // namespace hologram
