// Memory of a GPU: segments for the pools, and small pieces for what kernels read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/context.h"

namespace hologram::cuda {

// Segments as Backend::allocate_segment() promises them. Thread-safe.
class Segments {
 public:
  explicit Segments(const Gpu& gpu) : gpu_(gpu) {}
  void* allocate(size_t bytes) noexcept;
  void free(void* data) noexcept;

 private:
  const Gpu& gpu_;
  std::mutex mutex_;
  std::map<Address, Address> moved_;  // segments that do not begin where their memory does
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
  static size_t rounded(size_t bytes) noexcept { return (bytes + kUnit - 1) / kUnit * kUnit; }
  static constexpr size_t kUnit = 256;
  static constexpr size_t kChunk = size_t{1} << 20;

  const Gpu& gpu_;
  Stream stream_ = nullptr;  // copies wait for nothing else
  std::mutex mutex_;
  std::multimap<size_t, Address> free_;  // by bytes
};

}  // namespace hologram::cuda
