// Flushes, for people to count and to look at: reasons, statistics, programs that were flushed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "atlas/canonicalise.h"
#include "atlas/program.h"

namespace hologram {

// Grows with each call, and from flush to flush of all windows.
uint64_t next_flush_number() noexcept;

enum class FlushReason : uint8_t {
  read,  // something outside the instruction stream touches a block of the program
  user,  // torch.hologram.flush()
  synchronize,
  full,  // too many instructions, too many bytes, or too many accesses of one memory
  eager,
  event,
  memory,  // an allocation found no room
  exit,
  mode,      // a thread records that treats denormal floats in another way
  exported,  // an instruction touches memory that somebody else may look at
  kernel,    // a vendor's kernel touches a block of the program, and is launched after it
  stream,    // another stream has to do with a block of the program
  step,      // an optimizer has taken a step
};
inline constexpr int kFlushReasons = 13;
const char* flush_reason_name(FlushReason reason) noexcept;

struct WindowStats {
  uint64_t recorded = 0;  // instructions
  uint64_t executed = 0;  // of these, instructions that ran
  uint64_t failed = 0;    // of these, instructions that could not run
  uint64_t passes = 0;    // traversals of an iteration space
  uint64_t calls = 0;     // programs' calls (atlas/call.h), of the passes none
  uint64_t stores_elided = 0;
  uint64_t plan_hits = 0, plan_misses = 0, plan_evictions = 0;
  uint64_t plan_bytes = 0;   // that the cache of plans holds now
  uint64_t bytes_moved = 0;  // loaded and stored by the groups
  std::array<uint64_t, kFlushReasons> flushes{};

  // Of two windows of a device, whose plans are the same ones.
  WindowStats& operator+=(const WindowStats& other) noexcept;
};

// A program that was flushed, for people to look at.
struct Flushed {
  uint64_t number;  // next_flush_number()
  FlushReason reason;
  std::string origin;                // where the flush came from
  Program program;                   // what was executed of it; without its blocks
  std::vector<std::string> origins;  // of its instructions
  Plan plan;
};

}  // namespace hologram
