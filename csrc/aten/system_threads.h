// The process's threads as the system lists them.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>

namespace hologram::aten {

struct SystemThread {
  std::string name;  // its first 15 characters
  uint64_t started;  // clock ticks since the system's start
  int id;            // those of one tick are in this order
  bool is_running;   // or would, if a processor, or the page that it waits for, were there

  // Of the same thread at two times, whatever it does then.
  auto operator<=>(const SystemThread& other) const {
    return std::tie(name, started, id) <=> std::tie(other.name, other.started, other.id);
  }
  bool operator==(const SystemThread& other) const { return (*this <=> other) == 0; }
};

// Those whose names begin so, by name, then in the order in which they were started. A thread has
// the name of the one that starts it, until it is given another.
std::set<SystemThread> threads_named(std::string_view prefix);

// Asks every millisecond, for two seconds at most: longer no process's end is held up. Call without
// the GIL, which the threads that are waited for need.
template <class IsDone>
void wait_at_exit(IsDone&& is_done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (!is_done() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace hologram::aten
