// Making tensors, views, and changing what a tensor looks at: operators no fallback can serve.
#include "aten/precompiled.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "aten/block.h"
#include "aten/compat.h"
#include "aten/report.h"
#include "aten/runtime.h"
#include "aten/transfer.h"

namespace hologram::aten {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::DispatchKeySet;

constexpr DispatchKeySet kDenseKeys(c10::DispatchKey::PrivateUse1);

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::kStrided,
                              "only strided tensors can be made uninitialised on the hologram "
                              "device, got layout ",
                              *layout);
  TORCH_CHECK(!pin_memory || !*pin_memory, "Only dense CPU tensors can be pinned");
}

Tensor make_tensor(size_t nbytes, caffe2::TypeMeta dtype, c10::DeviceIndex device) {
  return at::detail::make_tensor<c10::TensorImpl>(make_storage(nbytes, device), kDenseKeys, dtype);
}

// torch warns of complex halves where it makes the first one, on whichever device.
void warn_of_complex_half(std::optional<c10::ScalarType> dtype) {
  if (C10_UNLIKELY(dtype == c10::ScalarType::ComplexHalf)) {
    at::detail::empty_cpu({0}, *dtype);
  }
}

// Whether torch.use_deterministic_algorithms() wants NaN or the largest integer where nothing has
// been written yet.
bool fills_new_memory() {
  const auto& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

Tensor empty(IntArrayRef size, std::optional<c10::ScalarType> dtype,
             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
             std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  static auto& counter = op_counter("aten::empty.memory_format");
  note_native(counter);
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  warn_of_complex_half(dtype);
  const auto type = c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype));
  auto tensor = make_tensor(at::detail::computeStorageNbytesContiguous(size, type.itemsize()), type,
                            check_device(device));
  // A fresh tensor has size [0].
  if (size.size() != 1 || size[0] != 0) {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  }
  if (format && *format != c10::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  if (C10_UNLIKELY(fills_new_memory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pin_memory) {
  static auto& counter = op_counter("aten::empty_strided");
  note_native(counter);
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  TORCH_CHECK(size.size() == stride.size(), "dimensionality of sizes (", size.size(),
              ") must match dimensionality of strides (", stride.size(), ")");
  warn_of_complex_half(dtype);
  const auto type = c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype));
  auto tensor = make_tensor(at::detail::computeStorageNbytes(size, stride, type.itemsize()), type,
                            check_device(device));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  if (C10_UNLIKELY(fills_new_memory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

// A tensor of zeros without memory, which autograd makes for forward-mode gradients.
Tensor efficient_zero_tensor(IntArrayRef size, std::optional<c10::ScalarType> dtype,
                             std::optional<c10::Layout>, std::optional<c10::Device> device,
                             std::optional<bool>) {
  const c10::Device target(kHologram, check_device(device));
  auto allocator = at::native::ZeroTensorAllocator(target);
  auto tensor = at::detail::empty_generic(size, &allocator,
                                          kDenseKeys | DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                          c10::dtype_or_default(dtype), std::nullopt);
  return tensor;
}

void ensure_storage(c10::TensorImpl* tensor, size_t needed) {
  const auto& storage = tensor->unsafe_storage();
  if (!storage) {
    tensor->set_storage_keep_dtype(make_storage(needed, tensor->device().index()));
  } else if (needed > storage.nbytes()) {
    resize_storage(storage.unsafeGetStorageImpl(), needed);
  }
}

const Tensor& resize_(const Tensor& self, IntArrayRef size,
                      std::optional<c10::MemoryFormat> format) {
  if (C10_UNLIKELY(has_names(self.unsafeGetTensorImpl()))) {
    TORCH_CHECK(
        self.sizes() == size,
        "Cannot resize named tensor with resize_ (tried to resize "
        "Tensor with size ",
        self.sizes(), " to ", size,
        "). This may be caused by passing "
        "a named tensor as an `out=` argument; please ensure that the sizes are the same. ");
    return self;
  }
  at::detail::check_size_nonnegative(size);
  auto* impl = self.unsafeGetTensorImpl();
  const auto old_bytes = impl->unsafe_storage() ? impl->unsafe_storage().nbytes() : 0;
  if (impl->sizes() != size) {
    if (c10::multiply_integers(size) != 0) {
      // Before the size changes: where there is no memory, the tensor stays as it was.
      ensure_storage(impl, at::detail::computeStorageNbytesContiguous(
                               size, impl->dtype().itemsize(), impl->storage_offset()));
    }
    impl->set_sizes_contiguous(size);
  }
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  if (C10_UNLIKELY(fills_new_memory())) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(old_bytes));
  }
  return self;
}

Tensor& set_storage_(Tensor& self, c10::Storage storage, int64_t offset, IntArrayRef size,
                     IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(storage), offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  if (impl->numel() != 0) {
    ensure_storage(impl, at::detail::computeStorageNbytes(impl->sizes(), impl->strides(),
                                                          impl->dtype().itemsize(), offset));
  }
  return self;
}

Tensor& set_whole_storage_(Tensor& self, c10::Storage source) {
  const auto itemsize = self.dtype().itemsize();
  const auto elements = static_cast<int64_t>(source.nbytes() / itemsize);
  return set_storage_(self, std::move(source), 0, {elements}, {});
}

Tensor& set_tensor_(Tensor& self, const Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) {
    return self;
  }
  return set_storage_(self, source.storage(), source.storage_offset(), source.sizes(),
                      source.strides());
}

Tensor& set_empty_(Tensor& self) {
  return set_storage_(self, make_storage(0, self.device().index()), 0, {0}, {});
}

void record_stream(Tensor& self, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kHologram, "record_stream: expected a hologram stream, got ",
              stream);
  check_device(self.device());
  const auto* impl = self.unsafeGetTensorImpl();
  record_use(
      impl->has_storage() ? settled_block(impl->unsafe_storage().unsafeGetStorageImpl()) : nullptr,
      stream);
}

// Parameters move between the CPU and the device in place: the same Parameter object afterwards.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto movable = [](const Tensor& tensor) {
    return tensor.layout() == c10::kStrided && !tensor.is_quantized() &&
           (tensor.device().type() == kHologram || tensor.device().is_cpu());
  };
  return movable(self) && movable(from);
}

// Storages are never copy-on-write here: the copy is recorded like any other.
Tensor lazy_clone(const Tensor& self) {
  return self.clone();
}

at::Scalar local_scalar_dense(const Tensor& self) {
  if (C10_LIKELY(is_host_addressable(self.device().index()))) {
    synchronize_storage(self.storage().unsafeGetStorageImpl());
    return at::native::_local_scalar_dense_cpu(self);
  }
  return at::native::_local_scalar_dense_cpu(element_on_host(self));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, IntArrayRef)>(&at::native::view));
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Tensor", &set_tensor_);
  m.impl("set_.source_Storage", &set_whole_storage_);
  m.impl("set_.source_Storage_storage_offset", &set_storage_);
  m.impl("set_", &set_empty_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
  m.impl("_lazy_clone", &lazy_clone);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

// The delegate knows no storage arguments.
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("set_.source_Storage_storage_offset", &set_storage_);
}

}  // namespace hologram::aten
