// What a program finds wrong with the numbers that it is given, such as a class that there is not.
//
// Whether numbers are in range is seen when they are there, after the call that was given them has
// returned. So the program leaves the least and the greatest of them in two words of a block, and
// the queue copies these to the host behind the program. Whoever waits for the device next looks at
// them: the flush itself where nothing is left to wait for, as on the CPU, else Window::finish(),
// synchronize() or an event. What is wrong is raised once; the values of the program stay.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "atlas/fence.h"

namespace hologram {

class Backend;
struct BlockState;

// Numbers from 0 on, below a bound.
struct Check {
  BlockState* block;                  // with the least and the greatest, an int64 each
  std::shared_ptr<const void> owner;  // of the block
  const char* what;                   // a number is: "Target"
  const char* operation;
  int64_t bound;
  bool is_whole = false;  // `what` is the message, of a RuntimeError
};

// Of a device. Thread-safe.
class Checks {
 public:
  // `backend` outlives them.
  explicit Checks(Backend& backend) : backend_(backend) {}
  ~Checks();
  Checks(const Checks&) = delete;
  Checks& operator=(const Checks&) = delete;

  // Behind a program that the queue has been given. The ticket is that of the block's last use.
  Ticket add(Queue& queue, Ticket program, const Check& check);

  // Looks at those whose program is done, and raises the first of them that found something, as
  // Window::throw_failure does. Throws what Queue::wait does.
  void raise() {
    if (count_.load(std::memory_order_acquire) != 0) [[unlikely]]
      look();
  }

 private:
  struct Pending {
    Queue* queue;
    Ticket program, copied;
    int64_t* words;  // on the host
    Check check;     // without its block
  };
  static constexpr size_t kBytes = 2 * sizeof(int64_t);
  void look();

  Backend& backend_;
  std::mutex mutex_;
  std::vector<Pending> pending_;
  std::vector<int64_t*> free_;  // words
  std::atomic<size_t> count_{0};
};

}  // namespace hologram
