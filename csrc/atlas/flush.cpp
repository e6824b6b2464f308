#include "atlas/flush.h"

#include <algorithm>
#include <atomic>
#include <iterator>

namespace hologram {

uint64_t next_flush_number() noexcept {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

const char* flush_reason_name(FlushReason reason) noexcept {
  static constexpr const char* names[] = {"read",   "user",   "synchronize", "full", "eager",
                                          "event",  "memory", "exit",        "mode", "exported",
                                          "kernel", "stream", "step"};
  static_assert(std::size(names) == kFlushReasons);
  return names[static_cast<size_t>(reason)];
}

WindowStats& WindowStats::operator+=(const WindowStats& other) noexcept {
  recorded += other.recorded;
  executed += other.executed;
  failed += other.failed;
  passes += other.passes;
  calls += other.calls;
  stores_elided += other.stores_elided;
  plan_hits += other.plan_hits;
  plan_misses += other.plan_misses;
  plan_evictions += other.plan_evictions;
  plan_bytes = std::max(plan_bytes, other.plan_bytes);
  bytes_moved += other.bytes_moved;
  for (size_t i = 0; i < flushes.size(); ++i) flushes[i] += other.flushes[i];
  return *this;
}

}  // namespace hologram
