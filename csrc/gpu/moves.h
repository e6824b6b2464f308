// Launches of what moves elements without computing with them, by kernels that are written by hand
// (gpu/dialect/moves.h), for any strides; indices.h has those of which indices say where.
//
// Addresses are the device's. Bits are moved as they are, so of a dtype only the bytes count. All
// functions are thread-safe, make no launch where there is nothing to do, and throw Error for more
// than 8 dimensions that do not join, for tensors that do not fit each other, and for more blocks
// than a launch can have. The kernels live as long as the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atlas/strided_copy.h"
#include "gpu/launch.h"

namespace hologram::gpu {

// Strided memory; sizes and strides in elements, as many of the ones as of the others. The address
// is that of the element at 0, which is a multiple of its bytes, 8 being enough for 16.
struct Tensor {
  void* address = nullptr;
  std::vector<int64_t> sizes, strides;
};

// That a launch knows: as many fit always, more where they join.
inline constexpr size_t kMostMoveDimensions = 8;

// Of the same sizes; a stride of `from` may be 0. No element of `to` is one of `from`.
Launches copy(const Target& target, size_t bytes, const Tensor& to, const Tensor& from);
// Of at most kMostMoveDimensions dimensions.
Launches copy(const Target& target, const StridedCopy& copy);
// `element`: its bytes, on the host.
Launches fill(const Target& target, size_t bytes, const Tensor& to, const void* element);
// Where `mask`, of bytes and of the same sizes, is not 0.
Launches masked_fill(const Target& target, size_t bytes, const Tensor& to, const Tensor& mask,
                     const void* element);

// `before` says how far `from` begins behind `to`, for each dimension: less than 0 leaves elements
// out. Beyond `from` there is `element` (constant), what torch's modes of the same names put there
// (reflect needs less than from's size on either side, circular no more), or its nearest element.
enum class Pad : uint8_t { constant, reflect, replicate, circular };
Launches pad(const Target& target, size_t bytes, const Tensor& to, const Tensor& from,
             std::span<const int64_t> before, Pad mode, const void* element);

// Inputs one after another along a dimension.
Launches cat(const Target& target, size_t bytes, const Tensor& to, std::span<const Tensor> inputs,
             size_t dimension);

// The kernels, with those of indices: of one name for each type of elements. Their texts are
// compiled as those of groups are, alone, all at once, or with these.
struct MoveKernels {
  const char* name;
  std::vector<const Kernel*> kernels;
};
std::vector<MoveKernels> move_kernels();
// Text to compile, of all of them.
std::string moves_library_text();

}  // namespace hologram::gpu
