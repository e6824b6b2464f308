// How far a queue has to come before something may be touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "atlas/export.h"

namespace hologram {

class Queue;

// Of one queue: tickets grow with each submission. 0 is done from the start.
using Ticket = uint64_t;

// Memory that has a fence is in use by what was submitted up to the ticket. Work of the same queue
// may use it at once, since it comes later; another queue has to wait for it (Queue::wait_for), and
// so has the host.
struct Fence {
  Queue* queue = nullptr;
  Ticket ticket = 0;

  bool outstanding() const noexcept { return ticket != 0 && !reached(); }
  // Whether it may be outstanding, as far as is known: the device is not asked, which may take as
  // long as a launch.
  bool may_be_outstanding() const noexcept { return ticket != 0 && !known_reached(); }
  // Raises what Queue::wait does.
  void wait() const {
    if (ticket != 0) [[unlikely]]
      reach();
  }

  // The same for the host, which looks at what programs have found (atlas/checks.h).
  void finish() const {
    if (ticket != 0) [[unlikely]]
      reach_and_look();
  }

  friend bool operator==(const Fence&, const Fence&) = default;

 private:
  bool reached() const noexcept;
  bool known_reached() const noexcept;
  void reach() const;
  void reach_and_look() const;
};

// Fences of several queues, of each the last.
class Fences {
 public:
  void add(const Fence& fence) {
    if (fence.ticket == 0) return;
    for (Fence& known : last_) {
      if (known.queue != fence.queue) continue;
      if (known.ticket < fence.ticket) known.ticket = fence.ticket;
      return;
    }
    last_.push_back(fence);
  }
  // Whether whoever has come as far as these has reached the fence.
  bool covers(const Fence& fence) const noexcept {
    if (fence.ticket == 0) return true;
    for (const Fence& known : last_) {
      if (known.queue == fence.queue) return known.ticket >= fence.ticket;
    }
    return false;
  }
  void drop_reached() {
    std::erase_if(last_, [](const Fence& fence) { return !fence.outstanding(); });
  }
  void clear() noexcept { last_.clear(); }
  void reserve(size_t queues) { last_.reserve(queues); }

  size_t size() const noexcept { return last_.size(); }
  auto begin() const noexcept { return last_.begin(); }
  auto end() const noexcept { return last_.end(); }

 private:
  std::vector<Fence> last_;
};

// A fence that is changed by one thread at a time and read by any.
class SharedFence {
 public:
  bool empty() const noexcept { return ticket_.load(std::memory_order_acquire) == 0; }

  Fence load() const noexcept {
    while (true) {
      const Ticket ticket = ticket_.load(std::memory_order_acquire);
      if (ticket == 0) return {};
      Queue* const queue = queue_.load(std::memory_order_acquire);
      // Whoever sees another queue than the ticket's sees here that the ticket has changed, too.
      if (ticket != kChanging && ticket_.load(std::memory_order_relaxed) == ticket) {
        return {queue, ticket};
      }
    }
  }

  void store(const Fence& fence) noexcept {
    if (queue_.load(std::memory_order_relaxed) != fence.queue) {
      ticket_.store(kChanging, std::memory_order_relaxed);
      queue_.store(fence.queue, std::memory_order_release);
    }
    ticket_.store(fence.ticket, std::memory_order_release);
  }
  void clear() noexcept { ticket_.store(0, std::memory_order_release); }

 private:
  static constexpr Ticket kChanging = ~Ticket{0};
  std::atomic<Ticket> ticket_{0};
  std::atomic<Queue*> queue_{nullptr};
};

}  // namespace hologram
