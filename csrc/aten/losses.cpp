// The negative log likelihood of classes, and its derivative; with log_softmax they are the cross
// entropy.
//
// The class of an element is a position (atlas/group.h), so that picking what belongs to a target
// is a choice between elements, which joins the pass that makes the logarithms or takes their
// gradient. In a row it is found at once; of many logarithms in memory whose classes are not a row
// only the picked ones are read, by torch's kernel for that, with the same bits. Whether targets
// are classes is seen when they are there (atlas/checks.h).
#include "aten/precompiled.h"

#include "aten/row_programs.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/where.h>

#include <memory>
#include <optional>
#include <tuple>

#include "aten/below_autograd.h"
#include "aten/block.h"
#include "aten/folding.h"
#include "aten/overloads.h"
#include "aten/past_autograd.h"
#include "atlas/device.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;

// Classes, and targets among them, are numbers of the compute type: of float32 exact up to here.
constexpr int64_t kMostClasses = int64_t{1} << 24;
// Of so many logarithms in memory a pass over all is quicker than picking.
constexpr int64_t kFewElements = 32'768;

bool is_given(const OptionalTensor& tensor) {
  return tensor && tensor->defined();
}

View by(View value, Spread spread) {
  value.spread = spread;
  return value;
}

bool is_dense(const Tensor& tensor, const Tensor& beside) {
  return tensor.device() == beside.device() && tensor.numel() != 0 &&
         is_plain_strided(tensor.unsafeGetTensorImpl()) && tensor.is_contiguous() &&
         operand_block(tensor.unsafeGetTensorImpl()) != nullptr;
}

// The same elements next to each other; a copy of them is recorded.
Tensor in_order(const Tensor& tensor) {
  if (!is_plain_strided(tensor.unsafeGetTensorImpl()) || tensor.is_contiguous()) return tensor;
  const BelowAutograd below;
  return tensor.contiguous();
}

// Whether the values of a tensor are recorded and not computed yet.
bool is_pending(const Tensor& tensor) {
  const Block& block = *operand_block(tensor.unsafeGetTensorImpl());
  const Window* const window = block.window.load(std::memory_order_acquire);
  return window != nullptr && window->pending(block);
}

// The space of the elements, and what of it there is for each class, and for each target.
struct Loss {
  Dimensions space;
  Spread position, of_class, of_target;
  DType dtype, compute;
  int64_t classes;
  int64_t targets;
  View target, weight;
  bool weighted;
  int64_t ignored;

  int64_t count() const { return classes * targets; }
  bool ignores_a_class() const { return ignored >= 0 && ignored < classes; }
  void enter_elements(Builder& b) const { b.enter(compute, count(), space); }
};

// Whether the input is the classes of one target alone. Without a reduction its loss is the sum.
bool is_one_target(const Tensor& input, const Tensor& target, int64_t rank) {
  return rank == 2 && input.dim() == 1 && target.dim() == 0;
}

// Of the arguments that forward and backward have in common; none where torch's kernel serves them,
// or has to complain. `rank`: of the input.
std::optional<Loss> loss_of(const Tensor& input, const Tensor& target, const OptionalTensor& weight,
                            int64_t ignored, int64_t rank) {
  const auto dtype = group_dtype(input.scalar_type());
  const bool is_one = is_one_target(input, target, rank);
  if (!dtype || (kReal & dtype_bit(*dtype)) == 0 ||
      (!is_one && (input.dim() != rank || target.dim() != rank - 1)) ||
      target.scalar_type() != at::kLong || !is_dense(input, input) || !is_dense(target, input)) {
    return std::nullopt;
  }
  const int64_t batch = is_one ? 1 : input.size(0),
                classes = is_one ? input.size(0) : input.size(1);
  const int64_t inner = input.numel() / (batch * classes);
  for (int64_t d = 0; !is_one && d < rank - 1; ++d) {
    if (target.size(d) != input.size(d == 0 ? 0 : d + 1)) return std::nullopt;
  }
  if (classes > kMostClasses || ignored < -kMostClasses || ignored > kMostClasses) {
    return std::nullopt;
  }
  const bool weighted = is_given(weight);
  if (weighted && (!is_dense(*weight, input) || weight->dim() != 1 || weight->numel() != classes ||
                   weight->scalar_type() != input.scalar_type())) {
    return std::nullopt;
  }
  Loss loss{};
  if (inner == 1) {
    loss.space = {1, batch, classes};
    loss.position = loss.of_class = kColumns;
    loss.of_target = kRows;
  } else {
    loss.space = {batch, classes, inner};
    loss.position = kRows;
    loss.of_class = batch == 1 ? kRows : kMiddle;
    loss.of_target = batch == 1 ? kColumns : kPlanesAndColumns;
  }
  loss.dtype = *dtype;
  loss.compute = compute_dtype(*dtype);
  loss.classes = classes;
  loss.targets = batch * inner;
  loss.target = contiguous_view(target);
  loss.weighted = weighted;
  if (weighted) loss.weight = contiguous_view(*weight);
  loss.ignored = ignored;
  return loss;
}

// Whether targets are not to be ignored.
View counts(Builder& b, const Loss& loss, const View& target) {
  return b.apply(Op::ne, {target, b.number(static_cast<double>(loss.ignored))});
}

// Whether each element is of its target's class.
View is_target(Builder& b, const Loss& loss) {
  View position{nullptr, 0, loss.compute, Layout::dense};
  position.spread = loss.position;
  return b.apply(Op::eq, {position, by(loss.target, loss.of_target)});
}

// What there is for each target, but 0 for those that are ignored.
View counted(Builder& b, const Loss& loss, const View& value) {
  return b.apply(Op::where, {counts(b, loss, loss.target), value, b.number(0)});
}

// Of each target, which the builder is at afterwards, the element of its class; 0 for none.
View picked(Builder& b, const Loss& loss, const View& elements) {
  loss.enter_elements(b);
  const View chosen = b.apply(Op::where, {is_target(b, loss), elements, b.number(0)});
  const View value = b.fold(Op::add, chosen, loss.space, loss.of_target);
  return loss.ignores_a_class() ? counted(b, loss, value) : value;
}

// Places of elements, where targets are no classes too.
Tensor places_of(const Tensor& target, const Loss& loss) {
  const Tensor classes = at::where(at::eq(target, loss.ignored), at::Scalar(0), target);
  return at::clamp(classes, at::Scalar(0), at::Scalar(loss.classes - 1));
}
// The same as picked() of what has been gathered.
View gathered(Builder& b, const Loss& loss, const Tensor& elements) {
  b.enter(loss.compute, loss.targets);
  return b.apply(Op::add, {counted(b, loss, contiguous_view(elements)), b.number(0)});
}

View total(Builder& b, const Loss& loss, const View& of_targets) {
  const View sum = b.fold(Op::add, of_targets, {1, 1, loss.targets}, kRows);
  b.enter(loss.compute, loss.targets);
  return sum;
}

// Of the targets but those that are ignored, the least and the greatest.
Check check_targets(Builder& b, const Loss& loss, const Tensor& like, Window& window,
                    const char* operation) {
  auto words = std::make_shared<Tensor>(make_folded(window, like, {2}, at::kLong));
  b.enter(DType::i64, loss.targets);
  View target = loss.target;
  if (!loss.ignores_a_class()) {
    const View ignored = b.number(static_cast<double>(loss.ignored));
    target = b.apply(Op::where, {b.apply(Op::eq, {target, ignored}), b.number(0), target});
  }
  View word = contiguous_view(*words);
  for (const Op extremum : {Op::minimum, Op::maximum}) {
    b.fold(extremum, target, {1, 1, loss.targets}, kRows);
    b.give(word, DType::i64);
    word.offset += sizeof(int64_t);
  }
  Block* const block = block_of(words->storage().data_ptr());
  return {block, std::move(words), "Target", operation, loss.classes};
}

bool record_forward(const char* operation, const Tensor& input, const Tensor& target,
                    const OptionalTensor& weight, int64_t reduction, int64_t ignored, int64_t rank,
                    Two& results) {
  const auto loss = loss_of(input, target, weight, ignored, rank);
  if (!loss) return false;
  // Along a row the canonicaliser picks (NodeKind::pick).
  const bool gathers =
      loss->of_target != kRows && loss->count() > kFewElements && !is_pending(input);
  Tensor logs_of_targets, weights_of_targets;
  if (gathers) {
    const BelowAutograd below;
    const Tensor places = places_of(target, *loss);
    logs_of_targets = at::gather(input, 1, places.unsqueeze(1)).contiguous();
    if (loss->weighted) weights_of_targets = at::gather(*weight, 0, places.flatten()).contiguous();
  }
  Window& window = current_window(input.device().index());
  const bool each = reduction == at::Reduction::None && !is_one_target(input, target, rank);
  Tensor out =
      make_folded(window, input, each ? target.sizes() : at::IntArrayRef{}, input.scalar_type());
  Tensor sum_of_weights = make_folded(window, input, {}, input.scalar_type());
  Builder b(loss->compute, loss->count(), {});
  b.reserve(24);
  View value, weights;
  if (gathers) {
    value = gathered(b, *loss, logs_of_targets);
    if (loss->weighted) weights = gathered(b, *loss, weights_of_targets);
  } else {
    value = picked(b, *loss, contiguous_view(input));
    if (loss->weighted) weights = picked(b, *loss, by(loss->weight, loss->of_class));
  }
  if (loss->weighted) value = b.apply(Op::mul, {value, weights});
  value = b.apply(Op::sub, {b.number(0), value});
  const View result = contiguous_view(out), sum_view = contiguous_view(sum_of_weights);
  if (each) {
    b.give(result, loss->dtype);
    b.enter(loss->compute, 1);
    b.store(sum_view, b.number(0));  // torch's kernel has no use for it
  } else {
    if (!loss->weighted) {
      weights = counted(b, *loss, b.number(1));
    }
    const View sum = total(b, *loss, value), all = total(b, *loss, weights);
    b.enter(loss->compute, 1);
    b.store(sum_view, all);
    if (reduction == at::Reduction::Mean) {
      b.apply(Op::div, {sum, all});
      b.give(result, loss->dtype);
    } else {
      b.store(result, sum);
    }
  }
  Check check = check_targets(b, *loss, input, window, operation);
  record_built(window, b, &check);
  results = {std::move(out), std::move(sum_of_weights)};
  return true;
}

// The gradient of the loss, as it lies beside the targets; none where it has gaps.
std::optional<View> gradient_of(const Tensor& grad, const Tensor& target, const Loss& loss,
                                bool each) {
  const auto* impl = grad.unsafeGetTensorImpl();
  if (grad.device() != target.device() || !is_plain_strided(impl) ||
      operand_block(impl) == nullptr) {
    return std::nullopt;
  }
  bool one = grad.numel() == 1;
  if (each && grad.sizes() != target.sizes()) return std::nullopt;
  if (!each && !one) return std::nullopt;
  if (!one && !grad.is_contiguous()) {
    one = true;  // for all: what a sum gives
    for (int64_t d = 0; d < grad.dim(); ++d)
      one = one && (grad.size(d) == 1 || grad.stride(d) == 0);
    if (!one) return std::nullopt;
  }
  View view = contiguous_view(grad);
  if (one) {
    view.layout = Layout::scalar;
    return view;
  }
  return by(view, loss.of_target);
}

bool record_backward(const Tensor& grad, const Tensor& input, const Tensor& target,
                     const OptionalTensor& weight, int64_t reduction, int64_t ignored,
                     const Tensor& total_weight, int64_t rank, Tensor& result) {
  const auto loss = loss_of(input, target, weight, ignored, rank);
  if (!loss || grad.scalar_type() != input.scalar_type()) return false;
  const bool mean = reduction == at::Reduction::Mean;
  if (mean && (!is_dense(total_weight, input) || total_weight.numel() != 1 ||
               total_weight.scalar_type() != input.scalar_type())) {
    return false;
  }
  const auto gradient = gradient_of(grad, target, *loss, reduction == at::Reduction::None);
  if (!gradient) return false;
  Window& window = current_window(input.device().index());
  result = make_folded(window, input, input.sizes(), input.scalar_type());
  Builder b(loss->compute, loss->count(), {});
  b.reserve(8);
  loss->enter_elements(b);
  // What there is one of for each target is computed once for it.
  View g = *gradient;
  if (mean) {
    View all = contiguous_view(total_weight);
    all.layout = Layout::scalar;
    g = b.apply(Op::div, {g, all});
  }
  g = b.apply(Op::neg, {g});
  if (loss->weighted) g = b.apply(Op::mul, {g, by(loss->weight, loss->of_class)});
  View hit = is_target(b, *loss);
  if (loss->ignores_a_class()) {
    const View used = counts(b, *loss, by(loss->target, loss->of_target));
    hit = b.apply(Op::logical_and, {hit, used});
  }
  b.apply(Op::where, {hit, g, b.number(0)});
  b.give(contiguous_view(result), loss->dtype);
  record_built(window, b);
  return true;
}

template <int64_t rank>
Two forward(Service& here, const char* operation, const Tensor& input, const Tensor& target,
            const OptionalTensor& weight, int64_t reduction, int64_t ignored) {
  Two results;
  if (!record_forward(operation, rank == 2 ? in_order(input) : input, in_order(target), weight,
                      reduction, ignored, rank, results)) {
    return here.delegate.two(input, target, weight, reduction, ignored);
  }
  note_native(here.counter);
  return results;
}
template <int64_t rank>
Tensor backward(Service& here, const Tensor& grad, const Tensor& input, const Tensor& target,
                const OptionalTensor& weight, int64_t reduction, int64_t ignored,
                const Tensor& total_weight) {
  Tensor result;
  // The gradient of images lies in memory as they do.
  if (!record_backward(grad, rank == 2 ? in_order(input) : input, in_order(target), weight,
                       reduction, ignored, total_weight, rank, result)) {
    return here.delegate(grad, input, target, weight, reduction, ignored, total_weight);
  }
  note_native(here.counter);
  return result;
}

}  // namespace

#define HOLOGRAM_LOSS(name, rank)                                                                \
  {                                                                                              \
    static Service plain("aten::" name "_forward", ""), derived("aten::" name "_backward", "");  \
    implement(                                                                                   \
        name "_forward", +[](const Tensor& input, const Tensor& target,                          \
                             const OptionalTensor& weight, int64_t reduction, int64_t ignored) { \
          return forward<rank>(plain, name, input, target, weight, reduction, ignored);          \
        });                                                                                      \
    implement(                                                                                   \
        name "_backward", +[](const Tensor& grad, const Tensor& input, const Tensor& target,     \
                              const OptionalTensor& weight, int64_t reduction, int64_t ignored,  \
                              const Tensor& total_weight) {                                      \
          return backward<rank>(derived, grad, input, target, weight, reduction, ignored,        \
                                total_weight);                                                   \
        });                                                                                      \
  }

void register_losses() {
  HOLOGRAM_LOSS("nll_loss", 2)
  HOLOGRAM_LOSS("nll_loss2d", 4)
}

}  // namespace hologram::aten
