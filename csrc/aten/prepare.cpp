// Calls are prepared in a short way, which most of them can take, or step by step.
#include "aten/precompiled.h"

#include "aten/prepare.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "aten/block.h"
#include "aten/memory_overlap.h"
#include "aten/numbers.h"
#include "atlas/device.h"
#include "atlas/group.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// The short way, for most calls: contiguous tensors of one size and dtype, and numbers that do not
// change it. False, with nothing done, for others.
bool prepare_alike(const OperandRules& rules, at::ArrayRef<Argument> in, const Tensor* out,
                   Tensor* fresh, Prepared& prepared) {
  const size_t first = rules.condition ? 1 : 0;
  if (in.size() <= first || in[first].tensor == nullptr) {
    return false;
  }
  const auto type = in[first].tensor->scalar_type();
  const auto dtype = group_dtype(type);
  if (!dtype || (rules.dtypes & dtype_bit(compute_dtype(*dtype))) == 0 ||
      (*dtype == DType::b8 && rules.no_bool)) {
    return false;
  }
  const bool real = (kReal & dtype_bit(*dtype)) != 0;
  const auto* model = in[first].tensor->unsafeGetTensorImpl();
  const auto like_model = [&](const c10::TensorImpl* tensor, c10::ScalarType wanted) -> Block* {
    const bool same = is_plain_strided(tensor) && tensor->is_contiguous() &&
                      tensor->dtype() == c10::scalarTypeToTypeMeta(wanted) &&
                      tensor->sizes() == model->sizes() && tensor->device() == model->device();
    return same ? operand_block(tensor) : nullptr;
  };
  if ((!real && rules.promotes) || model->numel() == 0) {
    return false;
  }
  bool with_number = false;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool condition = i < first;
    const auto* tensor = in[i].tensor == nullptr ? nullptr : in[i].tensor->unsafeGetTensorImpl();
    const bool copied = tensor != nullptr && is_cpu_number(tensor);
    if (tensor == nullptr || copied) {
      if (condition || (copied && (!rules.cpu_numbers || model->dim() == 0))) {
        return false;
      }
      const auto number = number_beside(copied ? number_of(tensor) : *in[i].scalar, *dtype,
                                        rules.keeps_numbers && i > 0);
      if (!number) {
        return false;
      }
      prepared.in[i] = *number;
      with_number = true;
      continue;
    }
    Block* const block = like_model(tensor, condition ? c10::ScalarType::Bool : type);
    if (block == nullptr) {
      return false;
    }
    if (out != nullptr) {
      const auto* o = out->unsafeGetTensorImpl();
      const bool converts = condition || tensor->dtype() != o->dtype();
      if (overlaps(o, tensor) || (converts && o->data() == tensor->data())) return false;
    }
    prepared.in[i] = dense_view(block, tensor, condition ? DType::b8 : *dtype);
  }
  // Beside a number, which is a tensor of another shape, torch looks at every stride.
  for (size_t i = 0; with_number && out == nullptr && i < in.size(); ++i) {
    if (in[i].tensor != nullptr && in[i].tensor->dim() != 0 &&
        !has_default_strides(in[i].tensor->unsafeGetTensorImpl())) {
      return false;
    }
  }
  Block* written = nullptr;
  DType stored = rules.predicate ? DType::b8 : *dtype;
  if (out != nullptr) {
    const bool truth = rules.predicate && out->scalar_type() == c10::ScalarType::Bool;
    written = like_model(out->unsafeGetTensorImpl(), truth ? c10::ScalarType::Bool : type);
    if (written == nullptr) return false;
    if (!truth) stored = *dtype;
  }
  prepared.window = &current_window(model->device().index());
  prepared.dtype = *dtype;
  prepared.space.count = model->numel();
  if (out == nullptr) {
    *fresh = make_result(*prepared.window, model->sizes(),
                         rules.predicate ? c10::ScalarType::Bool : type, model->device().index());
    out = fresh;
    written = block_of(fresh->storage().data_ptr());
  }
  prepared.out = dense_view(written, out->unsafeGetTensorImpl(), stored);
  return true;
}

// The long way, step by step. A step that is false leaves the call to torch's kernel; none of these
// comes after one that makes something.
class Preparation {
 public:
  Preparation(const OperandRules& rules, at::ArrayRef<Argument> in, const Tensor* out,
              Prepared& prepared)
      : rules_(rules), in_(in), out_(out), prepared_(prepared) {}

  bool run(Tensor* fresh) {
    if (!find_dtype() || !find_space()) return false;
    prepared_.window = &current_window(*device_);
    if (out_ == nullptr) {
      make_out(fresh);
      out_ = fresh;
    } else if (!check_out()) {
      return false;
    }
    make_views();
    return true;
  }

 private:
  bool is_on_device(const c10::TensorImpl* tensor);
  bool find_operands(at::native::ResultTypeState& types);
  bool find_dtype();
  bool find_space();
  bool check_out();
  void make_out(Tensor* fresh);
  void make_views();
  bool find_spreads();
  View view_of(const c10::TensorImpl* tensor, size_t operand) const;

  const OperandRules& rules_;
  const at::ArrayRef<Argument> in_;
  const Tensor* out_;
  Prepared& prepared_;

  std::optional<c10::DeviceIndex> device_;
  c10::ScalarType common_{}, result_{};  // types of the operation and of its result
  std::array<std::optional<at::Scalar>, kMostArguments> numbers_;  // of `in`, empty for tensors
  c10::SmallVector<const c10::TensorImpl*, 4> tensors_;            // of `in`, null for numbers
  const c10::TensorImpl* first_ = nullptr;                         // of these
  bool with_number_ = false;  // in torch's eyes one operand has no dimensions
  bool alike_ = true;         // all tensors lie in memory the same way and fill it
  Sizes whole_;               // of the space, before dimensions are joined
  bool has_spreads_ = false;
  std::array<Spread, 1 + kMostArguments> spreads_{};  // of the result and the operands
};

bool Preparation::is_on_device(const c10::TensorImpl* tensor) {
  if (!is_plain_strided(tensor) || (device_ && *device_ != tensor->device().index())) return false;
  device_ = tensor->device().index();
  return true;
}

// Which operands are numbers, the device of the others, and what decides on the dtype.
bool Preparation::find_operands(at::native::ResultTypeState& types) {
  for (size_t i = 0; i < in_.size(); ++i) {
    const bool condition = i == 0 && rules_.condition;
    if (in_[i].tensor == nullptr) {
      const at::Scalar& number = *in_[i].scalar;
      const bool parameter = rules_.parameter && i + 1 == in_.size();
      if (!is_plain_number(number) || ((rules_.no_bool || parameter) && number.isBoolean())) {
        return false;
      }
      if (!parameter) types = at::native::update_result_type_state(number, types);
      numbers_[i] = number;
      continue;
    }
    const auto type = in_[i].tensor->scalar_type();
    if ((rules_.no_bool && type == c10::ScalarType::Bool) ||
        (rules_.one_dtype && in_[0].tensor != nullptr && type != in_[0].tensor->scalar_type())) {
      return false;
    }
    const auto* tensor = in_[i].tensor->unsafeGetTensorImpl();
    if (is_cpu_number(tensor)) {
      if (condition || !rules_.cpu_numbers) return false;
      numbers_[i] = number_of(tensor);
      if (!numbers_[i]) return false;
    } else if (!is_on_device(tensor)) {
      return false;
    }
    if (condition) {
      if (type != c10::ScalarType::Bool) return false;
    } else {
      types = at::native::update_result_type_state(*in_[i].tensor, types);
    }
  }
  return true;
}

bool Preparation::find_dtype() {
  at::native::ResultTypeState types = {};
  if (!find_operands(types)) {
    return false;
  }
  if (!device_ || (out_ != nullptr && !is_on_device(out_->unsafeGetTensorImpl()))) {
    return false;
  }
  common_ = at::native::result_type(types);
  if (c10::isIntegralType(common_, /*includeBool=*/true) && rules_.promotes) {
    common_ = c10::typeMetaToScalarType(c10::get_default_dtype());
  }
  const auto dtype = group_dtype(common_);
  if (!dtype || (rules_.dtypes & dtype_bit(compute_dtype(*dtype))) == 0) {
    return false;
  }
  prepared_.dtype = *dtype;
  for (const auto& number : numbers_) {
    if (number && !has_value(*number, *dtype)) return false;
  }
  result_ = rules_.predicate ? c10::ScalarType::Bool : common_;
  if (out_ != nullptr) {
    const auto type = out_->scalar_type();
    const bool fits = rules_.exact_out ? type == result_ : c10::canCast(result_, type);
    if (!fits || !group_dtype(type)) return false;
  }
  return true;
}

bool Preparation::find_space() {
  IterationSpace& space = prepared_.space;
  const DType dtype = prepared_.dtype;
  for (size_t i = 0; i < in_.size(); ++i) {
    if (numbers_[i]) {
      with_number_ = with_number_ || in_[i].tensor != nullptr || rules_.number_operands;
      tensors_.push_back(nullptr);
      continue;
    }
    const auto* tensor = in_[i].tensor->unsafeGetTensorImpl();
    tensors_.push_back(tensor);
    const auto own = group_dtype(tensor->dtype().toScalarType());
    if (operand_block(tensor) == nullptr || !own) {
      return false;
    }
    // torch rounds what is wider to half precision before it computes.
    if (rules_.widens && is_half(dtype) && *own != dtype && *own != DType::b8) {
      return false;
    }
    if (first_ == nullptr) {
      first_ = tensor;
      space.sizes.assign(tensor->sizes().begin(), tensor->sizes().end());
    } else if (!broadcast(space.sizes, tensor->sizes())) {
      return false;
    }
    alike_ = alike_ && same_and_dense(first_, tensor);
  }
  space.count = c10::multiply_integers(space.sizes);
  whole_ = space.sizes;
  return space.count != 0;
}

bool Preparation::check_out() {
  const auto* o = out_->unsafeGetTensorImpl();
  if (o->sizes() != c10::IntArrayRef(whole_) || operand_block(o) == nullptr || overlaps_itself(o)) {
    return false;
  }
  for (const auto* tensor : tensors_) {
    if (tensor != nullptr && !may_write(o, tensor)) return false;
  }
  alike_ = alike_ && same_and_dense(first_, o);
  return true;
}

void Preparation::make_out(Tensor* fresh) {
  *fresh = make_result(*prepared_.window, whole_, result_, *device_);
  std::array<bool, kMostArguments> converted{};
  for (size_t i = 0; i < tensors_.size(); ++i) {
    converted[i] = tensors_[i] != nullptr && !(i == 0 && rules_.condition) &&
                   tensors_[i]->dtype() != c10::scalarTypeToTypeMeta(common_);
  }
  const Sizes strides = result_strides(
      tensors_, c10::ArrayRef<bool>(converted.data(), tensors_.size()), whole_, with_number_);
  if (!strides.empty()) {
    fresh->unsafeGetTensorImpl()->set_sizes_and_strides(whole_, strides);
  }
  alike_ = alike_ && same_and_dense(first_, fresh->unsafeGetTensorImpl());
}

void Preparation::make_views() {
  IterationSpace& space = prepared_.space;
  const auto* o = out_->unsafeGetTensorImpl();
  if (!alike_) {
    space.strides[0] = byte_strides(o, whole_);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      space.strides[i + 1] =
          tensors_[i] != nullptr ? byte_strides(tensors_[i], whole_) : Sizes(whole_.size(), 0);
    }
    order_by_result(space, 1 + tensors_.size());
    coalesce(space, 1 + tensors_.size());
    has_spreads_ = find_spreads();
  }
  prepared_.out = view_of(o, 0);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i] != nullptr) {
      prepared_.in[i] = view_of(tensors_[i], i + 1);
    } else {
      const bool as_it_is = rules_.keeps_numbers && i > 0;
      prepared_.in[i] =
          immediate(immediate_bits(*numbers_[i], prepared_.dtype, as_it_is), prepared_.dtype);
    }
  }
}

// Whether every operand fills memory in the order of those dimensions that it has, at most three.
bool Preparation::find_spreads() {
  IterationSpace& space = prepared_.space;
  const size_t rank = space.sizes.size();
  if (rank < 2 || rank > 3) return false;
  constexpr Spread kOfTwo[] = {kRows, kColumns}, kOfThree[] = {kPlanes, kMiddle, kColumns};
  const Spread* const bits = rank == 2 ? kOfTwo : kOfThree;
  for (size_t i = 0; i <= tensors_.size(); ++i) {
    const auto* tensor = i == 0 ? out_->unsafeGetTensorImpl() : tensors_[i - 1];
    spreads_[i] = kOne;
    if (tensor == nullptr) continue;
    int64_t dense = static_cast<int64_t>(tensor->itemsize());
    for (size_t d = rank; d-- > 0;) {
      const int64_t stride = space.strides[i][d];
      if (stride == 0) continue;
      if (stride != dense) return false;
      dense *= space.sizes[d];
      spreads_[i] |= bits[d];
    }
  }
  if (spreads_[0] != kEach) return false;
  prepared_.dimensions = {rank == 2 ? 1 : space.sizes[0], space.sizes[rank - 2],
                          space.sizes[rank - 1]};
  return true;
}

constexpr bool is_zero(int64_t stride) {
  return stride == 0;
}

View Preparation::view_of(const c10::TensorImpl* tensor, size_t operand) const {
  const Sizes& strides = prepared_.space.strides[operand];
  View made = dense_view(block_of(tensor->storage().data_ptr()), tensor,
                         *group_dtype(tensor->dtype().toScalarType()));
  if (alike_ ||
      is_dense(prepared_.space.sizes, strides, static_cast<int64_t>(tensor->itemsize()))) {
    return made;
  }
  if (has_spreads_ && spreads_[operand] != kOne) {
    made.spread = spreads_[operand];
  } else if (has_spreads_ || tensor->numel() == 1 ||
             (operand != 0 && std::all_of(strides.begin(), strides.end(), is_zero))) {
    made.layout = Layout::scalar;  // one element, or one that is broadcast by hand
  } else {
    made.layout = Layout::strided;
    made.strides = strides.data();
  }
  return made;
}

}  // namespace

bool prepare(const OperandRules& rules, at::ArrayRef<Argument> in, const Tensor* out, Tensor* fresh,
             Prepared& prepared) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(in.size() <= kMostArguments);
  return prepare_alike(rules, in, out, fresh, prepared) ||
         Preparation(rules, in, out, prepared).run(fresh);
}

// Without sizes yet.
static Tensor make_unwritten(Window& window, size_t nbytes, caffe2::TypeMeta dtype,
                             c10::DeviceIndex device) {
  return at::detail::make_tensor<c10::TensorImpl>(
      make_storage(nbytes, device, window), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype);
}

Tensor make_result(Window& window, c10::IntArrayRef sizes, c10::ScalarType type,
                   c10::DeviceIndex device) {
  uint64_t nbytes = 0;
  if (C10_UNLIKELY(c10::safe_multiplies_u64(sizes, &nbytes) |
                   c10::mul_overflows(nbytes, uint64_t{c10::elementSize(type)}, &nbytes) |
                   (nbytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())))) {
    // What a broadcast operand has without memory, its result needs: torch's words for it.
    at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type));
  }
  Tensor out = make_unwritten(window, nbytes, c10::scalarTypeToTypeMeta(type), device);
  out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return out;
}

Tensor make_result(Window& window, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                   caffe2::TypeMeta dtype, size_t nbytes, c10::DeviceIndex device) {
  Tensor out = make_unwritten(window, nbytes, dtype, device);
  out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return out;
}

}  // namespace hologram::aten
