// Memory that a program needs while it runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "atlas/fence.h"

namespace hologram {

class Queue;

// Memory for values whose block is gone.
class Scratch {
 public:
  virtual ~Scratch() = default;
  // For what is enqueued on `queue` from now on: it waits for whoever may use the memory still.
  // Throws OutOfMemory.
  virtual void* allocate_scratch(size_t bytes, Queue& queue) = 0;
  // How many bytes there can be in all.
  virtual size_t most_bytes() const noexcept { return SIZE_MAX; }
  // May be in use up to the fence.
  virtual void free_scratch(void* memory, Fence fence) noexcept = 0;
};

}  // namespace hologram
