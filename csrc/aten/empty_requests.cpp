#include "aten/precompiled.h"

#include "aten/empty_requests.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <cstddef>
#include <optional>
#include <utility>

#include "aten/block.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using c10::DispatchKeySet;

// Of kernels behind ours.
DispatchKeySet past(DispatchKeySet keys) {
  return keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, EmptyRequests::kKey);
}

// Whether it is for memory that only a vendor's allocator has.
bool is_of_vendor(std::optional<c10::Layout> layout, std::optional<c10::Device> device) {
  return device.has_value() && !device->is_cpu() && device->type() != kHologram &&
         device->type() != c10::kMeta && c10::layout_or_default(layout) == c10::kStrided;
}

// A tensor of no shape yet over the place of a result, if that is what is asked for; it may be
// resized like others. Undefined if not.
Tensor at_a_place(size_t bytes, std::optional<c10::ScalarType> type, c10::Device device) {
  auto* const places = PlacedResults::current();
  void* const place = places != nullptr ? places->take(bytes) : nullptr;
  if (place == nullptr) return {};
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(place, device),
                       c10::GetAllocator(device.type()), /*resizable=*/true);
  const auto key = c10::computeDispatchKey(type, c10::kStrided, device);
  return at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), DispatchKeySet(key),
      c10::scalarTypeToTypeMeta(c10::dtype_or_default(type)));
}

// What has been made.
Tensor noted(Tensor made) {
  auto* const requests = ResultRequests::current();
  if (requests != nullptr && made.storage().nbytes() != 0) {
    requests->add(made.unsafeGetTensorImpl()->mutable_data(), made.storage().nbytes());
  }
  return made;
}

Tensor empty(DispatchKeySet keys, c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype,
             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
             std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  const auto make = [&] {
    return at::_ops::empty_memory_format::redispatch(past(keys), size, dtype, layout, device,
                                                     pin_memory, format);
  };
  const auto sizes = c10::asIntArrayRefSlowOpt(size);
  if (!sizes || !is_of_vendor(layout, device)) return make();
  const size_t item = c10::elementSize(c10::dtype_or_default(dtype));
  const size_t bytes = at::detail::computeStorageNbytesContiguous(*sizes, item);
  Tensor result = at_a_place(bytes, dtype, *device);
  if (!result.defined()) return noted(make());
  result.unsafeGetTensorImpl()->set_sizes_contiguous(*sizes);
  result.unsafeGetTensorImpl()->empty_tensor_restride(
      format.value_or(c10::MemoryFormat::Contiguous));
  return result;
}

Tensor empty_strided(DispatchKeySet keys, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                     std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const auto make = [&] {
    return at::_ops::empty_strided::redispatch(past(keys), size, stride, dtype, layout, device,
                                               pin_memory);
  };
  const auto sizes = c10::asIntArrayRefSlowOpt(size), strides = c10::asIntArrayRefSlowOpt(stride);
  if (!sizes || !strides || !is_of_vendor(layout, device)) return make();
  const size_t item = c10::elementSize(c10::dtype_or_default(dtype));
  const size_t bytes = at::detail::computeStorageNbytes(*sizes, *strides, item);
  Tensor result = at_a_place(bytes, dtype, *device);
  if (!result.defined()) return noted(make());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(*sizes, *strides, 0);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
}

}  // namespace hologram::aten
