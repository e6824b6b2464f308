#include "atlas/memory_counters.h"

namespace hologram {

void MemoryCounters::count_segment(PoolCounters& pool, size_t nbytes) noexcept {
  pool.segment.add(1);
  pool.reserved_bytes.add(static_cast<int64_t>(nbytes));
  segment.add(1);
  reserved_bytes.add(static_cast<int64_t>(nbytes));
  ++num_device_alloc;
}

void MemoryCounters::count_segment_end(PoolCounters& pool, size_t nbytes) noexcept {
  pool.segment.subtract(1);
  pool.reserved_bytes.subtract(static_cast<int64_t>(nbytes));
  segment.add(-1);
  reserved_bytes.add(-static_cast<int64_t>(nbytes));
  ++num_device_free;
}

void MemoryCounters::count_foreign(ptrdiff_t bytes) noexcept {
  for (FastCounter* counter : {&foreign_bytes, &requested_bytes}) {
    if (bytes >= 0) {
      counter->add(bytes);
    } else {
      counter->subtract(-bytes);
    }
  }
  allocated_bytes.add(bytes);
  reserved_bytes.add(bytes);
}

MemoryStats MemoryCounters::read() const noexcept {
  const PoolStats of_boundary = boundary.read(), of_linear = linear.read();
  const Counter foreign = foreign_bytes.read();
  const auto sum = [](const Level& level, const Counter& a, const Counter& b, const Counter& c) {
    return Counter{level.current, level.peak, a.allocated + b.allocated + c.allocated,
                   a.freed + b.freed + c.freed};
  };
  const Counter blocks = sum(allocation, of_boundary.allocation, of_linear.allocation, {});
  return {
      .allocation = blocks,
      .segment = sum(segment, of_boundary.segment, of_linear.segment, {}),
      .active = blocks,
      .allocated_bytes =
          sum(allocated_bytes, of_boundary.allocated_bytes, of_linear.allocated_bytes, foreign),
      .reserved_bytes =
          sum(reserved_bytes, of_boundary.reserved_bytes, of_linear.reserved_bytes, foreign),
      .requested_bytes = requested_bytes.read(),
      .foreign_bytes = foreign,
      .num_alloc_retries = num_alloc_retries,
      .num_ooms = num_ooms,
      .num_device_alloc = num_device_alloc,
      .num_device_free = num_device_free,
      .boundary = of_boundary,
      .linear = of_linear,
  };
}

std::array<FastCounter*, 10> MemoryCounters::counters() noexcept {
  return {&boundary.allocation,      &linear.allocation,
          &boundary.segment,         &linear.segment,
          &boundary.allocated_bytes, &linear.allocated_bytes,
          &boundary.reserved_bytes,  &linear.reserved_bytes,
          &requested_bytes,          &foreign_bytes};
}

void MemoryCounters::reset_peak() noexcept {
  most_allocated_before = most_allocated();
  for (FastCounter* counter : counters()) counter->peak = counter->current();
  for (Level* level : {&allocation, &allocated_bytes, &segment, &reserved_bytes}) {
    level->peak = level->current;
  }
}

void MemoryCounters::reset_accumulated() noexcept {
  for (FastCounter* counter : counters()) {
    counter->allocated_before = counter->allocated;
    counter->freed_before = counter->freed;
  }
  num_alloc_retries = num_ooms = num_device_alloc = num_device_free = 0;
}

}  // namespace hologram
