// Copies, within the device and to and from the CPU.
#include "aten/precompiled.h"

#include <ATen/ops/_copy_from_and_resize_native.h>
#include <ATen/ops/copy.h>
#include <torch/library.h>

#include <cstring>

#include "aten/block.h"
#include "aten/compat.h"
#include "aten/delegate.h"
#include "aten/record.h"
#include "aten/report.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// Above this many bytes torch's parallel copy is faster than one thread's memcpy.
constexpr size_t kSmallCopyBytes = 128 * 1024;

bool on_host_memory(const Tensor& tensor) {
  return tensor.device().type() == kHologram || tensor.device().is_cpu();
}

// Whether the bytes of src, in order, are the bytes of self, in order.
bool is_plain_copy(const Tensor& self, const Tensor& src) {
  constexpr c10::DispatchKeySet special({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                         c10::DispatchKey::ZeroTensor, c10::DispatchKey::Quantized,
                                         c10::DispatchKey::NestedTensor, c10::DispatchKey::Sparse,
                                         c10::DispatchKey::SparseCsr});
  const auto* to = self.unsafeGetTensorImpl();
  const auto* from = src.unsafeGetTensorImpl();
  return !(to->key_set() | from->key_set()).has_any(special) && to->dtype() == from->dtype() &&
         to->is_contiguous() && from->is_contiguous() && to->sizes() == from->sizes() &&
         !has_names(to) && !has_names(from);
}

// Of a tensor that stands for another one; the aliases below say so.
bool lacks_memory(const Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->data() == nullptr;
}

// Which is torch's to refuse.
bool shares_a_part(const Tensor& self, const Tensor& src, size_t nbytes) {
  const auto to = reinterpret_cast<uintptr_t>(self.unsafeGetTensorImpl()->data());
  const auto from = reinterpret_cast<uintptr_t>(src.unsafeGetTensorImpl()->data());
  if (to == from) return self.strides() != src.strides();
  return to < from + nbytes && from < to + nbytes;
}

at::Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  static auto& counter = op_counter("aten::copy_");
  if (C10_LIKELY(on_host_memory(self) && on_host_memory(src))) {
    if (record_copy(self, src)) {
      note_native(counter);
      return self;
    }
    const size_t nbytes = static_cast<size_t>(self.numel()) * self.element_size();
    if (C10_LIKELY(nbytes <= kSmallCopyBytes && is_plain_copy(self, src) &&
                   !shares_a_part(self, src, nbytes) &&
                   (nbytes == 0 || !(lacks_memory(self) || lacks_memory(src))))) {
      note_native(counter);
      if (nbytes != 0) {
        synchronize_storage(self.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl());
        synchronize_storage(src.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl());
        // memmove: onto itself.
        std::memmove(self.unsafeGetTensorImpl()->mutable_data(), src.unsafeGetTensorImpl()->data(),
                     nbytes);
      }
      return self;
    }
  }
  if (C10_UNLIKELY(src._is_zerotensor())) {
    return self.zero_();  // it has no bytes to copy
  }
  // Anything else - casts, strides, other layouts, a third device - is torch's own copy on aliases.
  note_delegated(counter);
  AliasFrame frame;
  const auto alias = [&](const Tensor& tensor, bool written) {
    return tensor.device().type() == kHologram ? frame.argument(tensor, written) : tensor;
  };
  auto to = alias(self, true);
  {
    BelowAutograd below;
    to.copy_(alias(src, false), non_blocking);
  }
  frame.write_back();
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  auto to = dst;
  copy_(to, self, non_blocking);
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

}  // namespace

#define HOLOGRAM_COPY(key)                                  \
  TORCH_LIBRARY_IMPL(aten, key, m) {                        \
    m.impl("copy_", &copy_);                                \
    m.impl("_copy_from", &copy_from);                       \
    m.impl("_copy_from_and_resize", &copy_from_and_resize); \
  }
HOLOGRAM_COPY(PrivateUse1)
HOLOGRAM_COPY(QuantizedPrivateUse1)
HOLOGRAM_COPY(SparsePrivateUse1)
HOLOGRAM_COPY(SparseCsrPrivateUse1)
HOLOGRAM_COPY(NestedTensorPrivateUse1)

// Without these a copy of a conjugate or negative view resolves it by copying it, for ever.
#define HOLOGRAM_COPY_FALLTHROUGH(key)                                      \
  TORCH_LIBRARY_IMPL(aten, key, m) {                                        \
    m.impl("_copy_from", torch::CppFunction::makeFallthrough());            \
    m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough()); \
  }
HOLOGRAM_COPY_FALLTHROUGH(Conjugate)
HOLOGRAM_COPY_FALLTHROUGH(Negative)
HOLOGRAM_COPY_FALLTHROUGH(ZeroTensor)

}  // namespace hologram::aten
