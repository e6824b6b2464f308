// The kernels that a device has, for its plans (gpu/code.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/emit.h"

namespace hologram::gpu {

// Thread-safe. Functions throw Error.
class KernelStore {
 public:
  virtual ~KernelStore() = default;

  // What the device's runtime launches; null if there is none of this name.
  virtual void* find_if(const std::string& name) = 0;
  // Of a block of one, which registers may limit.
  virtual unsigned most_threads(void* /*function*/) const noexcept { return kMostBlockThreads; }

  // The program of a cold kernel in the device's memory, there on return. Throws OutOfMemory, too.
  virtual uint64_t add_program(std::span<const uint32_t> words) = 0;
  // Kernels that read it have run.
  virtual void remove_program(uint64_t program, size_t words) noexcept = 0;

  // Emitted kernels that there are none of: later there may be.
  virtual void want(const std::vector<const Kernel*>& kernels) = 0;
  // The same, where they have been compiled by an earlier process.
  virtual void look_for(const std::vector<const Kernel*>& kernels) = 0;
  virtual bool can_compile() const noexcept = 0;
  // Another number than before when there are more.
  virtual uint64_t compiled() const noexcept = 0;

 protected:
  static constexpr unsigned kMostBlockThreads = 1024;
};

}  // namespace hologram::gpu
