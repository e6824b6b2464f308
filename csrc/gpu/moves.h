// Launches of what moves elements without computing with them, and of what adds them up where
// indices say: by kernels that are written by hand (gpu/dialect/moves.h), for any strides.
//
// Addresses are the device's. Bits are moved as they are, so of a dtype only the bytes count. All
// functions are thread-safe, make no launch where there is nothing to do, and throw Error for more
// than 8 dimensions that do not join, for tensors that do not fit each other, and for more blocks
// than a launch can have. The kernels live as long as the program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atlas/dtype.h"
#include "gpu/launch.h"

namespace hologram::gpu {

// Strided memory; sizes and strides in elements, as many of the ones as of the others. The address
// is that of the element at 0, which is a multiple of its bytes, 8 being enough for 16.
struct Tensor {
  void* address = nullptr;
  std::vector<int64_t> sizes, strides;
};

// Of the same sizes; a stride of `from` may be 0. No element of `to` is one of `from`.
Launches copy(const Target& target, size_t bytes, const Tensor& to, const Tensor& from);
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

// ---- indices ----

// What was the first index out of range, in a launch.
struct BadIndex {
  uint64_t position;  // in the index tensor, row by row; 2^32 - 2 stands for all beyond it, too
  int64_t index;      // of those beyond it, of any
  unsigned which;     // of several index tensors
};
// Where launches say it: so many words of device memory, which are zero before the first of them.
// An element that a bad index is for is neither read nor written.
inline constexpr size_t kRecordWords = 4;
std::optional<BadIndex> bad_index(std::span<const uint32_t, kRecordWords> record);
// As torch says it of index, index_put, gather, scatter, index_add, index_fill and their like; and
// of index_select and embedding, whatever the index.
std::string bad_index_text(int64_t index, size_t dimension, int64_t size);
inline constexpr const char* kBadRowText = "index out of range in self";

// A tensor of indices, of 32 or 64 bits.
struct Indices {
  Tensor tensor;
  bool is_long = true;
};
// torch's advanced indexing: for each dimension of a tensor, the indices along it, or all of it
// (none). Index tensors are broadcast to one size. What is indexed has their dimensions where the
// first one of the tensor's was, or in front where these are not next to each other, and the rest.
struct Indexing {
  std::vector<std::optional<Indices>> along;
  bool wraps = true;  // an index less than 0 counts from the end
};

// to = from[indexing]. index_select and embedding are this with one tensor of indices; no element
// of `to` is one of `from`.
Launches index(const Target& target, size_t bytes, const Tensor& to, const Tensor& from,
               const Indexing& indexing, uint32_t* record);
// to[indexing] = from. Of several elements for one place it is the last. index_copy and index_fill
// are this with one tensor of indices, the latter with strides of 0 in `from`.
Launches index_put(const Target& target, size_t bytes, const Tensor& to, const Indexing& indexing,
                   const Tensor& from, uint32_t* record);

// How torch's CPU kernels add to a half dtype: index_put, embedding_dense_backward and index_add of
// one dimension round each sum; scatter_add, and index_add of several dimensions, add in f32 and
// round once.
enum class Rounding : uint8_t { each, once };
// to[indexing] += from, in the order of the positions of indices, as a CPU does it one by one.
// `left_out`: of this index (padding_idx of embeddings) nothing is added. Complex dtypes are
// refused.
Launches index_add(const Target& target, DType dtype, Rounding rounding, const Tensor& to,
                   const Indexing& indexing, const Tensor& from, uint32_t* record,
                   std::optional<int64_t> left_out = {});

// to[..., i, ...] = from[..., indices[..., i, ...], ...] along a dimension, for all of `indices`.
Launches gather(const Target& target, size_t bytes, const Tensor& to, const Tensor& from,
                size_t dimension, const Indices& indices, uint32_t* record);
// to[..., indices[..., i, ...], ...] = from[..., i, ...], of several the last.
Launches scatter(const Target& target, size_t bytes, const Tensor& to, size_t dimension,
                 const Indices& indices, const Tensor& from, uint32_t* record);
Launches scatter_add(const Target& target, DType dtype, Rounding rounding, const Tensor& to,
                     size_t dimension, const Indices& indices, const Tensor& from,
                     uint32_t* record);

// The kernels: of one name for each type of elements. Their texts are compiled as those of groups
// are, alone, all at once, or with these; what needs f64 is not there where there is none.
struct MoveKernels {
  const char* name;
  std::vector<const Kernel*> kernels;
};
std::vector<MoveKernels> move_kernels();
// Text to compile, of all of them.
std::string moves_library_text();

}  // namespace hologram::gpu
