// The counters of a memory pool, exact and as cheap as additions. Callers hold its lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "atlas/memory_stats.h"

namespace hologram {

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

// Of the boundary pool or the linear pool.
struct PoolCounters {
  FastCounter allocation, allocated_bytes, segment, reserved_bytes;
  PoolStats read() const noexcept {
    return {allocation.read(), segment.read(), allocated_bytes.read(), reserved_bytes.read()};
  }
};

struct MemoryCounters {
  struct Level {
    int64_t current = 0, peak = 0;
    void add(int64_t amount) noexcept {
      current += amount;
      if (current > peak) peak = current;
    }
  };

  PoolCounters boundary, linear;
  FastCounter requested_bytes, foreign_bytes;
  // Of the device's totals only levels are kept: the rest is the sum of the parts.
  Level allocation, allocated_bytes, segment, reserved_bytes;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0;
  int64_t most_allocated_before = 0;  // bytes, at the last reset_peak()

  // `pool` is one of the two above.
  void count_allocation(PoolCounters& pool, size_t capacity, size_t nbytes) noexcept {
    pool.allocation.add(1);
    pool.allocated_bytes.add(static_cast<int64_t>(capacity));
    requested_bytes.add(static_cast<int64_t>(nbytes));
    allocation.add(1);
    allocated_bytes.add(static_cast<int64_t>(capacity));
  }
  void count_deallocation(PoolCounters& pool, size_t capacity, size_t nbytes) noexcept {
    pool.allocation.subtract(1);
    pool.allocated_bytes.subtract(static_cast<int64_t>(capacity));
    requested_bytes.subtract(static_cast<int64_t>(nbytes));
    allocation.add(-1);
    allocated_bytes.add(-static_cast<int64_t>(capacity));
  }
  void count_segment(PoolCounters& pool, size_t nbytes) noexcept;
  void count_segment_end(PoolCounters& pool, size_t nbytes) noexcept;
  void count_foreign(ptrdiff_t bytes) noexcept;  // negative: less

  // Most bytes ever allocated at once.
  int64_t most_allocated() const noexcept {
    return std::max(most_allocated_before, allocated_bytes.peak);
  }

  MemoryStats read() const noexcept;  // without the limit
  void reset_peak() noexcept;         // peak := current, in every counter
  void reset_accumulated() noexcept;  // allocated := freed := 0, in every counter

 private:
  std::array<FastCounter*, 10> counters() noexcept;
};

}  // namespace hologram
