// What we use of ATen/autocast_mode.h, which includes the headers of every operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace at::autocast {
TORCH_API bool is_autocast_enabled(DeviceType device);
TORCH_API ScalarType get_autocast_dtype(DeviceType device);
TORCH_API Tensor cached_cast(ScalarType to, const Tensor& tensor, DeviceType device);
}  // namespace at::autocast
