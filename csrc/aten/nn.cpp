// Operators that torch dispatches only off the CPU, so that no CPU kernel of that name exists:
// convolution entry points, fused RNN cells, histogram of integers. Each is composed of CPU kernels
// over the same memory and counts as delegated.
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "aten/delegate.h"
#include "aten/generator.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool is_defined(const OptionalTensor& tensor) {
  return tensor && tensor->defined();
}

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  static auto& counter = op_counter("aten::convolution_overrideable");
  Delegation call(counter);
  const auto x = call.in(input);
  const auto w = call.in(weight);
  const auto b = call.in(bias);
  return call.out(
      at::convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input,
                                                        const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding,
                                                        int64_t groups, std::array<bool, 3> mask) {
  static auto& counter = op_counter("aten::convolution_backward_overrideable");
  Delegation call(counter);
  const auto g = call.in(grad);
  const auto x = call.in(input);
  const auto w = call.in(weight);
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto [dx, dw, db] = at::convolution_backward(g, x, w, IntArrayRef({channels}), stride, padding,
                                               dilation, transposed, output_padding, groups, mask);
  return {call.out(std::move(dx)), call.out(std::move(dw)), call.out(std::move(db))};
}

// ---- RNN cells ---------------------------------------------------------------------------------
// Gate order and formulas: torch.nn.LSTMCell and torch.nn.GRUCell. `workspace` is private to each
// forward/backward pair.

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return is_defined(bias) ? gates + *bias : gates;
}

// The gates of a matrix (batch, count * hidden), one after another.
std::vector<Tensor> gates_of(const Tensor& matrix, int64_t count, const Tensor& state) {
  TORCH_CHECK(matrix.dim() == 2 && state.dim() == 2 && matrix.size(0) == state.size(0) &&
                  matrix.size(1) == count * state.size(1),
              "Expected the gates of an RNN cell to have size (batch, ", count,
              " * hidden) for a state of size (batch, hidden), got ", matrix.sizes(), " and ",
              state.sizes());
  return matrix.unsafe_chunk(count, 1);
}

// input_gates, hidden_gates (batch, 4 hidden); cx (batch, hidden).
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  static auto& counter = op_counter("aten::_thnn_fused_lstm_cell");
  Delegation call(counter);
  const auto gates = with_bias(call.in(hidden_gates), call.in(hidden_bias)) +
                     with_bias(call.in(input_gates), call.in(input_bias));
  const auto parts = gates_of(gates, 4, cx);
  const auto i = at::sigmoid(parts[0]);
  const auto f = at::sigmoid(parts[1]);
  const auto g = at::tanh(parts[2]);
  const auto o = at::sigmoid(parts[3]);
  auto cy = f * call.in(cx) + i * g;
  auto hy = o * at::tanh(cy);
  auto workspace = at::cat({i, f, g, o}, 1);
  return {call.out(std::move(hy)), call.out(std::move(cy)), call.out(std::move(workspace))};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  static auto& counter = op_counter("aten::_thnn_fused_lstm_cell_backward_impl");
  if (!is_defined(grad_hy) && !is_defined(grad_cy)) {
    return {};
  }
  Delegation call(counter);
  const auto parts = gates_of(call.in(workspace), 4, cx);
  const auto &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const auto c = call.in(cx);
  const auto tanh_cy = at::tanh(call.in(cy));
  const auto dh = is_defined(grad_hy) ? call.in(*grad_hy) : at::zeros_like(tanh_cy);
  auto dc = dh * o * (1 - tanh_cy * tanh_cy);
  if (is_defined(grad_cy)) {
    dc = dc + call.in(*grad_cy);
  }
  auto gates = at::cat({dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g),
                        dh * tanh_cy * o * (1 - o)},
                       1);
  auto dcx = dc * f;
  auto bias = has_bias ? gates.sum(0) : Tensor();
  return {call.out(std::move(gates)), call.out(std::move(dcx)), call.out(std::move(bias))};
}

// input_gates, hidden_gates (batch, 3 hidden); hx (batch, hidden).
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  static auto& counter = op_counter("aten::_thnn_fused_gru_cell");
  Delegation call(counter);
  const auto input = with_bias(call.in(input_gates), call.in(input_bias));
  const auto recurrent = with_bias(call.in(hidden_gates), call.in(hidden_bias));
  const auto in = gates_of(input, 3, hx);
  const auto hidden = gates_of(recurrent, 3, hx);
  const auto h = call.in(hx);
  const auto r = at::sigmoid(hidden[0] + in[0]);
  const auto z = at::sigmoid(hidden[1] + in[1]);
  const auto n = at::tanh(in[2] + hidden[2] * r);
  auto hy = (h - n) * z + n;
  auto workspace = at::cat({r, z, n, h, hidden[2]}, 1);
  return {call.out(std::move(hy)), call.out(std::move(workspace))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  static auto& counter = op_counter("aten::_thnn_fused_gru_cell_backward");
  Delegation call(counter);
  const auto parts = gates_of(call.in(workspace), 5, grad_hy);
  const auto &r = parts[0], &z = parts[1], &n = parts[2], &h = parts[3], &hn = parts[4];
  const auto dy = call.in(grad_hy);
  const auto dn = dy * (1 - z) * (1 - n * n);
  const auto dr = dn * hn * r * (1 - r);
  const auto dz = dy * (h - n) * z * (1 - z);
  auto dinput = at::cat({dr, dz, dn}, 1);
  auto dhidden = at::cat({dr, dz, dn * r}, 1);
  auto dhx = dy * z;
  auto dinput_bias = has_bias ? dinput.sum(0) : Tensor();
  auto dhidden_bias = has_bias ? dhidden.sum(0) : Tensor();
  return {call.out(std::move(dinput)), call.out(std::move(dhidden)), call.out(std::move(dhx)),
          call.out(std::move(dinput_bias)), call.out(std::move(dhidden_bias))};
}

// ---- others ------------------------------------------------------------------------------------

// torch's CPU kernel draws from the CPU's default generator; this one draws from the device's.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  static auto& counter = op_counter("aten::native_dropout");
  Delegation call(counter);
  const auto x = call.in(input);
  if (x.numel() == 0 || (train && !*train)) {
    auto copy = x.clone();
    auto mask = at::ones_like(x, x.options().dtype(at::kBool));
    return {call.out(std::move(copy)), call.out(std::move(mask))};
  }
  const double keep = 1.0 - p;
  auto mask = at::empty_like(x, x.options().dtype(at::kBool));
  mask.bernoulli_(keep, cpu_generator(std::nullopt, input.device().index()));
  auto output = x.mul(mask).mul_(keep == 0 ? 0.0 : 1.0 / keep);
  return {call.out(std::move(output)), call.out(std::move(mask))};
}

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
  impl_delegated(m, "convolution_overrideable", &convolution);
  impl_delegated(m, "convolution_backward_overrideable", &convolution_backward);
  impl_delegated(m, "_fused_sdp_choice", &at::native::_fused_sdp_choice_cpp);
  impl_delegated(m, "_thnn_fused_lstm_cell", &lstm_cell);
  impl_delegated(m, "_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  impl_delegated(m, "_thnn_fused_gru_cell", &gru_cell);
  impl_delegated(m, "_thnn_fused_gru_cell_backward", &gru_cell_backward);
  impl_delegated(m, "native_dropout", &native_dropout);
  impl_delegated(m, "histc", &histogram);
  impl_delegated(m, "histc.out", &histogram_out);
}

}  // namespace hologram::aten

// Which attention kernel scaled_dot_product_attention takes: the CPU's choice, which looks at
// sizes, strides, dtypes and requires_grad and never at memory. Asked past the dispatcher, it is
// also asked about tensors that have no memory: fake tensors, and the wrappers of torch.func. After
// "flash attention" torch calls _scaled_dot_product_flash_attention_for_cpu, which is delegated.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_cpp)
}  // namespace at::native
