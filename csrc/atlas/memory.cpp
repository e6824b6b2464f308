// How a memory pool hands out blocks and takes them back.
#include "atlas/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "atlas/error.h"

namespace hologram {
namespace {

[[noreturn]] void die(const char* what, const void* pointer) noexcept {
  std::fprintf(stderr, "hologram: %s: %p\n", what, pointer);
  std::abort();
}

// Memory that the host does not touch is nowhere warm; programs that come again there had better
// find the addresses that they had.
BlockOrder order_for(const Backend& backend) {
  return backend.properties().host_addressable ? BlockOrder::warmest : BlockOrder::lowest;
}

}  // namespace

MemoryPool::MemoryPool(Backend& backend, size_t limit, bool poison_freed)
    : backend_(backend),
      host_addressable_(backend.properties().host_addressable),
      poison_freed_(poison_freed),
      limit_(limit),
      linear_(order_for(backend)),
      boundary_(order_for(backend)) {}

MemoryPool::~MemoryPool() {
  if (boundary_.attached()) backend_.free_segment(boundary_.detach(), kBoundaryBytes);
  free_segments(linear_.remove_all());
}

// Hands out an idle block of the size class that is ready for the queue. Callers hold lock_.
[[gnu::always_inline]] inline bool MemoryPool::take_linear(SizeClass& size_class, size_t nbytes,
                                                           const Queue* queue,
                                                           Allocation& block) noexcept {
  if (!linear_.take(size_class, nbytes, size_class.capacity, queue, block)) return false;
  counters_.count_allocation(counters_.linear, block.capacity, nbytes);
  return true;
}

// Hands out an idle block of the next so many size classes that is ready for the queue, or one that
// nobody had before, of the size class or of these. Callers hold lock_.
bool MemoryPool::take_larger(const SizeClass& size_class, int size_classes, size_t nbytes,
                             const Queue* queue, Allocation& block) noexcept {
  if (!linear_.take_larger(size_class, size_classes, nbytes, queue, block) &&
      !linear_.carve(size_class, size_classes, nbytes, block)) {
    return false;
  }
  counters_.count_allocation(counters_.linear, block.capacity, nbytes);
  return true;
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
  block = {data, BoundaryPool::capacity_for(nbytes), boundary_fence_};
  counters_.count_allocation(counters_.boundary, block.capacity, nbytes);
  return true;
}

// Hands out what the pools have that is ready for the queue.
bool MemoryPool::take_held(SizeClass& size_class, size_t nbytes, const Queue* queue,
                           Allocation& block) noexcept {
  const std::lock_guard guard(lock_);
  if (nbytes <= kLargestBoundaryRequest && take_boundary(nbytes, queue, block)) return true;
  if (take_linear(size_class, nbytes, queue, block)) return true;
  // The pages of a larger one are there already, which is worth more than its unused end.
  return take_larger(size_class, linear_.size_classes_up(size_class), nbytes, queue, block);
}

// Not split in two for the sake of its callers here, which are rare.
[[gnu::noinline]] Allocation MemoryPool::allocate(size_t nbytes, const Queue* queue) {
  Allocation block;  // the only one that is returned, so that it is made where that is to be
  if (nbytes == 0) return block;
  if (nbytes <= LinearPool::kLargestRequest) {
    SizeClass* size_class;
    {
      const std::lock_guard guard(lock_);
      if (!late_.empty()) [[unlikely]]
        look_at_late();
      if (nbytes <= kLargestBoundaryRequest && take_boundary(nbytes, queue, block)) return block;
      size_class = &linear_.size_class_of(nbytes);
      if (take_linear(*size_class, nbytes, queue, block)) return block;
    }
    if (take_held(*size_class, nbytes, queue, block) || grow(*size_class, nbytes, queue, block)) {
      if (block.is_new) backend_.populate(block.data, nbytes);
      return block;
    }
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
  if (std::string failure = backend_.failure(); !failure.empty()) {
    raise({.what = std::move(failure), .lost = true});
  }
  size_t allocated, reserved, limit;
  {
    const std::lock_guard guard(lock_);
    ++counters_.num_ooms;
    allocated = static_cast<size_t>(counters_.allocated_bytes.current);
    reserved = static_cast<size_t>(counters_.reserved_bytes.current);
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
      retired_bytes_ -= static_cast<int64_t>(BoundaryPool::capacity_for(nbytes));
    } else {
      counters_.count_deallocation(counters_.boundary, BoundaryPool::capacity_for(nbytes), nbytes);
    }
    if (fence.ticket != 0) [[unlikely]]
      boundary_fence_ = fence;
    return nullptr;
  }
  const LinearBlock block = linear_.find(data);
  if (block.segment == nullptr) return "freed a pointer that is not of this pool";
  if (block.free()) return "freed a block twice";
  if (block.retired()) {
    retired_bytes_ -= static_cast<int64_t>(block.capacity());
  } else {
    counters_.count_deallocation(counters_.linear, block.capacity(), block.requested());
  }
  linear_.give_back(block, data, fence);
  return nullptr;
}

// The next owner comes after it, as after any other work of the last one.
[[gnu::noinline]] void MemoryPool::poison(Allocation& block) const noexcept {
  constexpr uint64_t kWord = ~uint64_t{0};
  const size_t capacity = block_capacity(block.data);
  if (block.fence.may_be_outstanding() || (block.fence.queue != nullptr && !host_addressable_)) {
    block.fence.ticket =
        block.fence.queue->fill(block.data, &kWord, sizeof kWord, capacity / sizeof kWord);
  } else if (host_addressable_) {
    std::memset(block.data, 0xFF, capacity);
  }
}

// Flattened: with the calls in it a free takes a fifth longer.
[[gnu::flatten]] void MemoryPool::deallocate(Allocation block) noexcept {
  if (block.data == nullptr) return;
  if (poison_freed_) [[unlikely]]
    poison(block);
  if (block.fence.may_be_outstanding()) [[unlikely]] {
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
  std::unique_ptr<LateBlock> late(new (std::nothrow) LateBlock{data, std::move(fences)});
  if (late == nullptr) {
    for (const Fence& fence : fences) wait_until_idle(fence);
    deallocate({data});
    return;
  }
  const std::lock_guard guard(lock_);
  if (!is_retired(data)) retire_under_lock(data);
  late_.add(std::move(late));
}

// Takes back what has been late, if it is among the next few. Callers hold lock_.
void MemoryPool::look_at_late() noexcept {
  constexpr int kLookedAt = 4;
  for (int i = 0; i < kLookedAt && !late_.empty(); ++i) {
    std::unique_ptr<LateBlock> late = late_.take_first();
    late->fences.drop_reached();
    if (late->fences.size() != 0) {
      late_.add(std::move(late));
    } else if (const char* complaint = give_back_under_lock(late->data, {})) {
      die(complaint, late->data);
    }
  }
}

// Takes back all that is late.
void MemoryPool::wait_for_late() noexcept {
  LateBlocks late;
  {
    const std::lock_guard guard(lock_);
    late.swap(late_);
  }
  while (!late.empty()) {
    const std::unique_ptr<LateBlock> block = late.take_first();
    for (const Fence& fence : block->fences) wait_until_idle(fence);
    deallocate({block->data});
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
    counters_.count_deallocation(counters_.boundary, BoundaryPool::capacity_for(nbytes), nbytes);
    ++boundary_retired_;
    retired_bytes_ += static_cast<int64_t>(BoundaryPool::capacity_for(nbytes));
    return;
  }
  const LinearBlock block = linear_.find(data);
  if (block.segment == nullptr) die("retired a pointer that is not of this pool", data);
  if (block.free() || block.retired()) die("retired what is no block in use", data);
  counters_.count_deallocation(counters_.linear, block.capacity(), block.requested());
  retired_bytes_ += static_cast<int64_t>(block.capacity());
  LinearPool::retire(block);
}

// Of a block in use. Callers hold lock_.
bool MemoryPool::is_retired(const void* data) const noexcept {
  if (boundary_.contains(data)) return boundary_.is_retired(data);
  const LinearBlock block = linear_.find(data);
  return block.segment != nullptr && block.retired();
}

// Whether `data` is where a block of the pool would start, if it is in the pool at all.
bool MemoryPool::starts_block(const void* data) const noexcept {
  const std::lock_guard guard(lock_);
  return linear_.starts_block(data);
}

size_t MemoryPool::block_capacity(const void* data) const noexcept {
  const std::lock_guard guard(lock_);
  if (!boundary_.contains(data)) return linear_.block_capacity(data);
  const size_t nbytes = boundary_.requested(data);
  return nbytes == 0 ? 0 : BoundaryPool::capacity_for(nbytes);
}

bool MemoryPool::owns(const void* pointer) const noexcept {
  const std::lock_guard guard(lock_);
  return boundary_.contains(pointer) || linear_.contains(pointer);
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
        const Allocation block{data, BoundaryPool::capacity_for(nbytes), boundary_fence_};
        counters_.count_allocation(counters_.boundary, block.capacity, nbytes);
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

void MemoryPool::lock_for_fork() noexcept {
  growth_.lock();
  lock_.lock();
}

void MemoryPool::unlock_after_fork() noexcept {
  lock_.unlock();
  growth_.unlock();
}

}  // namespace hologram
