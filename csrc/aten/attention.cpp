// Which kernels scaled_dot_product_attention takes, and those of a vendor for it.
//
// torch's function, which is composed, asks the device for a choice and calls what was chosen by
// the type of the device. On the CPU "flash attention" is
// _scaled_dot_product_flash_attention_for_cpu; on CUDA it is flash attention, or one of two other
// operators that only CUDA has. All are delegated, but the CPU's where a device has kernels of its
// own for it (library_attention.cpp).
#include "aten/precompiled.h"

#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_ops.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include "aten/below_autograd.h"
#include "aten/delegate.h"
#include "aten/delegate_target.h"
#include "aten/norms.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using at::SDPBackend;
using at::Tensor;
using c10::DispatchKey;
using c10::SymInt;

constexpr c10::DispatchKeySet kOurs(DispatchKey::PrivateUse1);
// Of one head, what flash attention's kernels are made for multiples of.
constexpr int64_t kFlashUnit = 8;

// Whether it is a tensor as others, with sizes that are numbers: no fake one, and none that stands
// for others in torch.func.
bool is_plain(const Tensor& tensor) {
  constexpr c10::DispatchKeySet kStandIns({DispatchKey::Python, DispatchKey::FuncTorchBatched,
                                           DispatchKey::FuncTorchGradWrapper,
                                           DispatchKey::Functionalize});
  return !tensor.key_set().has_any(kStandIns) && !tensor.is_nested() &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// The vendor's choice looks at sizes, strides, dtypes and requires_grad and never at memory: it is
// asked of tensors that have none. What drops elements draws from the device's generator, in a
// composition: the vendor's kernels would draw from the vendor's.
SDPBackend vendor_choice(const DelegateTarget& target, const Tensor& query, const Tensor& key,
                         const Tensor& value, const std::optional<Tensor>& mask, double dropout,
                         bool causal, std::optional<double> scale, bool grouped) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", "");
  const bool masked = mask.has_value() && mask->defined();
  if (dropout > 0 || !op.hasKernelForDispatchKey(target.key) || !is_plain(query) ||
      !is_plain(key) || !is_plain(value) || (masked && !is_plain(*mask))) {
    return SDPBackend::math;
  }
  const TargetGuard guard(target);
  const auto like = [&](const Tensor& tensor) {
    Tensor made = at::for_blob(nullptr, tensor.sizes())
                      .strides(tensor.strides())
                      .target_device(target.device)
                      .options(at::TensorOptions(tensor.scalar_type()).device(target.device))
                      .make_tensor();
    return made.set_requires_grad(tensor.requires_grad());
  };
  const auto choice = static_cast<SDPBackend>(at::_ops::_fused_sdp_choice::call(
      like(query), like(key), like(value), masked ? std::optional(like(*mask)) : std::nullopt,
      dropout, causal, scale, grouped));
  // For a device that is not CUDA's torch takes "flash attention" to be the CPU's.
  return choice == SDPBackend::flash_attention ? SDPBackend::overrideable : choice;
}

// On the CPU likewise. Asked past the dispatcher, it is also asked about tensors that have no
// memory: fake tensors, and the wrappers of torch.func.
int64_t attention_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                         const std::optional<Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool grouped) {
  const DelegateTarget& target = target_of(check_device(query.device()));
  if (target.is_cpu()) {
    return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale,
                                             grouped);
  }
  return static_cast<int64_t>(
      vendor_choice(target, query, key, value, mask, dropout, causal, scale, grouped));
}

// With zeros up to a multiple of kFlashUnit, as torch's function does it for CUDA.
Tensor padded(const Tensor& tensor) {
  const int64_t missing = -tensor.size(-1) & (kFlashUnit - 1);
  return missing == 0 ? tensor : at::constant_pad_nd(tensor, {0, missing});
}
Tensor cut(const Tensor& tensor, int64_t size) {
  return tensor.size(-1) == size ? tensor : tensor.slice(-1, 0, size);
}
// By the size without padding.
double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale.has_value() ? *scale : 1 / std::sqrt(static_cast<double>(query.size(-1)));
}

using Attention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor>;

Attention flash_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                          const std::optional<Tensor>& bias, double dropout, bool causal,
                          bool debug_mask, std::optional<double> scale) {
  check_devices("_scaled_dot_product_fused_attention_overrideable", query, key, value, bias);
  const BelowAutograd below;
  Attention all = at::_ops::_scaled_dot_product_flash_attention::redispatch(
      kOurs, padded(query), padded(key), padded(value), dropout, causal, debug_mask,
      scale_of(query, scale));
  std::get<0>(all) = cut(std::get<0>(all), value.size(-1));
  return all;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, std::array<bool, 4> /*wanted*/, const Tensor& out, const Tensor& logsumexp,
    const Tensor& cum_seq_q, const Tensor& cum_seq_k, SymInt max_q, SymInt max_k, double dropout,
    bool causal, const Tensor& philox_seed, const Tensor& philox_offset,
    std::optional<double> scale) {
  // Numbers of a generator may be the host's.
  const auto sized = [](const Tensor& tensor) {
    return tensor.defined() && tensor.dim() > 0 ? tensor : Tensor();
  };
  check_devices("_scaled_dot_product_fused_attention_overrideable_backward", grad, query, key,
                value, bias, out, logsumexp, cum_seq_q, cum_seq_k, sized(philox_seed),
                sized(philox_offset));
  const BelowAutograd below;
  const auto [of_query, of_key, of_value] =
      at::_ops::_scaled_dot_product_flash_attention_backward::redispatch(
          kOurs, padded(grad), padded(query), padded(key), padded(value), padded(out), logsumexp,
          cum_seq_q, cum_seq_k, std::move(max_q), std::move(max_k), dropout, causal, philox_seed,
          philox_offset, scale_of(query, scale));
  return {cut(of_query, query.size(-1)), cut(of_key, key.size(-1)), cut(of_value, value.size(-1)),
          Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  impl_delegated(m, "_fused_sdp_choice", &attention_choice);
  impl_delegated(m, "_scaled_dot_product_fused_attention_overrideable", &flash_attention);
  impl_delegated(m, "_scaled_dot_product_fused_attention_overrideable_backward",
                 &flash_attention_backward);
}

}  // namespace hologram::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &hologram::aten::attention_choice)
}  // namespace at::native
