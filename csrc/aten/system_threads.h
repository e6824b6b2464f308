// The process's threads as the system lists them.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
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

}  // namespace hologram::aten
