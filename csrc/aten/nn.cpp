// Operators that torch dispatches only off the CPU, so that no CPU kernel of that name exists:
// histogram of integers. Each is composed of torch's kernels over the same memory and counts as
// delegated. RNNs: rnn.cpp; convolutions: convolutions.cpp.
#include "aten/precompiled.h"

#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/histc.h>
#include <torch/library.h>

#include "aten/delegate.h"
#include "aten/delegate_target.h"
#include "aten/runtime.h"

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

// Which attention kernel scaled_dot_product_attention takes: the CPU's choice, which looks at
// sizes, strides, dtypes and requires_grad and never at memory. Asked past the dispatcher, it is
// also asked about tensors that have no memory: fake tensors, and the wrappers of torch.func. After
// "flash attention" torch calls _scaled_dot_product_flash_attention_for_cpu, which is delegated.
// A vendor has other kernels, which torch calls for tensors of its device only: there attention is
// composed of products and a softmax.
int64_t attention_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                         const std::optional<Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool grouped) {
  if (!target_of(check_device(query.device())).is_cpu()) {
    return static_cast<int64_t>(at::SDPBackend::math);
  }
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale,
                                           grouped);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  impl_delegated(m, "_fused_sdp_choice", &attention_choice);
  impl_delegated(m, "histc", &histogram);
  impl_delegated(m, "histc.out", &histogram_out);
}

}  // namespace hologram::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &hologram::aten::attention_choice)
}  // namespace at::native
