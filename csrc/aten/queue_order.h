// Work that a queue is given at once, without a place in a window.
#pragma once

#include <c10/macros/Macros.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "aten/block.h"
#include "atlas/channels.h"

namespace hologram::aten {

// Has a queue do work that reads or writes blocks, of which it writes those that are `written`: in
// the order of the queue, behind what is recorded on any of them. `submit` gives it to the queue
// and returns its ticket; none where the queue does no such work: false, and nothing is enqueued.
template <class Submit>
bool run_in_queue_order(Channel& channel, std::span<BlockState* const> used,
                        std::span<const Block* const> written, Submit&& submit) {
  channel.window.begin_use(used, FlushReason::kernel);
  const std::optional<Ticket> ticket = submit(*channel.queue);
  if (!ticket) return false;
  channel.window.end_use(used, *ticket);
  // Whoever sees the memory may look at any time.
  const auto shared = [](const Block* block) { return is_shared(*block); };
  if (C10_UNLIKELY(std::ranges::any_of(written, shared))) channel.queue->wait(*ticket);
  return true;
}
template <class Submit>
bool run_in_queue_order(Channel& channel, std::span<BlockState* const> used, const Block& written,
                        Submit&& submit) {
  return run_in_queue_order(channel, used, std::array<const Block*, 1>{&written},
                            std::forward<Submit>(submit));
}

}  // namespace hologram::aten
