// Plans that a device has met, so that a program that comes again is neither canonicalised nor
// compiled. Used by all windows of the device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "atlas/canonicalise.h"
#include "atlas/program.h"
#include "atlas/queue.h"

namespace hologram {

class PlanCache {
 public:
  explicit PlanCache(PlanCompiler& compiler) : compiler_(compiler) {}

  static constexpr size_t kMostPlans = 4096;
  static constexpr size_t kMostBytes = size_t{64} << 20;

  struct Found {
    bool hit = false;
    uint64_t evictions = 0;  // that it cost
  };
  // Makes `plan` the plan of a program, compiled where it is not here. `plan` is what the caller
  // got before: in a loop the program is often the same, which spares the hash and the lock. Throws
  // what compiling does.
  Found find(const Program& program, std::shared_ptr<const Compiled>& plan);

  // Compiles a program that is not to be met again.
  std::shared_ptr<const Compiled> compile(const Program& program) const {
    return std::make_shared<const Compiled>(compiler_, program);
  }

  // Gives back the memory of all plans. One that somebody holds goes with its last holder.
  void clear();
  size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

  // Used by the fork guard only.
  void lock_for_fork() noexcept { lock_.lock(); }
  void unlock_after_fork() noexcept { lock_.unlock(); }

 private:
  struct Entry {
    std::shared_ptr<const Compiled> compiled;
    size_t bytes;
  };
  const Entry* look_up(uint64_t hash, const Program& program) const;
  uint64_t make_room(size_t bytes);

  PlanCompiler& compiler_;
  std::mutex lock_;  // guards all below
  std::unordered_multimap<uint64_t, Entry> plans_;
  std::unordered_map<uint64_t, uint64_t> seen_;  // hashes seen once
  std::atomic<uint64_t> time_{0};                // counts what was looked up under the lock
  std::atomic<size_t> bytes_{0};
};

}  // namespace hologram
