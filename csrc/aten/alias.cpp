#include "aten/precompiled.h"

#include "aten/alias.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>

#include "aten/block.h"
#include "aten/device_errors.h"
#include "aten/foreign.h"
#include "aten/pinned.h"
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

c10::Storage twin_storage(const at::Tensor& tensor, const Loan* loan = nullptr) {
  const auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(twin(storage, loan)));
}

// A tensor of the target's device like this one, over storage_of(tensor) of each tensor with memory
// in it.
template <class F>
at::Tensor alias_on(const DelegateTarget& target, const at::Tensor& tensor, F&& storage_of) {
  if (C10_LIKELY(tensor.layout() == c10::kStrided)) {
    if (C10_UNLIKELY(tensor._is_zerotensor())) {
      // Has no bytes to share.
      return at::_efficientzerotensor(tensor.sizes(), tensor.options().device(target.device));
    }
    return storage_alias(tensor, storage_of(tensor), target.backend);
  }
  const auto member = [&](const at::Tensor& part) { return alias_on(target, part, storage_of); };
  const DispatchKeySet backend(target.backend);
  if (tensor.is_sparse()) {
    return sparse_alias(tensor, DispatchKeySet(DispatchKey::Sparse) | backend, member);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(is_compressed(tensor), "layout ", tensor.layout(),
                              " is not supported on the hologram device");
  return compressed_alias(tensor, DispatchKeySet(DispatchKey::SparseCsr) | backend, target.device,
                          member);
}

void check_host_addressable(c10::DeviceIndex device) {
  TORCH_CHECK(target_of(device).is_on_host_memory(),
              "the memory of hologram:", static_cast<int>(device),
              " is not the host's, so a CPU tensor cannot share it; copy with Tensor.cpu() or "
              "Tensor.to()");
}

void check_in_stream_order(c10::DeviceIndex device) {
  TORCH_CHECK(target_of(device).in_stream_order,
              "the memory of hologram:", static_cast<int>(device),
              " is not that of a device of torch's, so none can share it; "
              "copy with Tensor.to()");
}

}  // namespace

at::Tensor alias_on_host(const at::Tensor& tensor) {
  return alias_on(target_of(tensor.device().index()), tensor,
                  [](const at::Tensor& part) { return twin_storage(part); });
}

at::Tensor shared_alias(const at::Tensor& tensor) {
  if (tensor.layout() == c10::kStrided && !tensor._is_zerotensor()) {
    check_has_memory(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  }
  const auto device = tensor.device().index();
  check_host_addressable(device);
  auto alias = alias_on_host(tensor);
  hologram::device(device).channels().fence();
  synchronize_tensor(tensor);
  return alias;
}

at::Tensor vendor_alias(const at::Tensor& tensor) {
  if (tensor.layout() == c10::kStrided && !tensor._is_zerotensor()) {
    check_has_memory(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  }
  const auto device = tensor.device().index();
  const DelegateTarget& target = target_of(device);
  check_in_stream_order(device);
  const Loan loan{device, &current_channel(device), target.stream(), 0};
  const TargetGuard guard(target);
  auto alias =
      alias_on(target, tensor, [&](const at::Tensor& part) { return twin_storage(part, &loan); });
  loan.channel->queue->take_back(loan.stream);
  hologram::device(device).channels().fence();
  hand_out_tensor(tensor);
  return alias;
}

at::Tensor alias_of_vendor(const at::Tensor& theirs, c10::DeviceIndex device) {
  const DelegateTarget& target = target_of(device);
  check_in_stream_order(device);
  TORCH_CHECK(theirs.device() == target.device, "hologram:", static_cast<int>(device),
              " cannot share memory on ", theirs.device(), ", only on ", target.device);
  TORCH_CHECK(theirs.layout() == c10::kStrided, "expected a strided tensor, got layout ",
              theirs.layout());
  const auto& storage = theirs.storage();
  // Its allocator hands the memory out in the order of the stream that it was allocated on.
  const c10::impl::VirtualGuardImpl streams(target.device.type());
  streams.recordDataPtrOnStream(storage.data_ptr(), streams.getStream(target.device));
  return storage_alias(theirs,
                       make_storage_over(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                                             storage.unsafeGetStorageImpl()),
                                         device),
                       BackendComponent::PrivateUse1Bit);
}

at::Tensor values_on_cpu(const at::Tensor& tensor) {
  const auto device = tensor.device().index();
  if (target_of(device).is_on_host_memory()) return shared_alias(tensor);
  AliasFrame frame;
  frame.use_images();
  return frame.argument(tensor, false);
}

at::Tensor hologram_alias(const at::Tensor& cpu, c10::DeviceIndex device) {
  TORCH_CHECK(cpu.device().is_cpu(), "expected a CPU tensor, got one on ", cpu.device());
  TORCH_CHECK(cpu.layout() == c10::kStrided, "expected a strided tensor, got layout ",
              cpu.layout());
  check_host_addressable(device);
  auto storage = make_storage_over(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(cpu.storage().unsafeGetStorageImpl()),
      device);
  return storage_alias(cpu, std::move(storage), BackendComponent::PrivateUse1Bit);
}

const at::Tensor* AliasFrame::known_alias(const at::Tensor& tensor, bool written) {
  for (auto& known : arguments_) {
    if (known.tensor->is_same(tensor)) {
      if (C10_UNLIKELY(written && !known.written)) {
        known.written = true;
        if (!images_.empty()) new_alias(tensor, written);  // notes what is written of its image
      }
      return &*known.alias;
    }
  }
  return nullptr;
}

at::Tensor AliasFrame::new_alias(const at::Tensor& tensor, bool written) {
  const DelegateTarget& its = target(tensor.device().index());
  if (C10_UNLIKELY(!its.is_cpu())) note_vendor_argument(tensor, arguments_.empty());
  auto alias = alias_on(its, tensor, [&](const at::Tensor& part) -> c10::Storage {
    return alias_storage(part, written);
  });
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
  auto alias = new_alias(tensor, written);
  arguments_.push_back({Owned::owned(std::move(tensor)), Owned::owned(at::Tensor(alias)), written});
  return alias;
}

void AliasFrame::borrow(const at::Tensor& tensor, bool written, at::Tensor& alias) {
  using Owned = c10::MaybeOwned<at::Tensor>;
  if (const auto* known = known_alias(tensor, written)) {
    alias = *known;
    return;
  }
  alias = new_alias(tensor, written);
  arguments_.push_back({Owned::borrowed(tensor), Owned::borrowed(alias), written});
}

// The smallest extent that holds both.
static Extent hull(const Extent& a, const Extent& b) {
  if (a.size() == 0) return b;
  if (b.size() == 0) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

c10::Storage AliasFrame::alias_storage(const at::Tensor& tensor, bool written) {
  const auto device = tensor.device().index();
  switch (target(device).kind) {
    case DelegateTarget::Kind::shared: return twin_storage(tensor);
    case DelegateTarget::Kind::launched: return twin_storage(tensor, &lend(device));
    case DelegateTarget::Kind::copied: break;
  }
  return image_storage(tensor, written);
}

c10::Storage AliasFrame::image_storage(const at::Tensor& tensor, bool written) {
  const auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  auto* const impl = storage.unsafeGetStorageImpl();
  check_has_memory(impl);
  auto found = std::find_if(images_.begin(), images_.end(), [&](const Image& image) {
    return image.hologram.unsafeGetStorageImpl() == impl;
  });
  if (found == images_.end()) {
    auto cpu = new_image(impl);
    const void* const bytes = cpu->data();
    images_.push_back({storage, std::move(cpu), bytes, {}, {}});
    found = images_.end() - 1;
  }
  // Without the bytes that a kernel has changed already.
  const Extent wanted = hull(found->held, extent_of(tensor));
  const auto fetch = [&](size_t begin, size_t end) {
    read_storage(impl, begin, end - begin, static_cast<char*>(found->cpu->mutable_data()) + begin);
  };
  if (found->held.size() == 0) {
    fetch(wanted.begin, wanted.end);
  } else {
    fetch(wanted.begin, found->held.begin);
    fetch(found->held.end, wanted.end);
  }
  found->held = wanted;
  if (written) found->written = hull(found->written, extent_of(tensor));
  return c10::Storage(found->cpu);
}

c10::intrusive_ptr<c10::StorageImpl> AliasFrame::new_image(const c10::StorageImpl* storage) const {
  if (images_pinned_) {
    try {
      return host_storage_like(storage, &own_pinned_allocator());
    } catch (const c10::OutOfMemoryError&) {
    }
  }
  return host_storage_like(storage);
}

void AliasFrame::write_image(Image& image) {
  auto* const storage = image.hologram.unsafeGetStorageImpl();
  auto& cpu = *image.cpu;
  auto* const bytes = static_cast<char*>(cpu.mutable_data());
  if (bytes == image.bytes && cpu.nbytes() == storage->nbytes()) {
    for (const Extent& part : {image.written, image.after}) {
      write_storage(storage, part.begin, part.size(), bytes + part.begin);
    }
    return;
  }
  // A kernel has given it another size. What it has not seen of the old bytes it could not keep.
  const size_t kept = std::min(cpu.nbytes(), storage->nbytes());
  std::array<Extent, 2> seen{image.held, image.after};
  if (seen[1].begin < seen[0].begin) std::swap(seen[0], seen[1]);
  size_t from = 0;
  for (const Extent& part : {seen[0], seen[1], Extent{kept, kept}}) {
    const size_t to = std::min(part.begin, kept);
    if (from < to) read_storage(storage, from, to - from, bytes + from);
    from = std::max(from, part.end);
  }
  storage->set_data_ptr_noswap(allocate_block(cpu.nbytes(), storage->device().index()));
  storage->set_nbytes(cpu.nbytes());
  write_storage(storage, 0, cpu.nbytes(), bytes);
  image.bytes = bytes;
  image.held = {0, cpu.nbytes()};
}

void AliasFrame::map_members(const at::Tensor& tensor) {
  const auto map = [&](const at::Tensor& part) {
    mapped_.push_back({alias_storage(part, false).unsafeGetStorageImpl(), part.storage()});
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

// The loan of the device's queue, which twin() hands over.
const Loan& AliasFrame::lend(c10::DeviceIndex device) {
  auto loan = std::ranges::find(loans_, device, &Loan::device);
  if (loan == loans_.end()) {
    Channel& channel = current_channel(device);
    channel.queue->check_takes_work("a kernel of torch's");
    loans_.push_back({device, &channel, target_of(device).stream(), 0});
    loan = loans_.end() - 1;
  }
  loan->launched = 0;
  return *loan;
}

// What the vendor's kernels have touched is in use until they are done.
void AliasFrame::note_launched(const c10::Storage& storage) {
  Block* const block = storage ? block_of(storage.data_ptr()) : nullptr;
  if (block == nullptr) return;
  const auto loan = std::ranges::find(loans_, block->device, &Loan::device);
  if (loan != loans_.end()) loan->channel->window.end_use(*block, loan->launched);
}

// After the kernels have been launched; those that have been taken back stay so.
void AliasFrame::take_back() {
  bool any = false;
  for (Loan& loan : loans_) {
    if (loan.launched != 0) continue;
    loan.launched = loan.channel->queue->take_back(loan.stream);
    any = true;
  }
  if (!any) return;
  for (const auto& argument : arguments_) {
    if (argument.tensor->layout() != c10::kStrided) continue;
    const auto& storage = argument.tensor->unsafeGetTensorImpl()->unsafe_storage();
    if (argument.written && storage) adopt_twin_bytes(storage);
    note_launched(storage);
  }
  for (const auto& member : mapped_) note_launched(member.hologram);
}

// Of a call that has failed, or whose results nobody has asked for.
void AliasFrame::end_loans() noexcept {
  try {
    take_back();
  } catch (const std::exception&) {  // the queue tells whoever waits for it
  }
}

void AliasFrame::write_back() {
  if (C10_UNLIKELY(!loans_.empty())) take_back();
  for (Image& image : images_) {
    for (const auto& argument : arguments_) {
      if (!argument.written || argument.alias->layout() != c10::kStrided ||
          argument.alias->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() !=
              image.cpu.get()) {
        continue;
      }
      // A size that it found no memory for has written nothing.
      if (!argument.alias->is_nested() &&
          !fits(*argument.alias->unsafeGetTensorImpl(), image.cpu->nbytes()))
        continue;
      const Extent now = extent_of(*argument.alias);
      const bool held = image.held.begin <= now.begin && now.end <= image.held.end;
      Extent& part = held ? image.written : image.after;
      part = hull(part, now);
    }
    if (image.written.size() + image.after.size() != 0 || image.cpu->data() != image.bytes) {
      write_image(image);
    }
  }
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

const c10::Storage& AliasFrame::storage_for(const c10::Storage& theirs, c10::DeviceIndex device) {
  const auto* impl = theirs.unsafeGetStorageImpl();
  for (const auto& known : arguments_) {
    if (known.alias->layout() == c10::kStrided &&
        known.alias->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == impl) {
      return known.tensor->unsafeGetTensorImpl()->unsafe_storage();
    }
  }
  for (const auto& known : mapped_) {
    if (known.theirs == impl) {
      return known.hologram;
    }
  }
  if (C10_LIKELY(target(device).kind != DelegateTarget::Kind::copied)) {
    mapped_.push_back({impl, make_storage_over(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                                                   theirs.unsafeGetStorageImpl()),
                                               device)});
    if (C10_UNLIKELY(!loans_.empty())) note_launched(mapped_.back().hologram);
  } else {
    mapped_.push_back({impl, make_storage(impl->nbytes(), device)});
    write_storage(mapped_.back().hologram.unsafeGetStorageImpl(), 0, impl->nbytes(), impl->data());
  }
  return mapped_.back().hologram;
}

// A strided one that is no argument.
at::Tensor AliasFrame::relabelled(at::Tensor theirs, c10::DeviceIndex device) {
  if (C10_UNLIKELY(theirs._is_zerotensor())) {
    return at::_efficientzerotensor(theirs.sizes(),
                                    theirs.options().device(c10::Device(kHologram, device)));
  }
  auto* impl = theirs.unsafeGetTensorImpl();
  if (C10_LIKELY(theirs.use_count() == 1 && impl->unsafe_storage().use_count() == 1 &&
                 relabel_storage(impl->unsafe_storage().unsafeGetStorageImpl(), device))) {
    impl->set_storage_keep_dtype(impl->unsafe_storage());  // notes the device
    impl->_change_backend_component_keys(c10::Device(kHologram, device));
    if (C10_UNLIKELY(!loans_.empty())) note_launched(impl->unsafe_storage());
    return theirs;
  }
  const auto& storage = storage_for(impl->unsafe_storage(), device);
  if (C10_LIKELY(theirs.use_count() == 1)) {
    impl->set_storage_keep_dtype(storage);
    impl->_change_backend_component_keys(c10::Device(kHologram, storage.device().index()));
    return theirs;
  }
  return storage_alias(theirs, storage, BackendComponent::PrivateUse1Bit);
}

at::Tensor AliasFrame::result(at::Tensor theirs, c10::DeviceIndex device) {
  if (!theirs.defined() || theirs.device().type() != target(device).device.type()) {
    return theirs;
  }
  if (C10_UNLIKELY(!loans_.empty())) take_back();
  for (const auto& known : arguments_) {
    if (known.alias->is_same(theirs)) {
      return *known.tensor;
    }
  }
  if (C10_LIKELY(theirs.layout() == c10::kStrided)) {
    return relabelled(std::move(theirs), device);
  }
  const auto member = [&](const at::Tensor& part) { return result(part, device); };
  if (theirs.is_sparse()) {
    return sparse_alias(theirs, DispatchKeySet(DispatchKey::SparsePrivateUse1), member);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(is_compressed(theirs), "layout ", theirs.layout(),
                              " is not supported on the hologram device");
  return compressed_alias(theirs, DispatchKeySet(DispatchKey::SparseCsrPrivateUse1),
                          c10::Device(kHologram, device), member);
}

}  // namespace hologram::aten
