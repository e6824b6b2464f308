// Convolutions. Torch's library for them spends 50 us on describing each call before it computes
// anything, so two kinds are computed without it: one whose kernel has a single element is a matrix
// product for each image, in float32 and float64, and one that has a kernel for each channel goes
// plane by plane, in float32. A bias is an addition of its own then, which joins the pass of what
// comes after it. All others are torch's.
#include "aten/precompiled.h"

#include "aten/convolutions.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/sum_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "aten/delegate.h"
#include "aten/norms.h"
#include "aten/past_autograd.h"
#include "aten/prepare.h"
#include "aten/record.h"
#include "aten/record_call.h"
#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/op_table.h"
#include "cpu/copy_rows.h"
#include "cpu/depthwise.h"
#include "cpu/queue.h"

namespace hologram::aten {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Three = std::tuple<Tensor, Tensor, Tensor>;

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

// What both operators are given.
struct Arguments {
  const Tensor &input, &weight;
  IntArrayRef stride, padding, dilation;
  bool transposed;
  IntArrayRef output_padding;
  int64_t groups;
};

bool are_all(IntArrayRef numbers, int64_t value) {
  return std::ranges::all_of(numbers, [&](int64_t number) { return number == value; });
}

// Contiguous, and nothing that torch takes for channels last.
bool is_channels_first(const Tensor& tensor) {
  return tensor.is_contiguous() && tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
}

bool is_operand(const Tensor& tensor, const Tensor& input) {
  return tensor.device().type() == kHologram && tensor.scalar_type() == input.scalar_type() &&
         is_recordable(tensor, input.device().index());
}

bool are_operands(const Tensor& input, const Tensor& weight) {
  return is_operand(input, input) && is_operand(weight, input) && is_channels_first(input) &&
         is_channels_first(weight);
}

// ---- matrix products ----------------------------------------------------------------------------

// Of images [batch, in, inner], that is [batch, out, inner] after the convolution.
struct Pointwise {
  int64_t batch, in, out, inner;

  // Images of few elements lie side by side in one matrix, [channels, batch * inner]: products of
  // few columns cost nearly as much as those of sixteen.
  bool joins() const { return batch > 1 && inner > 1 && inner < 16; }
};

// None where torch has to compute it, or to complain.
std::optional<Pointwise> pointwise(const Arguments& given) {
  const auto& [input, weight, stride, padding, dilation, transposed, output_padding, groups] =
      given;
  const bool wide = input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble;
  if (!wide || transposed || groups != 1 || input.dim() < 3 || weight.dim() != input.dim() ||
      !are_all(weight.sizes().slice(2), 1) || weight.size(1) != input.size(1) ||
      !are_all(stride, 1) || !are_all(padding, 0) || !are_operands(input, weight)) {
    return std::nullopt;
  }
  return Pointwise{input.size(0), input.size(1), weight.size(0),
                   input.numel() / (input.size(0) * input.size(1))};
}

class PointwiseCall : public KernelCall {
 public:
  using Shape = Pointwise;
  PointwiseCall(const char* name, const Pointwise& shape, caffe2::TypeMeta dtype)
      : KernelCall(name), shape_(shape), dtype_(dtype) {}

 protected:
  Tensor matrix(void* memory, int64_t rows, int64_t columns) const {
    return TensorShape({rows, columns}, {columns, 1}, dtype_).over(memory);
  }
  Tensor weight(void* memory) const { return matrix(memory, shape_.out, shape_.in); }
  Tensor images(void* memory, int64_t channels) const {
    return TensorShape({shape_.batch, channels, shape_.inner},
                       {channels * shape_.inner, shape_.inner, 1}, dtype_)
        .over(memory);
  }
  Tensor empty(int64_t rows, int64_t columns) const {
    return at::detail::empty_cpu({rows, columns}, c10::typeMetaToScalarType(dtype_));
  }
  // [channels, batch * inner].
  Tensor joined(const void* images, int64_t channels) const {
    Tensor result = empty(channels, shape_.batch * shape_.inner);
    move(result.data_ptr(), images, shape_.batch, channels);
    return result;
  }
  // to[b][a] = from[a][b], each of `inner` elements.
  void move(void* to, const void* from, int64_t a, int64_t b) const {
    const auto floats = static_cast<int64_t>(dtype_.itemsize() / sizeof(float));
    const int64_t run = shape_.inner * floats;
    for (int64_t i = 0; i < a; ++i) {
      cpu::copy_rows(static_cast<float*>(to) + i * run, a * run,
                     static_cast<const float*>(from) + i * b * run, run, b, run);
    }
  }
  static void multiply(const Tensor& a, const Tensor& b, Tensor out) {
    at::_ops::mm_out::redispatch(kCpu, a, b, out);
  }

  // Images times a matrix: to[n] = matrix * from[n], or of images of one element each,
  // to = from * the other way round.
  void apply(const Tensor& matrix, const Tensor& turned, void* from, void* to) const {
    const int64_t in = matrix.size(1), out = matrix.size(0);
    if (shape_.inner == 1) {
      multiply(this->matrix(from, shape_.batch, in), turned, this->matrix(to, shape_.batch, out));
    } else if (shape_.joins()) {
      const Tensor result = empty(out, shape_.batch * shape_.inner);
      multiply(matrix, joined(from, in), result);
      move(to, result.data_ptr(), out, shape_.batch);
    } else if (shape_.batch == 1) {
      multiply(matrix, this->matrix(from, in, shape_.inner), this->matrix(to, out, shape_.inner));
    } else {
      Tensor result = images(to, out);
      at::_ops::bmm_out::redispatch(kCpu, matrix.expand({shape_.batch, out, in}), images(from, in),
                                    result);
    }
  }

  const Pointwise shape_;
  const caffe2::TypeMeta dtype_;
};

// Memory: input, weight, output.
class PointwiseForward final : public PointwiseCall {
  using PointwiseCall::PointwiseCall;
  void compute(std::span<void* const> memory) override {
    const Tensor matrix = weight(memory[1]);
    apply(matrix, matrix.t(), memory[0], memory[2]);
  }
};

// Memory: the gradient of the output, weight, the gradient of the input.
class PointwiseInputGradient final : public PointwiseCall {
  using PointwiseCall::PointwiseCall;
  void compute(std::span<void* const> memory) override {
    const Tensor matrix = weight(memory[1]);
    apply(matrix.t(), matrix, memory[0], memory[2]);
  }
};

// Memory: the gradient of the output, input, the gradient of the weight.
class PointwiseWeightGradient final : public PointwiseCall {
  using PointwiseCall::PointwiseCall;
  void compute(std::span<void* const> memory) override {
    const auto& [batch, in, out, inner] = shape_;
    Tensor result = weight(memory[2]);
    if (inner == 1) {
      multiply(matrix(memory[0], batch, out).t(), matrix(memory[1], batch, in), result);
    } else if (shape_.joins()) {
      multiply(joined(memory[0], out), joined(memory[1], in).t(), result);
    } else {
      const Tensor grads = images(memory[0], out), inputs = images(memory[1], in);
      for (int64_t n = 0; n < batch; ++n) {
        at::_ops::addmm_out::redispatch(kCpu, result, grads[n], inputs[n].t(), n == 0 ? 0 : 1, 1,
                                        result);
      }
    }
  }
};

// ---- a kernel for each channel
// -------------------------------------------------------------------

constexpr int64_t kMostTaps = 121;  // larger kernels are better off as products

std::optional<cpu::Depthwise> depthwise(const Arguments& given) {
  const auto& [input, weight, stride, padding, dilation, transposed, output_padding, groups] =
      given;
  if (input.scalar_type() != at::kFloat || transposed || input.dim() != 4 || weight.dim() != 4 ||
      groups < 2 || input.size(1) != groups || weight.size(0) != groups || weight.size(1) != 1 ||
      !are_all(dilation, 1) || !are_operands(input, weight)) {
    return std::nullopt;
  }
  cpu::Depthwise shape{};
  shape.images = input.size(0);
  shape.channels = groups;
  shape.height = input.size(2);
  shape.width = input.size(3);
  shape.kernel_height = weight.size(2);
  shape.kernel_width = weight.size(3);
  shape.stride_height = stride[0];
  shape.stride_width = stride[1];
  shape.pad_height = padding[0];
  shape.pad_width = padding[1];
  const int64_t rows = shape.height + 2 * padding[0] - shape.kernel_height;
  const int64_t columns = shape.width + 2 * padding[1] - shape.kernel_width;
  if (rows < 0 || columns < 0 || stride[0] < 1 || stride[1] < 1 || padding[0] < 0 ||
      padding[1] < 0 || shape.taps() > kMostTaps) {
    return std::nullopt;
  }
  shape.out_height = rows / stride[0] + 1;
  shape.out_width = columns / stride[1] + 1;
  return shape;
}

// Memory: two operands, and what is computed of them.
template <auto compute_planes>
class DepthwiseCall final : public KernelCall {
 public:
  using Shape = cpu::Depthwise;
  DepthwiseCall(const char* name, const cpu::Depthwise& shape, caffe2::TypeMeta /*float*/)
      : KernelCall(name), shape_(shape) {}

 private:
  void compute(std::span<void* const> memory) override {
    compute_planes(shape_, static_cast<const float*>(memory[0]),
                   static_cast<const float*>(memory[1]), static_cast<float*>(memory[2]),
                   cpu::parallel());
  }
  const cpu::Depthwise shape_;
};

// ---- operators
// -----------------------------------------------------------------------------------

// `Body`: of a call with the memory of `a`, `b` and the result.
template <class Body>
Tensor record_body(const char* name, const typename Body::Shape& shape, const Tensor& a,
                   const Tensor& b, IntArrayRef sizes) {
  const auto device = a.device().index();
  const Tensor result = make_result(current_window(device), sizes, a.scalar_type(), device);
  record_call(name, {&a, &b}, &result, std::make_shared<Body>(name, shape, a.dtype()));
  return result;
}

// Adds a number for each channel.
void add_bias(const Tensor& result, const Tensor& bias) {
  c10::SmallVector<int64_t, 5> sizes(result.dim() - 1, 1);
  sizes[0] = bias.size(0);
  const Tensor channels = bias.view(sizes);
  const bool added = record_any(Op::add, {Argument(result), Argument(channels)}, &result, nullptr);
  TORCH_INTERNAL_ASSERT(added, "a bias was not added to a convolution");
}

bool is_bias(const Tensor& bias, const Tensor& input, int64_t channels) {
  return is_operand(bias, input) && bias.dim() == 1 && bias.size(0) == channels;
}

// torch's entry point for every device has a CPU kernel.
Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  constexpr const char* name = "aten::convolution";
  static const OperatorDelegate delegate(name, "", "aten::convolution_overrideable");
  static auto& counter = op_counter("aten::convolution_overrideable");
  const Arguments given{input,    weight,     stride,         padding,
                        dilation, transposed, output_padding, groups};
  const bool biased = is_given(bias);
  const auto record = [&](auto body, const auto& shape, at::SmallVector<int64_t, 5> sizes) {
    note_delegated(counter, input.device().index());
    Tensor result = record_body<typename decltype(body)::type>(name, shape, input, weight, sizes);
    if (biased) add_bias(result, *bias);
    return result;
  };
  if (!biased || is_bias(*bias, input, weight.size(0))) {
    c10::SmallVector<int64_t, 5> sizes(input.sizes());
    if (const auto shape = pointwise(given)) {
      sizes[1] = shape->out;
      return record(std::type_identity<PointwiseForward>(), *shape, sizes);
    }
    if (const auto shape = depthwise(given)) {
      sizes[2] = shape->out_height;
      sizes[3] = shape->out_width;
      return record(std::type_identity<DepthwiseCall<cpu::depthwise>>(), *shape, sizes);
    }
  }
  return delegate(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                  groups);
}

// Of the bias.
Tensor sum_of_channels(const Tensor& grad) {
  c10::SmallVector<int64_t, 5> all(grad.dim() - 1, 0);
  for (size_t i = 1; i < all.size(); ++i) all[i] = static_cast<int64_t>(i) + 1;
  return at::_ops::sum_dim_IntList::call(grad, IntArrayRef(all), false, std::nullopt);
}

Three convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                           bool transposed, IntArrayRef output_padding, int64_t groups,
                           std::array<bool, 3> mask) {
  constexpr const char* name = "aten::convolution_backward";
  static const OperatorDelegate delegate(name, "", "aten::convolution_backward_overrideable");
  static auto& counter = op_counter("aten::convolution_backward_overrideable");
  const Arguments given{input,    weight,     stride,         padding,
                        dilation, transposed, output_padding, groups};
  const auto record = [&](auto of_input, auto of_weight, const auto& shape) {
    note_delegated(counter, input.device().index());
    Three all;
    auto& [input_grad, weight_grad, bias_grad] = all;
    if (mask[0]) {
      input_grad =
          record_body<typename decltype(of_input)::type>(name, shape, grad, weight, input.sizes());
    }
    if (mask[1]) {
      weight_grad =
          record_body<typename decltype(of_weight)::type>(name, shape, grad, input, weight.sizes());
    }
    if (mask[2]) bias_grad = sum_of_channels(grad);
    return all;
  };
  const auto is_gradient = [&](int64_t channels, IntArrayRef plane) {
    return grad.dim() == input.dim() && grad.size(0) == input.size(0) && grad.size(1) == channels &&
           grad.sizes().slice(2) == plane;
  };
  if (is_operand(grad, input) && is_channels_first(grad)) {
    const auto shape = pointwise(given);
    if (shape && is_gradient(shape->out, input.sizes().slice(2))) {
      return record(std::type_identity<PointwiseInputGradient>(),
                    std::type_identity<PointwiseWeightGradient>(), *shape);
    }
    const auto planes = depthwise(given);
    if (planes && is_gradient(groups, {planes->out_height, planes->out_width})) {
      return record(std::type_identity<DepthwiseCall<cpu::depthwise_input_gradient>>(),
                    std::type_identity<DepthwiseCall<cpu::depthwise_weight_gradient>>(), *planes);
    }
  }
  // What has no channels is refused below.
  const int64_t channels = weight.dim() < 2 ? 0
                           : transposed     ? weight.size(1) * groups
                                            : weight.size(0);
  return delegate.three(grad, input, weight, IntArrayRef({channels}), stride, padding, dilation,
                        transposed, output_padding, groups, mask);
}

}  // namespace

void register_convolutions() {
  auto& library = native_library();
  impl_delegated(library, "convolution_overrideable", &convolution);
  impl_delegated(library, "convolution_backward_overrideable", &convolution_backward);
}

}  // namespace hologram::aten
