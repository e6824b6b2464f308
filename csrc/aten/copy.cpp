// Copies, within the device and to and from the CPU.
#include "aten/precompiled.h"

#include <ATen/ops/_copy_from_and_resize_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy.h>
#include <torch/library.h>

#include <cstring>
#include <optional>

#include "aten/alias.h"
#include "aten/below_autograd.h"
#include "aten/block.h"
#include "aten/compat.h"
#include "aten/delegate.h"
#include "aten/delegate_target.h"
#include "aten/memory_overlap.h"
#include "aten/operand.h"
#include "aten/past_autograd.h"
#include "aten/pinned.h"
#include "aten/prepare.h"
#include "aten/record.h"
#include "aten/report.h"
#include "aten/runtime.h"
#include "aten/transfer.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// Above this many bytes torch's parallel copy is faster than one thread's memcpy.
constexpr size_t kSmallCopyBytes = 128 * 1024;

bool on_device_or_cpu(const Tensor& tensor) {
  return tensor.device().type() == kHologram || tensor.device().is_cpu();
}

// Whether the bytes of src, in order, are the bytes of self, in order.
bool is_plain_copy(const Tensor& self, const Tensor& src) {
  const auto* to = self.unsafeGetTensorImpl();
  const auto* from = src.unsafeGetTensorImpl();
  return !(to->key_set() | from->key_set()).has_any(kSpecialKeys) && to->dtype() == from->dtype() &&
         to->is_contiguous() && from->is_contiguous() && to->sizes() == from->sizes() &&
         !has_names(to) && !has_names(from);
}

// Of a tensor that stands for another one; the aliases below say so.
bool lacks_memory(const Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->data() == nullptr;
}

// The device that a copy is counted for.
c10::DeviceIndex device_of(const Tensor& self, const Tensor& src) {
  return (self.device().type() == kHologram ? self : src).device().index();
}

// Copies the bytes of a plain copy, of which one side is on a device whose memory the host cannot
// touch.
void transfer(Tensor& self, const Tensor& src, size_t nbytes, bool non_blocking) {
  if (nbytes == 0 || self.unsafeGetTensorImpl()->data() == src.unsafeGetTensorImpl()->data())
    return;
  auto* const to = self.unsafeGetTensorImpl();
  auto* const from = src.unsafeGetTensorImpl();
  const auto storage = [](c10::TensorImpl* tensor) {
    return tensor->unsafe_storage().unsafeGetStorageImpl();
  };
  // Of other memory nobody knows how long it lives.
  const auto until = [&](const void* host) {
    return non_blocking && is_pinned_pointer(host) ? Until::enqueued : Until::done;
  };
  if (self.device().is_cpu()) {
    const Until end = until(to->mutable_data());
    read_storage(storage(from), extent_of(src).begin, nbytes, to->mutable_data(), end);
    if (end == Until::enqueued) keep_until_done(storage(to), src.device().index());
  } else if (src.device().is_cpu()) {
    const Until end = until(from->data());
    write_storage(storage(to), extent_of(self).begin, nbytes, from->data(), end);
    if (end == Until::enqueued) keep_until_done(storage(from), self.device().index());
  } else {
    copy_storage(storage(to), extent_of(self).begin, storage(from), extent_of(src).begin, nbytes);
  }
}

// The vendor's copy of page-locked memory may not have been made yet.
void keep_if_pinned(const Tensor& self, const Tensor& src) {
  const Tensor& host = self.device().is_cpu() ? self : src;
  if (!host.device().is_cpu() || !host.has_storage() || target_of(device_of(self, src)).is_cpu()) {
    return;
  }
  c10::StorageImpl* const storage = host.storage().unsafeGetStorageImpl();
  // The vendor's allocator has been told by its copy.
  if (is_own_pinned_pointer(storage->data())) keep_until_done(storage, device_of(self, src));
}

bool is_host_memory(const Tensor& tensor) {
  return tensor.device().is_cpu() || is_host_addressable(tensor.device().index());
}

at::Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  static auto& counter = op_counter("aten::copy_");
  if (C10_LIKELY(on_device_or_cpu(self) && on_device_or_cpu(src))) {
    if (record_copy(self, src)) {
      note_native(counter);
      return self;
    }
    const size_t nbytes = static_cast<size_t>(self.numel()) * self.element_size();
    const bool on_host = is_host_memory(self) && is_host_memory(src);
    if (C10_LIKELY((nbytes <= kSmallCopyBytes || !on_host) && is_plain_copy(self, src) &&
                   !overlaps(self.unsafeGetTensorImpl(), src.unsafeGetTensorImpl()) &&
                   (nbytes == 0 || !(lacks_memory(self) || lacks_memory(src))))) {
      note_native(counter);
      if (C10_UNLIKELY(!on_host)) {
        transfer(self, src, nbytes, non_blocking);
      } else if (nbytes != 0) {
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
  if (copy_strided(self, src)) {
    note_native(counter);
    return self;
  }
  // Casts, strides that differ from the source's on the host, and sizes that are expanded.
  if (self.device() == src.device() && is_plain_strided(self.unsafeGetTensorImpl()) &&
      is_plain_strided(src.unsafeGetTensorImpl())) {
    static const OperatorDelegate delegate("aten::copy_", "");
    delegate.run(self, src, non_blocking);
    return self;
  }
  // Anything else - other layouts, a third device - is torch's own copy on aliases. Between a
  // device and that of its vendor it is a copy on the latter.
  note_delegated(counter, device_of(self, src));
  // CUDA's copy between it and the host makes a view with gaps dense first, which resolves its
  // bits, and then has them once more. To resolve them is a copy on the device of the view.
  const auto is_vendors = [](const Tensor& tensor) {
    return tensor.device().type() == kHologram && !target_of(tensor.device().index()).is_cpu();
  };
  const bool crosses = self.device() != src.device() && (is_vendors(self) || is_vendors(src));
  const Tensor from = crosses ? src.resolve_conj().resolve_neg() : src;
  AliasFrame frame;
  const auto alias = [&](const Tensor& tensor, bool written) {
    return tensor.device().type() == kHologram ? frame.argument(tensor, written) : tensor;
  };
  auto to = alias(self, true);
  {
    BelowAutograd below;
    to.copy_(alias(from, false), non_blocking);
  }
  frame.write_back();
  if (non_blocking) keep_if_pinned(self, src);
  return self;
}

// A new tensor with the elements of another one, in its order of memory, by one instruction: torch
// composes it of an empty one and a copy. Undefined where recording cannot.
Tensor recorded_copy(const Tensor& self, at::ScalarType dtype,
                     std::optional<at::MemoryFormat> format) {
  const auto* impl = self.unsafeGetTensorImpl();
  const bool is_alike = !format || *format == at::MemoryFormat::Preserve;
  if (!is_plain_strided(impl) || !impl->is_non_overlapping_and_dense() || impl->numel() == 0 ||
      !group_dtype(self.scalar_type()) || !group_dtype(dtype) || operand_block(impl) == nullptr ||
      !(is_alike || (*format == at::MemoryFormat::Contiguous && impl->is_contiguous()))) {
    return {};
  }
  const c10::DeviceIndex device = impl->device().index();
  Window& window = current_window(device);
  const auto nbytes = static_cast<size_t>(impl->numel()) * c10::elementSize(dtype);
  Tensor copy = is_alike ? make_result(window, impl->sizes(), impl->strides(),
                                       c10::scalarTypeToTypeMeta(dtype), nbytes, device)
                         : make_result(window, impl->sizes(), dtype, device);
  return record_copy(copy, self) ? copy : Tensor();
}

Tensor clone(const Tensor& self, std::optional<at::MemoryFormat> format) {
  static auto& counter = op_counter("aten::clone");
  Tensor copy = recorded_copy(self, self.scalar_type(), format);
  if (!copy.defined()) return at::native::clone(self, format);
  note_native(counter);
  return copy;
}

Tensor to_copy(const Tensor& self, std::optional<at::ScalarType> dtype,
               std::optional<at::Layout> layout, std::optional<at::Device> device,
               std::optional<bool> pinned, bool non_blocking,
               std::optional<at::MemoryFormat> format) {
  static auto& counter = op_counter("aten::_to_copy");
  if (!pinned.value_or(false) && layout.value_or(at::kStrided) == at::kStrided &&
      device.value_or(self.device()) == self.device()) {
    if (Tensor copy = recorded_copy(self, dtype.value_or(self.scalar_type()), format);
        copy.defined()) {
      note_native(counter);
      return copy;
    }
  }
  return at::native::_to_copy(self, dtype, layout, device, pinned, non_blocking, format);
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
HOLOGRAM_COPY(QuantizedPrivateUse1)
HOLOGRAM_COPY(SparsePrivateUse1)
HOLOGRAM_COPY(SparseCsrPrivateUse1)
HOLOGRAM_COPY(NestedTensorPrivateUse1)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement("copy_", &copy_, m);
  implement("clone", &clone, m);
  implement("_to_copy", &to_copy, m);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

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
