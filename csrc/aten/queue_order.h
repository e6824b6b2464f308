// Work that a queue is given at once, without a place in a window.
#pragma once

#include <c10/macros/Macros.h>

#include <optional>
#include <span>

#include "aten/block.h"
#include "atlas/channels.h"

namespace hologram::aten {

// Has a queue do work that reads or writes blocks, one of which, `written`, it writes: in the order
// of the queue, behind what is recorded on any of them. `submit` gives it to the queue and returns
// its ticket; none where the queue does no such work: false, and nothing is enqueued.
template <class Submit>
bool run_in_queue_order(Channel& channel, std::span<BlockState* const> used, const Block& written,
                        Submit&& submit) {
  channel.window.begin_use(used, FlushReason::kernel);
  const std::optional<Ticket> ticket = submit(*channel.queue);
  if (!ticket) return false;
  channel.window.end_use(used, *ticket);
  // Whoever sees the memory may look at any time.
  if (C10_UNLIKELY(is_shared(written))) channel.queue->wait(*ticket);
  return true;
}

}  // namespace hologram::aten
