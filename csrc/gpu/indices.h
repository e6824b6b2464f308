// Launches of what moves elements where indices say, or adds them up there: as those of moves.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atlas/dtype.h"
#include "gpu/launch.h"
#include "gpu/moves.h"

namespace hologram::gpu {

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

}  // namespace hologram::gpu
