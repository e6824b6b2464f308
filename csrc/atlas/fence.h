// How far a queue has to come before something may be touched.
#pragma once

#include <cstdint>

#include "atlas/export.h"

namespace hologram {

class Queue;

// Of one queue: tickets grow with each submission. 0 is done from the start.
using Ticket = uint64_t;

// Memory that has a fence is in use by what was submitted up to the ticket. Work of the same queue
// may use it at once, since it comes later; everybody else has to wait.
struct Fence {
  Queue* queue = nullptr;
  Ticket ticket = 0;

  bool outstanding() const noexcept { return ticket != 0 && !reached(); }
  // Raises what Queue::wait does.
  void wait() const {
    if (ticket != 0) [[unlikely]]
      reach();
  }

 private:
  bool reached() const noexcept;
  void reach() const;
};

}  // namespace hologram
