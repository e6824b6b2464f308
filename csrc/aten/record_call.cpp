#include "aten/precompiled.h"

#include "aten/record_call.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <new>
#include <string>

#include "aten/below_autograd.h"
#include "aten/delegate_target.h"
#include "aten/operand.h"
#include "aten/transfer.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

// Its elements and what lies between them.
Range range_of(const at::Tensor& tensor) {
  const Extent extent = extent_of(tensor);
  return {operand_block(tensor.unsafeGetTensorImpl()), static_cast<int64_t>(extent.begin),
          *group_dtype(tensor.scalar_type()),
          static_cast<int64_t>(extent.size() / tensor.itemsize())};
}

}  // namespace

TensorShape::TensorShape(const at::Tensor& tensor)
    : sizes(tensor.sizes()), strides(tensor.strides()), dtype(tensor.dtype()) {}

at::Tensor TensorShape::over(void* memory, c10::Device device, c10::DispatchKey key) const {
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize()),
                       c10::DataPtr(memory, device), nullptr, false);
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, 0);
  return tensor;
}

void KernelCall::run(std::span<void* const> memory) {
  compute_by([&] { compute(memory); });
}

void KernelCall::compute_by(c10::function_ref<void()> function) const {
  using Kind = CallError::Kind;
  // Whoever needs a result may be inside of anything.
  const c10::impl::ForceDispatchKeyGuard plain(
      c10::default_included_set, c10::default_excluded_set |
                                     c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                     kTheirAutocast);
  const auto failed = [&](const c10::Error& error, Kind kind) {
    return CallError(std::string(name_) + ": " + error.what_without_backtrace(), kind);
  };
  try {
    function();
  } catch (const c10::OutOfMemoryError& error) {
    throw failed(error, Kind::out_of_memory);
  } catch (const std::bad_alloc&) {
    throw CallError(std::string(name_) + ": not enough memory", Kind::out_of_memory);
  } catch (const c10::IndexError& error) {
    throw failed(error, Kind::out_of_range);
  } catch (const c10::Error& error) {
    throw failed(error, Kind::other);
  }
}

bool records_calls(c10::DeviceIndex device) {
  return target_of(device).is_cpu();
}

bool is_plain_operand(const at::Tensor& tensor, c10::DeviceIndex device) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return is_plain_strided(impl) && impl->device().index() == device && impl->numel() != 0 &&
         group_dtype(tensor.scalar_type()) && operand_block(impl) != nullptr;
}

bool is_recordable(const at::Tensor& tensor, c10::DeviceIndex device) {
  return records_calls(device) && is_plain_operand(tensor, device);
}

void record_call(const char* name, at::ArrayRef<const at::Tensor*> reads,
                 at::ArrayRef<const at::Tensor*> writes, std::shared_ptr<Call> body) {
  c10::SmallVector<Range, 6> ranges;
  for (const at::Tensor* tensor : reads) ranges.push_back(range_of(*tensor));
  for (const at::Tensor* tensor : writes) ranges.push_back(range_of(*tensor));
  const std::span<const Range> all(ranges.data(), ranges.size());
  CallOperands operands{name, all.first(reads.size()), all.subspan(reads.size()), std::move(body)};
  Window& window = current_window(writes[0]->device().index());
  window.record(operands);
  for (const Range& range : all) {
    const View view{range.block, 0, range.dtype, Layout::dense};
    run_if_shared(window, {&view, 1});
  }
}

}  // namespace hologram::aten
