// Memory that a program needs while it runs.
#pragma once

#include <cstddef>

#include "atlas/fence.h"

namespace hologram {

// Memory for values whose block is gone.
class Scratch {
 public:
  virtual ~Scratch() = default;
  // For work of the queue that all of it is for. Throws OutOfMemory.
  virtual void* allocate_scratch(size_t bytes) = 0;
  // May be in use up to the fence.
  virtual void free_scratch(void* memory, Fence fence) noexcept = 0;
};

}  // namespace hologram
