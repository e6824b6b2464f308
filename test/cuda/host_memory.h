// Memory of the host that the driver gives: pages of its own.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "cuda/driver.h"

namespace simulated_cuda {

class HostMemory {
 public:
  static HostMemory& instance();
  hologram::cuda::Status allocate(void** memory, size_t bytes);
  // What is freed faults, where a copy still goes there.
  hologram::cuda::Status free(void* memory);
  bool holds(const void* address);

 private:
  std::mutex mutex_;
  std::map<char*, size_t> all_;
};

}  // namespace simulated_cuda
