#include "aten/precompiled.h"

#include "aten/norms.h"

#include "aten/block.h"
#include "aten/folding.h"

namespace hologram::aten {

using at::ScalarType;
using at::Tensor;

bool is_given(const OptionalTensor& tensor) {
  return tensor && tensor->defined();
}

std::optional<Dimensions> normalized(const Tensor& input, at::IntArrayRef shape) {
  const auto rank = static_cast<size_t>(input.dim());
  if (shape.empty() || shape.size() > rank || input.sizes().slice(rank - shape.size()) != shape ||
      input.numel() == 0) {
    return std::nullopt;
  }
  const int64_t columns = c10::multiply_integers(shape);
  return Dimensions{1, input.numel() / columns, columns};
}
Sizes row_sizes(const Tensor& input, at::IntArrayRef shape) {
  Sizes sizes(input.sizes().begin(), input.sizes().end());
  for (size_t d = sizes.size() - shape.size(); d < sizes.size(); ++d) sizes[d] = 1;
  return sizes;
}

bool is_vector(const Tensor& tensor, int64_t count, const Tensor& beside) {
  return tensor.device() == beside.device() && is_real(tensor.scalar_type()) &&
         tensor.numel() == count && is_plain_strided(tensor.unsafeGetTensorImpl()) &&
         tensor.is_contiguous() && operand_block(tensor.unsafeGetTensorImpl()) != nullptr;
}
bool is_vector(const OptionalTensor& tensor, int64_t count, const Tensor& beside) {
  return !is_given(tensor) || is_vector(*tensor, count, beside);
}

View by(View value, Spread spread) {
  value.spread = spread;
  return value;
}

std::optional<ScalarType> parameter_type(const Tensor& input,
                                         std::initializer_list<const OptionalTensor*> parameters) {
  std::optional<ScalarType> type;
  for (const OptionalTensor* parameter : parameters) {
    if (!is_given(*parameter)) continue;
    if (type && *type != (*parameter)->scalar_type()) return std::nullopt;
    type = (*parameter)->scalar_type();
  }
  if (!type) return input.scalar_type();
  const bool mixed = *type == at::kFloat && at::isReducedFloatingType(input.scalar_type());
  if (*type != input.scalar_type() && !mixed) return std::nullopt;
  return type;
}

bool adds_product_by_fma(const Tensor& input) {
  return input.scalar_type() == at::kBFloat16;
}

Moments moments(Builder& b, const View& x, const Dimensions& space, double eps) {
  const DType compute = b.compute();
  const int64_t count = space.rows * space.columns;
  const View n = b.number(static_cast<double>(space.columns));
  const View mean = b.apply(Op::div, {b.fold(Op::add, x, space, kRows), n});
  b.enter(compute, count, space);
  const View distance = b.apply(Op::sub, {x, by(mean, kRows)});
  const View squares = b.fold(Op::add, b.apply(Op::mul, {distance, distance}), space, kRows);
  const View variance = b.apply(Op::div, {squares, n});
  const View scale = b.apply(Op::rsqrt, {b.apply(Op::add, {variance, b.number(eps)})});
  return {distance, scale, mean};
}

}  // namespace hologram::aten
