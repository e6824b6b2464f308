// What a device's memory says of itself: its counters, its segments and their blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace hologram
