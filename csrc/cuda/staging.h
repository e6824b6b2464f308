// Page-locked memory for what a queue copies to its device in its own name: a copy from other
// memory waits for all that the stream has to do.
#pragma once

#include <cstddef>
#include <deque>

#include "atlas/fence.h"
#include "cuda/context.h"

namespace hologram::cuda {

// Not synchronised: the queue calls it under its lock, with the context current.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Frees all, in the end: what has been copied out of it is done.
  void free() noexcept;

  // Memory that is the caller's up to a ticket, aligned to 256 bytes. Tickets do not fall. `done`
  // says, without waiting, up to which ticket all is done, and is asked only where the memory at
  // hand is used up. Null where the host has no more.
  template <class Done>
  std::byte* take(size_t bytes, Ticket ticket, Done&& done) {
    if (chunks_.empty() || bytes > chunks_.back().size - chunks_.back().used) {
      if (!make_room(bytes, chunks_.empty() ? 0 : done())) return nullptr;
    }
    Chunk& chunk = chunks_.back();
    std::byte* const memory = chunk.memory + chunk.used;
    chunk.used += (bytes + kUnit - 1) / kUnit * kUnit;
    chunk.ticket = ticket;
    return memory;
  }

 private:
  static constexpr size_t kUnit = 256;
  static constexpr size_t kChunk = size_t{256} << 10;

  struct Chunk {
    std::byte* memory;
    size_t size, used;  // multiples of kUnit
    Ticket ticket;      // of what uses it last
  };
  bool make_room(size_t bytes, Ticket done);

  std::deque<Chunk> chunks_;  // the last one is being filled, the first one is free first
};

}  // namespace hologram::cuda
