#include "host_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "status.h"

namespace simulated_cuda {

using namespace hologram::cuda;

HostMemory& HostMemory::instance() {
  static auto* memory = new HostMemory();
  return *memory;
}

Status HostMemory::allocate(void** memory, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  void* const pages =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return kOutOfMemory;
  const std::lock_guard guard(mutex_);
  all_.emplace(static_cast<char*>(pages), bytes);
  *memory = pages;
  return kSuccess;
}

Status HostMemory::free(void* memory) {
  const std::lock_guard guard(mutex_);
  const auto found = all_.find(static_cast<char*>(memory));
  if (found == all_.end()) return kInvalidValue;
  ::munmap(memory, found->second);
  all_.erase(found);
  return kSuccess;
}

bool HostMemory::holds(const void* address) {
  const auto* const at = static_cast<const char*>(address);
  const std::lock_guard guard(mutex_);
  return std::ranges::any_of(
      all_, [&](const auto& part) { return part.first <= at && at < part.first + part.second; });
}

}  // namespace simulated_cuda
