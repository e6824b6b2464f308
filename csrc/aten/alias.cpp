#include "aten/precompiled.h"

#include "aten/alias.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DeviceGuard.h>

#include "aten/block.h"
#include "aten/foreign.h"
#include "aten/runtime.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

using c10::BackendComponent;
using c10::DispatchKey;
using c10::DispatchKeySet;

// What the layouts other than strided consist of.
at::SparseTensorImpl* sparse_impl(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}
at::SparseCsrTensorImpl* compressed_impl(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}
bool is_compressed(const at::Tensor& tensor) {
  return tensor.is_sparse_csr() || tensor.layout() == c10::kSparseCsc ||
         tensor.layout() == c10::kSparseBsr || tensor.layout() == c10::kSparseBsc;
}

void copy_bits(c10::TensorImpl* to, const c10::TensorImpl* from) {
  const auto keys = from->key_set();
  if (C10_UNLIKELY(keys.has_any(DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative})))) {
    to->_set_conj(keys.has(DispatchKey::Conjugate));
    to->_set_neg(keys.has(DispatchKey::Negative));
  }
  if (C10_UNLIKELY(from->is_wrapped_number())) {
    to->set_wrapped_number(true);
  }
}

// A tensor like this one on a storage of the other device: strided, quantized or nested.
at::Tensor storage_alias(const at::Tensor& tensor, c10::Storage storage, BackendComponent backend) {
  auto* from = tensor.unsafeGetTensorImpl();
  const DispatchKeySet backend_keys(backend);
  at::Tensor alias;
  if (C10_UNLIKELY(tensor.is_nested())) {
    // The shapes of a nested tensor are CPU tensors on every device.
    auto* nested = static_cast<at::native::NestedTensorImpl*>(from);
    return at::detail::make_tensor<at::native::NestedTensorImpl>(
        std::move(storage),
        DispatchKeySet({DispatchKey::NestedTensor, DispatchKey::AutogradNestedTensor}) |
            backend_keys,
        tensor.dtype(), nested->get_nested_sizes(), nested->get_nested_strides(),
        nested->get_storage_offsets());
  }
  if (C10_UNLIKELY(tensor.is_quantized())) {
    auto* quantized = static_cast<at::QTensorImpl*>(from);
    alias = at::detail::make_tensor<at::QTensorImpl>(
        std::move(storage), DispatchKeySet(DispatchKey::Quantized) | backend_keys, tensor.dtype(),
        quantized->quantizer());
  } else {
    alias = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), DispatchKeySet(DispatchKey::Dense) | backend_keys, tensor.dtype());
  }
  auto* to = alias.unsafeGetTensorImpl();
  to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  copy_bits(to, from);
  return alias;
}

template <class Member>
at::Tensor sparse_alias(const at::Tensor& tensor, DispatchKeySet keys, Member&& member) {
  auto* from = sparse_impl(tensor);
  const at::Tensor indices = member(from->indices());
  const at::Tensor values = member(from->values());
  // A sparse tensor is made on the current device of its type.
  const c10::OptionalDeviceGuard guard(
      values.device().is_cpu() ? std::nullopt : std::optional<c10::Device>(values.device()));
  auto alias = at::detail::make_tensor<at::SparseTensorImpl>(keys, tensor.dtype());
  auto* to = sparse_impl(alias);
  to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
  to->set_indices_and_values_unsafe(indices, values);
  to->set_coalesced(from->coalesced());
  return alias;
}

template <class Member>
at::Tensor compressed_alias(const at::Tensor& tensor, DispatchKeySet keys, c10::Device device,
                            Member&& member) {
  auto* from = compressed_impl(tensor);
  auto alias = at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, device, tensor.layout(),
                                                                tensor.dtype());
  compressed_impl(alias)->set_member_tensors(member(from->compressed_indices()),
                                             member(from->plain_indices()), member(from->values()),
                                             from->sizes());
  return alias;
}

}  // namespace

at::Tensor cpu_alias(const at::Tensor& tensor) {
  if (C10_LIKELY(tensor.layout() == c10::kStrided)) {
    if (C10_UNLIKELY(tensor._is_zerotensor())) {
      // Has no bytes to share.
      return at::_efficientzerotensor(tensor.sizes(), tensor.options().device(c10::kCPU));
    }
    const auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
    return storage_alias(
        tensor, c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(twin(storage))),
        BackendComponent::CPUBit);
  }
  const auto member = [](const at::Tensor& part) { return cpu_alias(part); };
  if (tensor.is_sparse()) {
    return sparse_alias(tensor, DispatchKeySet(DispatchKey::SparseCPU), member);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(is_compressed(tensor), "layout ", tensor.layout(),
                              " is not supported on the hologram device");
  return compressed_alias(tensor, DispatchKeySet(DispatchKey::SparseCsrCPU), c10::Device(c10::kCPU),
                          member);
}

at::Tensor shared_alias(const at::Tensor& tensor) {
  auto alias = cpu_alias(tensor);
  hologram::device(tensor.device().index()).lanes().fence();
  synchronize_tensor(tensor);
  return alias;
}

at::Tensor hologram_alias(const at::Tensor& cpu, c10::DeviceIndex device) {
  TORCH_CHECK(cpu.device().is_cpu(), "expected a CPU tensor, got one on ", cpu.device());
  TORCH_CHECK(cpu.layout() == c10::kStrided, "expected a strided tensor, got layout ",
              cpu.layout());
  auto storage = make_storage_over(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(cpu.storage().unsafeGetStorageImpl()),
      device);
  return storage_alias(cpu, std::move(storage), BackendComponent::PrivateUse1Bit);
}

const at::Tensor* AliasFrame::known_alias(const at::Tensor& tensor, bool written) {
  for (auto& known : arguments_) {
    if (known.tensor->is_same(tensor)) {
      known.written |= written;
      return &*known.alias;
    }
  }
  return nullptr;
}

at::Tensor AliasFrame::new_alias(const at::Tensor& tensor) {
  auto alias = cpu_alias(tensor);
  if (C10_UNLIKELY(tensor.layout() != c10::kStrided)) {
    map_members(tensor);
  }
  return alias;
}

at::Tensor AliasFrame::argument(at::Tensor tensor, bool written) {
  using Owned = c10::MaybeOwned<at::Tensor>;
  if (const auto* known = known_alias(tensor, written)) {
    return *known;
  }
  auto alias = new_alias(tensor);
  arguments_.push_back({Owned::owned(std::move(tensor)), Owned::owned(at::Tensor(alias)), written});
  return alias;
}

void AliasFrame::borrow(const at::Tensor& tensor, bool written, at::Tensor& alias) {
  using Owned = c10::MaybeOwned<at::Tensor>;
  if (const auto* known = known_alias(tensor, written)) {
    alias = *known;
    return;
  }
  alias = new_alias(tensor);
  arguments_.push_back({Owned::borrowed(tensor), Owned::borrowed(alias), written});
}

void AliasFrame::map_members(const at::Tensor& tensor) {
  const auto map = [&](const at::Tensor& part) {
    mapped_.push_back({twin(part.storage()), part.storage()});
  };
  if (tensor.is_sparse()) {
    map(sparse_impl(tensor)->indices());
    map(sparse_impl(tensor)->values());
  } else {
    map(compressed_impl(tensor)->compressed_indices());
    map(compressed_impl(tensor)->plain_indices());
    map(compressed_impl(tensor)->values());
  }
}

// Whether a storage of `nbytes` holds the elements of a tensor.
static bool fits(const c10::TensorImpl& tensor, size_t nbytes) {
  try {
    return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                            tensor.storage_offset()) <= nbytes;
  } catch (const c10::Error&) {
    return false;  // more bytes than there are numbers for
  }
}

void AliasFrame::write_back() {
  for (const auto& argument : arguments_) {
    if (!argument.written) {
      continue;
    }
    const at::Tensor& tensor = *argument.tensor;
    const at::Tensor& alias = *argument.alias;
    auto* to = tensor.unsafeGetTensorImpl();
    auto* from = alias.unsafeGetTensorImpl();
    if (C10_UNLIKELY(tensor.layout() != c10::kStrided)) {
      const auto device = tensor.device().index();
      const auto member = [&](const at::Tensor& part) { return result(part, device); };
      if (tensor.is_sparse()) {
        auto* sparse = sparse_impl(alias);
        sparse_impl(tensor)->raw_resize_(sparse->sparse_dim(), sparse->dense_dim(),
                                         sparse->sizes());
        sparse_impl(tensor)->set_indices_and_values_unsafe(member(sparse->indices()),
                                                           member(sparse->values()));
        sparse_impl(tensor)->set_coalesced(sparse->coalesced());
      } else {
        auto* compressed = compressed_impl(alias);
        compressed_impl(tensor)->set_member_tensors(
            member(compressed->compressed_indices()), member(compressed->plain_indices()),
            member(compressed->values()), compressed->sizes());
      }
      continue;
    }
    if (C10_UNLIKELY(tensor.is_nested() || tensor._is_zerotensor())) {
      continue;  // shapes of nested tensors are fixed; zero tensors cannot be written
    }
    adopt_twin_bytes(tensor.storage());
    if (C10_UNLIKELY(to->sizes() != from->sizes() || to->strides() != from->strides() ||
                     to->storage_offset() != from->storage_offset())) {
      // torch changes the size first and then fails to find the memory.
      if (fits(*from, tensor.storage().nbytes())) {
        to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
      }
    }
    if (C10_UNLIKELY(tensor.is_conj() != alias.is_conj())) {
      to->_set_conj(alias.is_conj());
    }
    if (C10_UNLIKELY(tensor.is_neg() != alias.is_neg())) {
      to->_set_neg(alias.is_neg());
    }
    if (C10_UNLIKELY(tensor.is_quantized())) {
      static_cast<at::QTensorImpl*>(to)->set_quantizer_(
          static_cast<at::QTensorImpl*>(from)->quantizer());
    }
  }
}

void AliasFrame::bump_versions() {
  for (const auto& known : arguments_) {
    if (known.written && !known.tensor->is_inference()) {
      known.tensor->unsafeGetTensorImpl()->bump_version();
    }
  }
}

const c10::Storage& AliasFrame::storage_for(const c10::Storage& cpu, c10::DeviceIndex device) {
  const auto* impl = cpu.unsafeGetStorageImpl();
  for (const auto& known : arguments_) {
    if (known.alias->layout() == c10::kStrided &&
        known.alias->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == impl) {
      return known.tensor->unsafeGetTensorImpl()->unsafe_storage();
    }
  }
  for (const auto& known : mapped_) {
    if (known.cpu == impl) {
      return known.hologram;
    }
  }
  mapped_.push_back({impl, make_storage_over(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                                                 cpu.unsafeGetStorageImpl()),
                                             device)});
  return mapped_.back().hologram;
}

at::Tensor AliasFrame::result(at::Tensor cpu, c10::DeviceIndex device) {
  if (!cpu.defined() || !cpu.device().is_cpu()) {
    return cpu;
  }
  for (const auto& known : arguments_) {
    if (known.alias->is_same(cpu)) {
      return *known.tensor;
    }
  }
  if (C10_LIKELY(cpu.layout() == c10::kStrided)) {
    if (C10_UNLIKELY(cpu._is_zerotensor())) {
      return at::_efficientzerotensor(cpu.sizes(),
                                      cpu.options().device(c10::Device(kHologram, device)));
    }
    auto* impl = cpu.unsafeGetTensorImpl();
    if (C10_LIKELY(cpu.use_count() == 1 && impl->unsafe_storage().use_count() == 1 &&
                   relabel_storage(impl->unsafe_storage().unsafeGetStorageImpl(), device))) {
      impl->set_storage_keep_dtype(impl->unsafe_storage());  // notes the device
      impl->_change_backend_component_keys(c10::Device(kHologram, device));
      return cpu;
    }
    const auto& storage = storage_for(impl->unsafe_storage(), device);
    if (C10_LIKELY(cpu.use_count() == 1)) {
      impl->set_storage_keep_dtype(storage);
      impl->_change_backend_component_keys(c10::Device(kHologram, storage.device().index()));
      return cpu;
    }
    return storage_alias(cpu, storage, BackendComponent::PrivateUse1Bit);
  }
  const auto member = [&](const at::Tensor& part) { return result(part, device); };
  if (cpu.is_sparse()) {
    return sparse_alias(cpu, DispatchKeySet(DispatchKey::SparsePrivateUse1), member);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(is_compressed(cpu), "layout ", cpu.layout(),
                              " is not supported on the hologram device");
  return compressed_alias(cpu, DispatchKeySet(DispatchKey::SparseCsrPrivateUse1),
                          c10::Device(kHologram, device), member);
}

}  // namespace hologram::aten
