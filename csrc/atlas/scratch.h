// Memory that a program needs while it runs.
#pragma once

#include <cstddef>

namespace hologram {

// Memory for values whose block is gone.
class Scratch {
 public:
  virtual ~Scratch() = default;
  virtual void* allocate_scratch(size_t bytes) = 0;  // throws OutOfMemory
  virtual void free_scratch(void* memory) noexcept = 0;
};

}  // namespace hologram
