// What a memory pool takes from the system, and when it gives that back.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "atlas/error.h"
#include "atlas/memory.h"

namespace hologram {
namespace {

// From this size on the system is asked for its free memory before a new segment is made: the
// question (about 30 us) is cheap against the page faults, and the cache is given back before
// others are pushed out.
constexpr size_t kPressureCheck = size_t{32} << 20;

// Idle memory that is never too much.
constexpr int64_t kIdleAllowance = int64_t{64} << 20;

}  // namespace

// The slow path of allocate(): false when neither the system nor the cache can serve the request.
bool MemoryPool::grow(SizeClass& size_class, size_t nbytes, const Queue* queue, Allocation& block) {
  const std::lock_guard growing(growth_);
  const bool small = nbytes <= kLargestBoundaryRequest;
  bool retried = false, asked = false;
  while (true) {
    // Another thread may have grown the size class or freed a block in the meantime.
    if (take_held(size_class, nbytes, queue, block)) return true;
    if (!retried) {
      const bool pressure = size_class.segment_bytes >= kPressureCheck &&
                            backend_.available_memory() < size_class.segment_bytes;
      if (pressure || idle_beyond_need()) trim_while_growing();
    }
    if ((small && add_boundary()) || add_segment(size_class)) continue;
    // Better a queue waits than the host does.
    if (queue != nullptr && take_held(size_class, nbytes, nullptr, block)) return true;
    if (retried && !asked && has_room(size_class.segment_bytes)) {
      asked = true;
      if (ask_others_(backend_.properties())) continue;
    }
    if (retried) {
      const std::lock_guard guard(lock_);
      return take_larger(size_class, LinearPool::kSizeClasses, nbytes, nullptr, block);
    }
    {
      const std::lock_guard guard(lock_);
      ++counters_.num_alloc_retries;
    }
    wait_for_late();
    trim_while_growing();
    retried = true;
  }
}

// Whether more is held without use than the device has ever had in use.
bool MemoryPool::idle_beyond_need() const noexcept {
  const std::lock_guard guard(lock_);
  const int64_t most = std::max(kIdleAllowance, counters_.most_allocated());
  return counters_.reserved_bytes.current - counters_.allocated_bytes.current - retired_bytes_ >
         most;
}

// Whether the limit leaves room for so many more bytes.
bool MemoryPool::has_room(size_t nbytes) const noexcept {
  const std::lock_guard guard(lock_);
  const auto used = static_cast<size_t>(counters_.reserved_bytes.current);
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
  counters_.count_segment(counters_.boundary, kBoundaryBytes);
  return true;
}

// Gives the size class a new segment; false when it does not fit. Callers hold growth_.
bool MemoryPool::add_segment(SizeClass& size_class) {
  const size_t bytes = size_class.segment_bytes;
  if (!has_room(bytes)) return false;
  NewSegment made = LinearPool::make(size_class);
  void* const base = backend_.allocate_segment(bytes);
  if (base == nullptr) return false;
  try {
    linear_.prepare(made, base);
  } catch (...) {
    backend_.free_segment(base, bytes);
    throw;
  }
  const std::lock_guard guard(lock_);
  linear_.add(made);
  counters_.count_segment(counters_.linear, bytes);
  return true;
}

void MemoryPool::trim() noexcept {
  const std::lock_guard growing(growth_);
  wait_for_late();
  trim_while_growing();
}

void MemoryPool::try_trim() noexcept {
  const std::unique_lock growing(growth_, std::try_to_lock);
  if (!growing.owns_lock()) return;
  wait_for_late();
  trim_while_growing();
}

void MemoryPool::trim_everywhere() noexcept {
  trim();
  ask_others_(backend_.properties());
}

size_t MemoryPool::idle_bytes() const noexcept {
  const std::lock_guard guard(lock_);
  return static_cast<size_t>(counters_.reserved_bytes.current - counters_.allocated_bytes.current -
                             retired_bytes_);
}

// Callers hold growth_.
void MemoryPool::trim_while_growing() noexcept {
  Segment* idle = nullptr;  // a list by `next`
  void* idle_boundary = nullptr;
  Fence boundary_fence;
  Fences fences;  // of the blocks in what goes
  if (backend_.properties().asynchronous) fences.reserve(64);
  {
    const std::lock_guard guard(lock_);
    if (boundary_.attached() && counters_.boundary.allocation.current() == 0 &&
        boundary_retired_ == 0) {
      idle_boundary = boundary_.detach();
      boundary_fence = std::exchange(boundary_fence_, {});
      counters_.count_segment_end(counters_.boundary, kBoundaryBytes);
    }
    idle = linear_.remove_idle(fences);
    for (const Segment* segment = idle; segment != nullptr; segment = segment->next) {
      counters_.count_segment_end(counters_.linear, segment->bytes);
    }
  }
  if (idle_boundary != nullptr) {
    wait_until_idle(boundary_fence);
    backend_.free_segment(idle_boundary, kBoundaryBytes);
  }
  for (const Fence& fence : fences) wait_until_idle(fence);
  free_segments(idle);
}

// Gives them back to the system: a list of what the linear pool has no more.
void MemoryPool::free_segments(Segment* list) noexcept {
  while (Segment* segment = list) {
    list = segment->next;
    backend_.free_segment(segment->base, segment->bytes);
    delete segment;
  }
}

void MemoryPool::forget_refusal() noexcept {
  const std::lock_guard guard(lock_);
  --counters_.num_ooms;
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
  counters_.count_foreign(bytes);
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
    over = static_cast<size_t>(counters_.reserved_bytes.current) > bytes;
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
  const auto used = static_cast<size_t>(counters_.reserved_bytes.current);
  const size_t left = used < limit_ ? limit_ - used : 0;
  return {std::min({left, available, total}), total};
}

}  // namespace hologram
