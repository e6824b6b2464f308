// Convolutions. One whose kernel has a single element is a matrix product for each image, and is
// computed as that, in float32 and float64: torch's library for convolutions spends 45 us on
// describing each call before it computes anything. Its bias is an addition of its own, which joins
// the pass of what comes after it. All others are torch's.
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
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "aten/delegate.h"
#include "aten/norms.h"
#include "aten/prepare.h"
#include "aten/record.h"
#include "aten/record_call.h"
#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Three = std::tuple<Tensor, Tensor, Tensor>;

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

// ---- matrix products
// -----------------------------------------------------------------------------

// Of images [batch, in, inner], that is [batch, out, inner] after the convolution.
struct Pointwise {
  int64_t batch, in, out, inner;

  // Images of few elements lie side by side in one matrix, [channels, batch * inner]: products of
  // few columns cost nearly as much as those of sixteen.
  bool joins() const { return batch > 1 && inner > 1 && inner < 16; }
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

// None where torch has to compute it, or to complain.
std::optional<Pointwise> pointwise(const Tensor& input, const Tensor& weight, IntArrayRef stride,
                                   IntArrayRef padding, bool transposed, int64_t groups) {
  const bool wide = input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble;
  if (!wide || transposed || groups != 1 || input.dim() < 3 || weight.dim() != input.dim() ||
      !are_all(weight.sizes().slice(2), 1) || weight.size(1) != input.size(1) ||
      !are_all(stride, 1) || !are_all(padding, 0) || !is_operand(input, input) ||
      !is_operand(weight, input) || !is_channels_first(input) || !is_channels_first(weight)) {
    return std::nullopt;
  }
  return Pointwise{input.size(0), input.size(1), weight.size(0),
                   input.numel() / (input.size(0) * input.size(1))};
}

// to[b][a] = from[a][b], each of `inner` elements.
template <class T>
void exchange(T* to, const T* from, int64_t a, int64_t b, int64_t inner) {
  const auto run = [&](auto count) {
    for (int64_t i = 0; i < a; ++i) {
      for (int64_t k = 0; k < b; ++k) {
        std::memcpy(to + (k * a + i) * inner, from + (i * b + k) * inner,
                    static_cast<size_t>(count) * sizeof(T));
      }
    }
  };
  // The sizes of the last layers of networks, as constants.
  switch (inner) {
    case 4: return run(std::integral_constant<int64_t, 4>());
    case 9: return run(std::integral_constant<int64_t, 9>());
    default: return run(inner);
  }
}

class PointwiseCall : public KernelCall {
 public:
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
  void move(void* to, const void* from, int64_t a, int64_t b) const {
    if (dtype_.itemsize() == 4) {
      exchange(static_cast<int32_t*>(to), static_cast<const int32_t*>(from), a, b, shape_.inner);
    } else {
      exchange(static_cast<int64_t*>(to), static_cast<const int64_t*>(from), a, b, shape_.inner);
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
class Forward final : public PointwiseCall {
  using PointwiseCall::PointwiseCall;
  void compute(std::span<void* const> memory) override {
    const Tensor matrix = weight(memory[1]);
    apply(matrix, matrix.t(), memory[0], memory[2]);
  }
};

// Memory: the gradient of the output, weight, the gradient of the input.
class InputGradient final : public PointwiseCall {
  using PointwiseCall::PointwiseCall;
  void compute(std::span<void* const> memory) override {
    const Tensor matrix = weight(memory[1]);
    apply(matrix.t(), matrix, memory[0], memory[2]);
  }
};

// Memory: the gradient of the output, input, the gradient of the weight.
class WeightGradient final : public PointwiseCall {
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

template <class Body>
Tensor record_pointwise(const char* name, const Pointwise& shape, const Tensor& a, const Tensor& b,
                        IntArrayRef sizes) {
  const auto device = a.device().index();
  const Tensor result = make_result(current_window(device), sizes, a.scalar_type(), device);
  record_call(name, {&a, &b}, &result, std::make_shared<Body>(name, shape, a.dtype()));
  return result;
}

// ---- operators
// -----------------------------------------------------------------------------------

// Adds a number for each channel.
bool add_bias(const Tensor& result, const Tensor& bias) {
  c10::SmallVector<int64_t, 5> sizes(result.dim() - 1, 1);
  sizes[0] = bias.size(0);
  const Tensor channels = bias.view(sizes);
  return record_any(Op::add, {Argument(result), Argument(channels)}, &result, nullptr);
}

// torch's entry point for every device has a CPU kernel.
Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  static const OperatorDelegate delegate("aten::convolution", "", "aten::convolution_overrideable");
  static auto& counter = op_counter("aten::convolution_overrideable");
  const auto shape = pointwise(input, weight, stride, padding, transposed, groups);
  const bool biased = is_given(bias);
  if (!shape ||
      (biased && !(is_operand(*bias, input) && bias->dim() == 1 && bias->size(0) == shape->out))) {
    return delegate(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                    groups);
  }
  note_delegated(counter, input.device().index());
  c10::SmallVector<int64_t, 5> sizes(input.sizes());
  sizes[1] = shape->out;
  const Tensor result =
      record_pointwise<Forward>("aten::convolution", *shape, input, weight, sizes);
  if (biased) {
    const bool added = add_bias(result, *bias);
    TORCH_INTERNAL_ASSERT(added, "a bias was not added to a convolution");
  }
  return result;
}

Three convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                           bool transposed, IntArrayRef output_padding, int64_t groups,
                           std::array<bool, 3> mask) {
  constexpr const char* name = "aten::convolution_backward";
  static const OperatorDelegate delegate(name, "", "aten::convolution_backward_overrideable");
  static auto& counter = op_counter("aten::convolution_backward_overrideable");
  const auto shape = pointwise(input, weight, stride, padding, transposed, groups);
  if (!shape || !is_operand(grad, input) || !is_channels_first(grad)) {
    // What has no channels is refused below.
    const int64_t channels = weight.dim() < 2 ? 0
                             : transposed     ? weight.size(1) * groups
                                              : weight.size(0);
    return delegate.three(grad, input, weight, IntArrayRef({channels}), stride, padding, dilation,
                          transposed, output_padding, groups, mask);
  }
  note_delegated(counter, input.device().index());
  Three result;
  if (mask[0]) {
    std::get<0>(result) =
        record_pointwise<InputGradient>(name, *shape, grad, weight, input.sizes());
  }
  if (mask[1]) {
    std::get<1>(result) =
        record_pointwise<WeightGradient>(name, *shape, grad, input, weight.sizes());
  }
  if (mask[2]) {
    c10::SmallVector<int64_t, 5> all(input.dim() - 1, 0);
    for (size_t i = 1; i < all.size(); ++i) all[i] = static_cast<int64_t>(i) + 1;
    std::get<2>(result) =
        at::_ops::sum_dim_IntList::call(grad, IntArrayRef(all), false, std::nullopt);
  }
  return result;
}

}  // namespace

void register_convolutions() {
  auto& library = overload_library();
  impl_delegated(library, "convolution_overrideable", &convolution);
  impl_delegated(library, "convolution_backward_overrideable", &convolution_backward);
}

}  // namespace hologram::aten
