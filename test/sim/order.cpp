#include "order.h"

#include <algorithm>

namespace sim {

using hologram::Fence;
using hologram::Ticket;

Order& Order::instance() {
  static auto* order = new Order();
  return *order;
}

Order::Clock Order::at(hologram::Queue* queue, Ticket ticket) const {
  const auto found = clocks_.find(queue);
  if (found == clocks_.end()) return {};
  const auto& history = found->second;
  const auto later = std::ranges::upper_bound(history, ticket, {}, [](auto& e) { return e.first; });
  return later == history.begin() ? Clock{} : std::prev(later)->second;
}

std::optional<std::string> Order::add(hologram::Queue* queue, Ticket ticket, Text what,
                                      const std::vector<Range>& ranges) {
  const std::lock_guard guard(mutex_);
  std::erase_if(uses_, [](const Use& use) { return use.queue->done(use.ticket); });
  const Clock clock = at(queue, ticket);
  std::optional<std::string> error;
  for (const Use& use : uses_) {
    if (use.queue == queue || error) continue;
    const auto seen = clock.find(use.queue);
    if (seen != clock.end() && seen->second >= use.ticket) continue;
    for (const Range& range : ranges) {
      if ((range.written || use.range.written) && range.begin < use.range.end &&
          use.range.begin < range.end) {
        error =
            what() + " and " + use.what() + ", of another queue, touch the same memory in no order";
        break;
      }
    }
  }
  for (const Range& range : ranges) uses_.push_back({queue, ticket, range, what});
  return error;
}

void Order::wait(hologram::Queue* queue, Ticket ticket, const Fence& fence) {
  const std::lock_guard guard(mutex_);
  Clock clock = at(queue, ticket);
  const auto reach = [&](hologram::Queue* other, Ticket its) {
    auto& known = clock[other];
    known = std::max(known, its);
  };
  reach(fence.queue, fence.ticket);
  for (const auto& [other, its] : at(fence.queue, fence.ticket)) reach(other, its);
  clocks_[queue].emplace_back(ticket, std::move(clock));
}

}  // namespace sim
