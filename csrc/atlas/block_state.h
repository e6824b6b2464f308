// What the core knows of a block of memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "atlas/fence.h"
#include "atlas/frame.h"

namespace hologram {

class Window;

// Where a program that is being recorded has a block, or a temporary that is no block.
struct SlotState {
  uint16_t slot = 0;
  int32_t last_access = -1;  // of the program to it
  int32_t index = -1;        // of IndexedAccesses, once its accesses are many
};

// What the core knows of the memory of a storage; whoever owns the memory derives from it.
struct BlockState {
  virtual ~BlockState() = default;
  // Gives the memory back to its pool; the object lives on.
  virtual void give_back_memory() noexcept = 0;
  // The owner is done with the memory, which stays until the window has: it counts as free.
  virtual void retire_memory() noexcept {}

  char* data = nullptr;
  size_t bytes = 0;
  // The last program that touches it, 0 for none; `window` and `place` are valid for that one. Of
  // the windows of a device only one has the block in a program that is not submitted.
  std::atomic<uint64_t> program{0};
  std::atomic<Window*> window{nullptr};
  // Of the last submission that touches the memory and was not finished at once, also in the name
  // of an earlier block. All earlier ones come before it, those of other queues too.
  SharedFence last_use;
  SlotState place;
  // Allocated while the window's program of this number was open.
  uint64_t born = 0;
  // Its values could not be computed. `failure` says why and is guarded by the window's lock.
  std::atomic<bool> failed{false};
  std::shared_ptr<const Failure> failure;
};

}  // namespace hologram
