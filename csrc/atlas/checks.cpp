#include "atlas/checks.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "atlas/backend.h"
#include "atlas/block_state.h"
#include "atlas/error.h"
#include "atlas/window.h"

namespace hologram {

Checks::~Checks() {
  for (const Pending& its : pending_) free_.push_back(its.words);
  for (int64_t* const words : free_) backend_.free_host(words, kBytes);
}

Ticket Checks::add(Queue& queue, Ticket program, const Check& check) {
  const std::lock_guard guard(mutex_);
  pending_.reserve(pending_.size() + 1);
  free_.reserve(pending_.size() + 1);
  int64_t* words = nullptr;
  if (free_.empty()) {
    words = static_cast<int64_t*>(backend_.allocate_host(kBytes));
    if (words == nullptr) throw OutOfMemory(kBytes, 0, 0, 0);
  } else {
    words = free_.back();
    free_.pop_back();
  }
  // In range, should the copy fail.
  words[0] = words[1] = 0;
  Ticket copied = 0;
  try {
    copied = queue.copy(words, check.block->data, kBytes, Direction::to_host);
  } catch (...) {
    free_.push_back(words);
    throw;
  }
  pending_.push_back({&queue, program, copied, words, check});
  pending_.back().check.block = nullptr;
  pending_.back().check.owner.reset();
  count_.store(pending_.size(), std::memory_order_release);
  return copied;
}

void Checks::look() {
  std::optional<Failure> found;
  {
    const std::lock_guard guard(mutex_);
    // Those of a queue are in its order: behind one that is not done none is.
    std::vector<const Queue*> not_done;
    for (size_t i = 0; i < pending_.size();) {
      const Pending& its = pending_[i];
      const bool is_behind = std::ranges::find(not_done, its.queue) != not_done.end();
      if (is_behind || !its.queue->done(its.program)) {
        if (!is_behind) not_done.push_back(its.queue);
        ++i;
        continue;
      }
      its.queue->wait(its.copied);
      const auto [least, greatest] = std::pair(its.words[0], its.words[1]);
      if (!found && (least < 0 || greatest >= its.check.bound)) {
        const int64_t number = greatest >= its.check.bound ? greatest : least;
        const std::string what = its.check.what, operation = its.check.operation;
        if (its.check.is_whole) {
          found = Failure{what + " (" + operation + ")", false, false};
        } else {
          found = Failure{what + " " + std::to_string(number) + " is out of bounds. (" + operation +
                              ": 0 to " + std::to_string(its.check.bound - 1) + ")",
                          false, true};
        }
      }
      free_.push_back(its.words);
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      count_.store(pending_.size(), std::memory_order_release);
    }
  }
  if (found) Window::throw_failure(*found);
}

}  // namespace hologram
