// Memory of a GPU: segments for the pools, and small pieces for what kernels read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "cuda/context.h"
#include "gpu/word_pool.h"

namespace hologram::cuda {

// As check() (context.h) of a call that wanted so many bytes. Throws OutOfMemory, Error.
void check_memory(Status status, size_t bytes, const char* call);

// Device memory of the current context, for what is no segment. Throws OutOfMemory, Error.
Address allocate(size_t bytes);

// Segments as Backend::allocate_segment() promises them. Thread-safe.
//
// The small ones, of which a new shape needs a few, lie side by side in memory that the driver is
// asked for at once: each question takes long.
class Segments {
 public:
  explicit Segments(const Gpu& gpu) : gpu_(gpu) {}
  void* allocate(size_t bytes) noexcept;
  void free(void* data) noexcept;

 private:
  // Bits of the segments in use.
  using Slots = uint32_t;
  static constexpr unsigned kSlots = 16;

  Address allocate_small();
  // False where it is no small one.
  bool free_small(Address segment);

  const Gpu& gpu_;
  std::mutex mutex_;
  std::map<Address, Address> moved_;  // segments that do not begin where their memory does
  std::map<Address, Slots> shared_;   // memory of small ones
};

// Memory of the host that copies read and write while it goes on. Thread-safe.
class HostMemory {
 public:
  explicit HostMemory(const Gpu& gpu) : gpu_(gpu) {}
  // Null where there is no more. Where the context is lost it is other memory of the host: that is
  // no reason to say that there is none, and the copy says what it is.
  void* allocate(size_t bytes) noexcept;
  void free(void* data) noexcept;

 private:
  const Gpu& gpu_;
  std::mutex mutex_;
  std::set<void*> others_;
};

// Words that kernels read, in device memory for as long as an owner wants them. Thread-safe.
class Constants {
 public:
  explicit Constants(const Gpu& gpu);
  ~Constants();
  Constants(const Constants&) = delete;
  Constants& operator=(const Constants&) = delete;

  // A copy in device memory, there on return. Throws OutOfMemory, Error.
  Address add(std::span<const uint32_t> words);
  // Kernels that read it have run.
  void remove(Address address, size_t words) noexcept;

 private:
  const Gpu& gpu_;
  Stream stream_ = nullptr;  // copies wait for nothing else
  std::mutex mutex_;
  gpu::WordPool pool_;
};

}  // namespace hologram::cuda
