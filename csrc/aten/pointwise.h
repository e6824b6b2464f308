// Registration of the op table's rows as ATen kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "aten/report.h"

namespace hologram::aten {

// Called once, before register_delegates().
void register_pointwise();

// Records self + alpha * other, or self - alpha * other. False where torch's kernel has to do it.
bool record_scaled_add(OpCounter& counter, bool subtract, const at::Tensor& self,
                       const at::Tensor& other, const at::Scalar& alpha, const at::Tensor* out,
                       at::Tensor* fresh);

// Records self to a power that torch computes by something simpler than pow. False for others, and
// where torch's kernel has to do it.
bool record_power(OpCounter& counter, const at::Tensor& self, const at::Scalar& exponent,
                  const at::Tensor* out, at::Tensor* fresh);

}  // namespace hologram::aten
