// Launches of the package's own kernels for Metal alone (metal/native).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "atlas/dtype.h"

namespace hologram::metal {

// Of a kernel with so many addresses at most.
template <class ItsParameters, size_t kMostAddresses>
struct NativeLaunch {
  std::string kernel, text;  // its name, and the text that has it
  std::array<const void*, kMostAddresses> addresses;
  uint32_t count;  // of these
  ItsParameters parameters;
  uint32_t blocks, threads;
};

// The dtypes that there are kernels for; dtype_name() is a part of their names.
constexpr bool is_native(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// As parameters have sizes and strides, none of which is negative.
constexpr uint64_t number(int64_t value) noexcept {
  return static_cast<uint64_t>(value);
}

}  // namespace hologram::metal
