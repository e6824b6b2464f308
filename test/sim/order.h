// Whether the queues of the simulated devices touch the same memory in an order.
//
// On a real device two queues that touch the same memory with no wait between them give, now and
// then, wrong bits. Here it is an error that names both, each time.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atlas/queue.h"

namespace sim {

struct Range {
  const char* begin;
  const char* end;
  bool written;
};

class Order {
 public:
  using Text = std::function<std::string()>;
  static Order& instance();  // of all queues, outlives them

  // A task of a queue touches these ranges. Returns what is wrong with it, if anything is: that a
  // task of another queue touches one of them, one of the two writes, and nobody has waited.
  std::optional<std::string> add(hologram::Queue* queue, hologram::Ticket ticket, Text what,
                                 const std::vector<Range>& ranges);

  // From `ticket` on, what a queue does comes after a fence.
  void wait(hologram::Queue* queue, hologram::Ticket ticket, const hologram::Fence& fence);

 private:
  struct Use {
    hologram::Queue* queue;
    hologram::Ticket ticket;
    Range range;
    Text what;
  };
  // How far each other queue has come when a queue gets to a ticket.
  using Clock = std::map<hologram::Queue*, hologram::Ticket>;
  Clock at(hologram::Queue* queue, hologram::Ticket ticket) const;

  std::mutex mutex_;
  std::deque<Use> uses_;  // that may not be finished
  std::map<hologram::Queue*, std::vector<std::pair<hologram::Ticket, Clock>>> clocks_;
};

}  // namespace sim
