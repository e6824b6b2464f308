// The operands of recorded calls: which ones there are, and the dtype, Block and view of each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "aten/block.h"
#include "aten/compat.h"
#include "aten/delegate_target.h"
#include "aten/runtime.h"
#include "atlas/dtype.h"
#include "atlas/group.h"
#include "atlas/window.h"

namespace hologram::aten {

// An operand of a pointwise operation.
struct Argument {
  Argument(const at::Tensor& t) : tensor(&t) {}            // NOLINT: converts on purpose
  Argument(const at::Scalar& number) : scalar(&number) {}  // NOLINT
  const at::Tensor* tensor = nullptr;
  const at::Scalar* scalar = nullptr;
};
inline constexpr size_t kMostArguments = 6;

// The dtypes that groups compute in and store.
inline std::optional<DType> group_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float: return DType::f32;
    case c10::ScalarType::Double: return DType::f64;
    case c10::ScalarType::Long: return DType::i64;
    case c10::ScalarType::Int: return DType::i32;
    case c10::ScalarType::BFloat16: return DType::bf16;
    case c10::ScalarType::Half: return DType::f16;
    case c10::ScalarType::Bool: return DType::b8;
    default: return std::nullopt;
  }
}

inline bool is_half(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16;
}

// The dtype in which a composite computes operands of `dtype`.
inline DType compute_dtype(DType dtype) {
  return is_half(dtype) ? DType::f32 : dtype;
}

inline constexpr c10::DispatchKeySet kSpecialKeys(
    {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
     c10::DispatchKey::Quantized, c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
     c10::DispatchKey::NestedTensor});

// A plain hologram tensor: strided, without conj or neg bit.
inline bool is_plain_strided(const c10::TensorImpl* tensor) {
  return tensor->device_type() == kHologram && !tensor->key_set().has_any(kSpecialKeys) &&
         !has_names(tensor) && !tensor->is_sparse() && tensor->has_storage();
}

// A 0-dim CPU tensor, which is copied by value.
inline bool is_cpu_number(const c10::TensorImpl* tensor) {
  return tensor->device().is_cpu() && tensor->dim() == 0 &&
         !tensor->key_set().has_any(kSpecialKeys);
}

// Whether tensors lie in memory the same way and fill it: their elements can be taken in its order.
inline bool same_and_dense(const c10::TensorImpl* a, const c10::TensorImpl* b) {
  return a->sizes() == b->sizes() && a->strides() == b->strides() &&
         a->is_non_overlapping_and_dense();
}

// The Block of a tensor's memory; null where there is none.
inline Block* operand_block(const c10::TensorImpl* tensor) {
  auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  Block* block = block_of(storage->data_ptr());
  if (C10_LIKELY(block != nullptr && block->twin.load(std::memory_order_acquire) == nullptr)) {
    return block->bytes != 0 ? block : nullptr;
  }
  return settled_block(storage);
}

inline View dense_view(Block* block, const c10::TensorImpl* tensor, DType dtype) {
  return {block, tensor->storage_offset() * static_cast<int64_t>(tensor->itemsize()), dtype,
          Layout::dense};
}

// Runs what has just been recorded on the views where it touches memory that somebody else may look
// at, so that he sees it, and it what he writes. The kernels, and with them the bits, are the same
// in any case. Asked after recording, see Window::fence().
inline void run_if_shared(Window& window, std::span<const View> views) {
  for (const View& view : views) {
    if (view.block == nullptr) continue;
    const auto& block = static_cast<const Block&>(*view.block);
    if (C10_UNLIKELY(is_shared(block))) {
      window.flush(FlushReason::exported);
      // Whoever sees the memory may look at any time, or in the order of the stream.
      if (!target_of(static_cast<c10::DeviceIndex>(block.device)).in_stream_order) {
        window.submitted().finish();
      }
      return;
    }
  }
}

}  // namespace hologram::aten
