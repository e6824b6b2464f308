// Launches that are planned once for all runs of the same shape: each run puts its addresses and
// numbers in their places.
//
// What is planned depends on sizes, on strides and on how addresses are aligned, neither on where
// they point nor on the values of numbers. So it is planned with addresses and numbers that stand
// for those of a run, and it is kept where they turn up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "atlas/group.h"
#include "gpu/launch.h"

namespace hologram::gpu {

class Prepared {
 public:
  // Plans a run of the bindings that it is given. Launches of several bindings may be one after
  // another, with the same scratch memory.
  using Planner = std::function<Launches(std::span<const Binding>)>;

  // Of runs of a group that have the shape of these. Throws what the planner does.
  Prepared(const Group& group, std::span<const Binding> bindings, const Planner& planner);

  // Whether bindings of the same group have the same shape.
  bool fits(std::span<const Binding> bindings) const noexcept;

  // Where a run puts an address, of 8 bytes, or a number.
  struct Place {
    uint32_t at;      // bytes from the beginning; of an argument its number
    uint8_t bytes;    // of a number, of which it takes the first
    uint16_t index;   // of the binding's operands or immediates
    uint32_t member;  // the binding
  };
  // Bytes that are the same for all runs but for what has a place there.
  struct Bytes {
    std::vector<std::byte> bytes;
    std::vector<Place> addresses, numbers;

    // Writes those of a run.
    void write(std::byte* to, std::span<const Binding> bindings) const noexcept;
  };
  struct Launch {
    const Kernel* kernel;
    uint32_t blocks, threads;
    std::vector<Argument> arguments;
    std::vector<Place> addresses;  // that are arguments
    Bytes parameters, table;
    size_t table_offset;  // in the memory of all tables
  };
  std::span<const Launch> launches() const noexcept { return launches_; }
  size_t scratch_bytes() const noexcept { return scratch_bytes_; }
  bool has_counters() const noexcept { return has_counters_; }  // Argument::is_counters
  // Of all tables, of which each is at a multiple of kScratchAlignment.
  size_t table_bytes() const noexcept { return table_bytes_; }

  static void* address(const Place& place, std::span<const Binding> bindings) noexcept {
    return bindings[place.member].operands[place.index];
  }

 private:
  void add(gpu::Launch&& launch);
  void add_numbers(const Kernel& kernel, size_t at, Bytes& to) const;
  Place address_place(uintptr_t stand_in, size_t at) const;

  const size_t operands_, immediates_;
  std::vector<int64_t> shape_;
  std::vector<uint8_t> low_bits_;  // of each address
  std::vector<Launch> launches_;
  size_t scratch_bytes_ = 0, table_bytes_ = 0;
  bool has_counters_ = false;
};

}  // namespace hologram::gpu
