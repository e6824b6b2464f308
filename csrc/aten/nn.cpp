// Operators that torch dispatches only off the CPU, so that no CPU kernel of that name exists:
// histogram of integers. Each is composed of torch's kernels over the same memory and counts as
// delegated. RNNs: rnn.cpp; convolutions: convolutions.cpp.
#include "aten/precompiled.h"

#include <ATen/ops/histc.h>
#include <torch/library.h>

#include "aten/delegate.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// Integers are counted as float64, exact below 2^53; CUDA counts integers, torch's CPU refuses
// them.
Tensor histc_of(const Tensor& x, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  const bool integral = c10::isIntegralType(x.scalar_type(), /*includeBool=*/false);
  const auto counts = at::histc(integral ? x.to(at::kDouble) : x, bins, min, max);
  return integral ? counts.to(x.scalar_type()) : counts;
}

Tensor histogram(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  static auto& counter = op_counter("aten::histc");
  Delegation call(counter);
  return call.out(histc_of(call.in(self), bins, min, max));
}

Tensor& histogram_out(const Tensor& self, int64_t bins, const at::Scalar& min,
                      const at::Scalar& max, Tensor& out) {
  static OperatorDelegate delegate("aten::histc", "out");
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    delegate(self, bins, min, max, out);
    return out;
  }
  const auto counts = histogram(self, bins, min, max);
  out.resize_(counts.sizes());
  return out.copy_(counts);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  impl_delegated(m, "histc", &histogram);
  impl_delegated(m, "histc.out", &histogram_out);
}

}  // namespace hologram::aten
