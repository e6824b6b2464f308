#include "aten/precompiled.h"

#include "aten/record.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/TypeProperties.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "aten/compat.h"
#include "aten/runtime.h"
#include "atlas/device.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using Sizes = c10::SmallVector<int64_t, 6>;

constexpr c10::DispatchKeySet kSpecialKeys({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                            c10::DispatchKey::ZeroTensor,
                                            c10::DispatchKey::Quantized, c10::DispatchKey::Sparse,
                                            c10::DispatchKey::SparseCsr,
                                            c10::DispatchKey::NestedTensor});

// The dtypes that groups compute in and store.
std::optional<DType> group_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float: return DType::f32;
    case c10::ScalarType::Double: return DType::f64;
    case c10::ScalarType::Long: return DType::i64;
    case c10::ScalarType::Int: return DType::i32;
    case c10::ScalarType::BFloat16: return DType::bf16;
    case c10::ScalarType::Half: return DType::f16;
    case c10::ScalarType::Bool: return DType::b8;
    default: return std::nullopt;
  }
}

bool is_half(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16;
}

// Operations whose result has to have the dtype of `out`; the others convert it.
bool wants_exact_out(Op op) {
  const OpInfo& info = op_info(op);
  return info.has(kCondition) ||
         (info.arity == 1 && info.integers == Integers::keep && !info.has(kPredicate));
}

// The Block of a tensor's memory; null where there is none.
Block* operand_block(const c10::TensorImpl* tensor) {
  auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  Block* block = block_of(storage->data_ptr());
  if (C10_LIKELY(block != nullptr && block->twin.load(std::memory_order_acquire) == nullptr)) {
    return block->bytes != 0 ? block : nullptr;
  }
  return settled_block(storage);
}

// Results may share memory with an operand of their size only exactly, in torch's eyes with the
// same strides, also those of dimensions of size 1.
bool overlaps(const c10::TensorImpl* out, const c10::TensorImpl* in) {
  const auto o = reinterpret_cast<uintptr_t>(out->data());
  const auto i = reinterpret_cast<uintptr_t>(in->data());
  if (o == i) return out != in && out->strides() != in->strides();
  const auto nbytes = static_cast<size_t>(in->numel()) * in->itemsize();
  return o < i + nbytes && i < o + nbytes;
}

// at::get_overlap_status, which sees no overlap between two storages over the same bytes. Of such
// tensors only those that lie apart are told apart; the rest is torch's to judge.
at::MemOverlapStatus overlap_status(const c10::TensorImpl* out, const c10::TensorImpl* in) {
  if (out->unsafe_storage().is_alias_of(in->unsafe_storage())) {
    return at::get_overlap_status(out, in);
  }
  const auto end = [](const c10::TensorImpl* tensor) {
    int64_t last = 0;
    for (int64_t d = 0; d < tensor->dim(); ++d) last += (tensor->size(d) - 1) * tensor->stride(d);
    return static_cast<const char*>(tensor->data()) +
           static_cast<size_t>(last + 1) * tensor->itemsize();
  };
  const bool apart = end(in) <= out->data() || end(out) <= in->data();
  return apart ? at::MemOverlapStatus::No : at::MemOverlapStatus::TooHard;
}

View dense_view(Block* block, const c10::TensorImpl* tensor, DType dtype) {
  return {block, tensor->storage_offset() * static_cast<int64_t>(tensor->itemsize()), dtype,
          Layout::dense};
}

// A new tensor whose memory is written by an instruction first.
Tensor make_result(Window& window, c10::IntArrayRef sizes, c10::ScalarType type,
                   c10::DeviceIndex device) {
  uint64_t nbytes = 0;
  if (C10_UNLIKELY(c10::safe_multiplies_u64(sizes, &nbytes) |
                   c10::mul_overflows(nbytes, uint64_t{c10::elementSize(type)}, &nbytes) |
                   (nbytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())))) {
    // What a broadcast operand has without memory, its result needs: torch's words for it.
    at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type));
  }
  auto out = at::detail::make_tensor<c10::TensorImpl>(
      make_storage(nbytes, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(type));
  out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  block_of(out.storage().data_ptr())->born = window.open_program();
  return out;
}

// A number as a T, as torch converts the 0-dim tensor it stands for: out of range gives infinity.
template <class T>
T number_as(const at::Scalar& number) {
  return number.isFloatingPoint() ? static_cast<T>(number.toDouble())
                                  : static_cast<T>(number.toLong());
}

// The bits of a number in the class in which groups compute for `dtype`.
uint64_t immediate_bits(const at::Scalar& number, DType dtype, bool as_it_is) {
  uint64_t bits = 0;
  switch (class_of(dtype)) {
    case ComputeClass::f32: {
      auto value =
          dtype == DType::b8 ? static_cast<float>(number.to<bool>()) : number_as<float>(number);
      if (dtype == DType::bf16 && !as_it_is) value = static_cast<c10::BFloat16>(value);
      if (dtype == DType::f16 && !as_it_is) value = static_cast<c10::Half>(value);
      std::memcpy(&bits, &value, sizeof value);
      break;
    }
    case ComputeClass::f64: {
      const auto value = number_as<double>(number);
      std::memcpy(&bits, &value, sizeof value);
      break;
    }
    case ComputeClass::i64: {
      const auto value = number_as<int64_t>(number);
      std::memcpy(&bits, &value, sizeof value);
      break;
    }
  }
  return bits;
}

// Others are torch's business: complex, symbolic, and integers that only uint64 has.
bool is_plain_number(const at::Scalar& number) {
  return !number.isComplex() && !number.isSymbolic() && number.type() != c10::ScalarType::UInt64;
}

View immediate(uint64_t bits, DType dtype) {
  return {nullptr, static_cast<int64_t>(bits), dtype, Layout::scalar};
}

// A 0-dim CPU tensor, which is copied by value.
bool is_cpu_number(const c10::TensorImpl* tensor) {
  return tensor->device().is_cpu() && tensor->dim() == 0 &&
         !tensor->key_set().has_any(kSpecialKeys);
}

std::optional<at::Scalar> number_of(const c10::TensorImpl* tensor) {
  const auto read = [&](auto zero) {
    std::memcpy(&zero, tensor->data(), sizeof zero);
    return at::Scalar(zero);
  };
  switch (tensor->dtype().toScalarType()) {
    case c10::ScalarType::Float: return read(float{});
    case c10::ScalarType::Double: return read(double{});
    case c10::ScalarType::Long: return read(int64_t{});
    case c10::ScalarType::Int: return read(int32_t{});
    case c10::ScalarType::Bool: return read(bool{});
    default: return std::nullopt;
  }
}

constexpr size_t kMostArguments = 6;

// The operands of one operation on their way to the window.
struct Space {
  Sizes sizes;
  int64_t count = 1;
  std::array<Sizes, 1 + kMostArguments> strides;  // bytes, of the result and the operands
};

// Whether tensors lie in memory the same way and fill it: their elements can be taken in its order.
bool same_and_dense(const c10::TensorImpl* a, const c10::TensorImpl* b) {
  return a->sizes() == b->sizes() && a->strides() == b->strides() &&
         a->is_non_overlapping_and_dense();
}

Sizes byte_strides(const c10::TensorImpl* tensor, c10::IntArrayRef sizes) {
  Sizes strides(sizes.size(), 0);
  const auto missing = sizes.size() - static_cast<size_t>(tensor->dim());
  for (size_t d = missing; d < sizes.size(); ++d) {
    const auto from = static_cast<int64_t>(d - missing);
    if (tensor->size(from) != 1) {  // or its stride is anything
      strides[d] = tensor->stride(from) * static_cast<int64_t>(tensor->itemsize());
    }
  }
  return strides;
}

bool is_dense(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t item) {
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != item) return false;
    item *= sizes[d];
  }
  return true;
}

// The strides that torch gives the result of an operation over `sizes`, in elements; empty for a
// contiguous one. `converted` says of each operand whether torch makes a copy of another dtype
// first, `with_number` whether one operand is a number, which counts as a 0-dim tensor. As
// TensorIterator does it: the result runs through memory as the operands do, the first one that has
// an opinion on a pair of dimensions deciding.
Sizes result_strides(c10::ArrayRef<const c10::TensorImpl*> tensors, c10::ArrayRef<bool> converted,
                     c10::IntArrayRef sizes, bool with_number) {
  const auto rank = sizes.size();
  bool one_shape = !(with_number && rank != 0), contiguous = true, channels_last = true;
  bool alike = true;
  Sizes last;
  c10::SmallVector<Sizes, 4> steps;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* tensor = tensors[i];
    if (tensor == nullptr) continue;
    Sizes strides(tensor->strides().begin(), tensor->strides().end());
    if (tensor->is_non_overlapping_and_dense() || !converted[i]) {
      contiguous = contiguous && tensor->is_contiguous();
      channels_last = channels_last && tensor->is_contiguous(c10::MemoryFormat::ChannelsLast);
      alike = alike && tensor->is_non_overlapping_and_dense();
    } else {
      const auto dense = at::infer_dense_strides(tensor->sizes(), tensor->strides());
      strides.assign(dense.begin(), dense.end());
      contiguous = contiguous && is_dense(tensor->sizes(), strides, 1);
      channels_last = false;
    }
    one_shape = one_shape && tensor->sizes() == sizes;
    alike = alike && (steps.empty() || strides == last);
    last = strides;
    Sizes wide(rank, 0);  // 0 where the tensor is broadcast
    const auto missing = rank - strides.size();
    for (size_t d = missing; d < rank; ++d) {
      const auto size = tensor->size(static_cast<int64_t>(d - missing));
      if (size != 1 || sizes[d] == 1) wide[d] = strides[d - missing] * tensor->itemsize();
    }
    steps.push_back(std::move(wide));
  }
  if (one_shape) {
    if (contiguous) return {};
    if (channels_last) {
      const auto strides = c10::get_channels_last_strides_2d(sizes);
      return {strides.begin(), strides.end()};
    }
    if (alike) return last;
  }
  // Whether dimension a comes after b, counted from the fastest: 1; before: -1; 0: no opinion.
  const auto compare = [&](size_t a, size_t b) {
    for (const Sizes& strides : steps) {
      if (strides[a] == 0 || strides[b] == 0) continue;
      if (strides[a] != strides[b]) return strides[a] < strides[b] ? -1 : 1;
      if (sizes[a] > sizes[b]) return 1;
    }
    return 0;
  };
  c10::SmallVector<size_t, 6> order;  // of the dimensions, the fastest first
  for (size_t d = rank; d-- > 0;) order.push_back(d);
  for (size_t i = 1; i < rank; ++i) {
    for (size_t a = i, b = i; a-- > 0;) {
      const int comparison = compare(order[a], order[b]);
      if (comparison < 0) break;
      if (comparison == 0) continue;
      std::swap(order[a], order[b]);
      b = a;
    }
  }
  bool inverted = true;
  Sizes strides(rank, 1);
  int64_t next = 1;
  for (size_t i = 0; i < rank; ++i) {
    inverted = inverted && order[i] == rank - 1 - i;
    strides[order[i]] = next;
    next *= sizes[order[i]];
  }
  return inverted ? Sizes{} : strides;
}

// Joins neighbouring dimensions that every operand steps through in one stride.
void coalesce(Space& space, size_t operands) {
  size_t last = 0;
  for (size_t d = 1; d < space.sizes.size(); ++d) {
    bool joins = space.sizes[d] == 1 || space.sizes[last] == 1;
    if (!joins) {
      joins = true;
      for (size_t i = 0; i < operands; ++i) {
        joins = joins && space.strides[i][last] == space.strides[i][d] * space.sizes[d];
      }
    }
    if (joins) {
      for (size_t i = 0; i < operands; ++i) {
        if (space.sizes[d] != 1) space.strides[i][last] = space.strides[i][d];
      }
      space.sizes[last] *= space.sizes[d];
    } else {
      ++last;
      space.sizes[last] = space.sizes[d];
      for (size_t i = 0; i < operands; ++i) space.strides[i][last] = space.strides[i][d];
    }
  }
  if (!space.sizes.empty()) {
    space.sizes.resize(last + 1);
    for (size_t i = 0; i < operands; ++i) space.strides[i].resize(last + 1);
  }
}

// Whether elements share memory, to be on the safe side: true also for some that do not.
bool overlaps_itself(const c10::TensorImpl* tensor) {
  if (tensor->is_non_overlapping_and_dense()) return false;
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> dims;  // stride, size
  for (int64_t d = 0; d < tensor->dim(); ++d) {
    if (tensor->size(d) != 1) dims.emplace_back(tensor->stride(d), tensor->size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return true;
    extent += (size - 1) * stride;
  }
  return false;
}

// Whether two tensors are the same elements in the same order.
bool is_same_view(const c10::TensorImpl* a, const c10::TensorImpl* b) {
  return a == b || (a->data() == b->data() && a->dtype() == b->dtype() &&
                    a->sizes() == b->sizes() && a->strides() == b->strides());
}

// How an operation treats its operands.
struct Rule {
  DTypeSet dtypes;
  bool condition = false;        // the first operand is a bool of its own
  bool predicate = false;        // the result is bool
  bool promotes = false;         // integers are converted to the default dtype
  bool keeps_numbers = false;    // numbers are not rounded to half precision
  bool exact_out = false;        // the result is not converted to the dtype of `out`
  bool no_bool = false;          // bool operands are refused
  bool one_dtype = false;        // tensors of different dtypes are refused
  bool parameter = false;        // the last operand is a number that has no say in the dtype
  bool number_operands = false;  // numbers are operands like 0-dim tensors, in torch's eyes
  bool cpu_numbers = false;      // 0-dim CPU tensors are taken as numbers
  bool widens = false;           // half precision is computed in float32, operands unrounded
};

// What all pointwise calls have in common: dtype, shape, result and views of the operands.
struct Prepared {
  Window* window;
  DType dtype;
  Space space;
  View out;
  std::array<View, kMostArguments> in;

  void record(size_t operands, std::span<const Operands> list, size_t temporaries = 0) const {
    window->record(list, temporaries);
    run_if_shared(*window, {&out, 1});
    run_if_shared(*window, {in.data(), operands});
  }
};

// Whether a contiguous tensor has the strides of a new one, also in dimensions of size 1.
bool has_default_strides(const c10::TensorImpl* tensor) {
  int64_t next = 1;
  for (int64_t d = tensor->dim(); d-- > 0;) {
    if (tensor->stride(d) != next) return false;
    next *= tensor->size(d);
  }
  return true;
}

// The short way of what follows, for most calls: contiguous tensors of one size and dtype, and
// numbers that do not change it. False, with nothing done, for others.
bool prepare_alike(const Rule& rule, at::ArrayRef<Argument> in, const Tensor* out, Tensor* fresh,
                   Prepared& prepared) {
  const size_t first = rule.condition ? 1 : 0;
  if (in.size() <= first || in[first].tensor == nullptr) {
    return false;
  }
  const auto type = in[first].tensor->scalar_type();
  const auto dtype = group_dtype(type);
  if (!dtype || (rule.dtypes & dtype_bit(compute_dtype(*dtype))) == 0 ||
      (*dtype == DType::b8 && rule.no_bool)) {
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
  if ((!real && rule.promotes) || model->numel() == 0) {
    return false;
  }
  bool with_number = false;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool condition = i < first;
    const auto* tensor = in[i].tensor == nullptr ? nullptr : in[i].tensor->unsafeGetTensorImpl();
    const bool copied = tensor != nullptr && is_cpu_number(tensor);
    if (tensor == nullptr || copied) {
      if (condition || *dtype == DType::b8 ||
          (copied && (!rule.cpu_numbers || model->dim() == 0))) {
        return false;
      }
      const auto number = copied ? number_of(tensor) : *in[i].scalar;
      if (!number || number->isBoolean() || (!real && !number->isIntegral(/*includeBool=*/false)) ||
          !has_value(*number, *dtype)) {
        return false;
      }
      prepared.in[i] =
          immediate(immediate_bits(*number, *dtype, rule.keeps_numbers && i > 0), *dtype);
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
  DType stored = rule.predicate ? DType::b8 : *dtype;
  if (out != nullptr) {
    const bool truth = rule.predicate && out->scalar_type() == c10::ScalarType::Bool;
    written = like_model(out->unsafeGetTensorImpl(), truth ? c10::ScalarType::Bool : type);
    if (written == nullptr) return false;
    if (!truth) stored = *dtype;
  }
  prepared.window = &current_window(model->device().index());
  prepared.dtype = *dtype;
  prepared.space.count = model->numel();
  if (out == nullptr) {
    *fresh = make_result(*prepared.window, model->sizes(),
                         rule.predicate ? c10::ScalarType::Bool : type, model->device().index());
    out = fresh;
    written = block_of(fresh->storage().data_ptr());
  }
  prepared.out = dense_view(written, out->unsafeGetTensorImpl(), stored);
  return true;
}

// False, with nothing done, where torch's kernel has to do it.
bool prepare(const Rule& rule, at::ArrayRef<Argument> in, const Tensor* out, Tensor* fresh,
             Prepared& prepared) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(in.size() <= kMostArguments);
  if (prepare_alike(rule, in, out, fresh, prepared)) {
    return true;
  }
  // Dtype and device.
  at::native::ResultTypeState types = {};
  std::optional<c10::DeviceIndex> device;
  std::array<std::optional<at::Scalar>, kMostArguments> numbers;  // of `in`, empty for tensors
  const auto on_device = [&](const c10::TensorImpl* tensor) {
    if (!is_plain_strided(tensor) || (device && *device != tensor->device().index())) return false;
    device = tensor->device().index();
    return true;
  };
  for (size_t i = 0; i < in.size(); ++i) {
    const bool condition = i == 0 && rule.condition;
    if (in[i].tensor == nullptr) {
      const at::Scalar& number = *in[i].scalar;
      const bool parameter = rule.parameter && i + 1 == in.size();
      if (!is_plain_number(number) || ((rule.no_bool || parameter) && number.isBoolean())) {
        return false;
      }
      if (!parameter) types = at::native::update_result_type_state(number, types);
      numbers[i] = number;
      continue;
    }
    const auto type = in[i].tensor->scalar_type();
    if ((rule.no_bool && type == c10::ScalarType::Bool) ||
        (rule.one_dtype && in[0].tensor != nullptr && type != in[0].tensor->scalar_type())) {
      return false;
    }
    const auto* tensor = in[i].tensor->unsafeGetTensorImpl();
    if (is_cpu_number(tensor)) {
      if (condition || !rule.cpu_numbers) return false;
      numbers[i] = number_of(tensor);
      if (!numbers[i]) return false;
    } else if (!on_device(tensor)) {
      return false;
    }
    if (condition) {
      if (type != c10::ScalarType::Bool) return false;
    } else {
      types = at::native::update_result_type_state(*in[i].tensor, types);
    }
  }
  if (!device || (out != nullptr && !on_device(out->unsafeGetTensorImpl()))) {
    return false;
  }
  auto common = at::native::result_type(types);
  if (c10::isIntegralType(common, /*includeBool=*/true) && rule.promotes) {
    common = c10::typeMetaToScalarType(c10::get_default_dtype());
  }
  const auto dtype = group_dtype(common);
  if (!dtype || (rule.dtypes & dtype_bit(compute_dtype(*dtype))) == 0) {
    return false;
  }
  for (const auto& number : numbers) {
    if (number && !has_value(*number, *dtype)) return false;
  }
  const auto result = rule.predicate ? c10::ScalarType::Bool : common;
  if (out != nullptr) {
    const auto type = out->scalar_type();
    const bool fits = rule.exact_out ? type == result : c10::canCast(result, type);
    if (!fits || !group_dtype(type)) return false;
  }

  // The iteration space.
  c10::SmallVector<const c10::TensorImpl*, 4> tensors;  // of `in`, null for numbers
  Space& space = prepared.space;
  bool alike = true, with_number = false;
  const c10::TensorImpl* first = nullptr;
  for (size_t i = 0; i < in.size(); ++i) {
    if (numbers[i]) {
      with_number = with_number || in[i].tensor != nullptr || rule.number_operands;
      tensors.push_back(nullptr);
      continue;
    }
    const auto* tensor = in[i].tensor->unsafeGetTensorImpl();
    tensors.push_back(tensor);
    const auto own = group_dtype(tensor->dtype().toScalarType());
    if (operand_block(tensor) == nullptr || !own) {
      return false;
    }
    // torch rounds what is wider to half precision before it computes.
    if (rule.widens && is_half(*dtype) && *own != *dtype && *own != DType::b8) {
      return false;
    }
    if (first == nullptr) {
      first = tensor;
      space.sizes.assign(tensor->sizes().begin(), tensor->sizes().end());
    } else if (tensor->sizes() != c10::IntArrayRef(space.sizes)) {
      // Sizes that do not match are torch's to complain about.
      for (int64_t d = 1;
           d <= std::min<int64_t>(tensor->dim(), static_cast<int64_t>(space.sizes.size())); ++d) {
        const int64_t mine = space.sizes[space.sizes.size() - static_cast<size_t>(d)];
        const int64_t theirs = tensor->size(tensor->dim() - d);
        if (mine != theirs && mine != 1 && theirs != 1) return false;
      }
      const auto wider = at::infer_size_dimvector(space.sizes, tensor->sizes());
      space.sizes.assign(wider.begin(), wider.end());
    }
    alike = alike && same_and_dense(first, tensor);
  }
  space.count = c10::multiply_integers(space.sizes);
  if (space.count == 0) {
    return false;
  }
  Window& window = current_window(*device);
  const Sizes whole = space.sizes;
  if (out != nullptr) {
    const auto* o = out->unsafeGetTensorImpl();
    if (o->sizes() != c10::IntArrayRef(whole) || operand_block(o) == nullptr ||
        overlaps_itself(o)) {
      return false;
    }
    for (const auto* tensor : tensors) {
      if (tensor == nullptr) continue;
      if (is_same_view(o, tensor)) continue;
      const auto status = overlap_status(o, tensor);
      if (status != at::MemOverlapStatus::No && status != at::MemOverlapStatus::Full) return false;
      // Element for element only where the dtypes are equal too.
      if (status == at::MemOverlapStatus::Full && tensor->dtype() != o->dtype()) return false;
    }
    alike = alike && same_and_dense(first, o);
  }
  if (out == nullptr) {
    *fresh = make_result(window, whole, result, *device);
    std::array<bool, kMostArguments> converted{};
    for (size_t i = 0; i < tensors.size(); ++i) {
      converted[i] = tensors[i] != nullptr && !(i == 0 && rule.condition) &&
                     tensors[i]->dtype() != c10::scalarTypeToTypeMeta(common);
    }
    const Sizes strides = result_strides(
        tensors, c10::ArrayRef<bool>(converted.data(), tensors.size()), whole, with_number);
    if (!strides.empty()) {
      fresh->unsafeGetTensorImpl()->set_sizes_and_strides(whole, strides);
    }
    alike = alike && same_and_dense(first, fresh->unsafeGetTensorImpl());
    out = fresh;
  }

  // Views.
  const auto* o = out->unsafeGetTensorImpl();
  const size_t count = 1 + tensors.size();
  if (!alike) {
    space.strides[0] = byte_strides(o, whole);
    for (size_t i = 0; i < tensors.size(); ++i) {
      space.strides[i + 1] =
          tensors[i] != nullptr ? byte_strides(tensors[i], whole) : Sizes(whole.size(), 0);
    }
    coalesce(space, count);
  }
  const auto view = [&](const c10::TensorImpl* tensor, const Sizes& strides) {
    View made = dense_view(block_of(tensor->storage().data_ptr()), tensor,
                           *group_dtype(tensor->dtype().toScalarType()));
    if (alike || is_dense(space.sizes, strides, static_cast<int64_t>(tensor->itemsize()))) {
      return made;
    }
    if (tensor->numel() == 1) {
      made.layout = Layout::scalar;
    } else {
      made.layout = Layout::strided;
      made.strides = strides.data();
    }
    return made;
  };
  prepared.window = &window;
  prepared.dtype = *dtype;
  prepared.out = view(o, space.strides[0]);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] != nullptr) {
      prepared.in[i] = view(tensors[i], space.strides[i + 1]);
    } else {
      prepared.in[i] =
          immediate(immediate_bits(*numbers[i], *dtype, rule.keeps_numbers && i > 0), *dtype);
    }
  }
  return true;
}

}  // namespace

void run_if_shared(Window& window, std::span<const View> views) {
  for (const View& view : views) {
    if (view.block != nullptr && C10_UNLIKELY(is_shared(static_cast<const Block&>(*view.block)))) {
      window.flush(FlushReason::exported);
      window.submitted().wait();  // whoever sees the memory may look at any time
      return;
    }
  }
}

bool has_value(const at::Scalar& number, DType dtype) {
  if (!is_plain_number(number)) return false;
  if (class_of(dtype) == ComputeClass::i64) {
    if (!number.isIntegral(/*includeBool=*/true)) return false;
    const int64_t value = number.toLong();
    return dtype == DType::i64 || value == static_cast<int32_t>(value);
  }
  if (dtype == DType::f64 || dtype == DType::b8) return true;
  const double value = std::abs(number.to<double>());
  const float most = dtype == DType::f16    ? float{std::numeric_limits<c10::Half>::max()}
                     : dtype == DType::bf16 ? float{std::numeric_limits<c10::BFloat16>::max()}
                                            : std::numeric_limits<float>::max();
  const bool vanishes = value != 0 && static_cast<float>(value) == 0;
  return !vanishes && (!(value > double{most}) || std::isinf(value));
}

bool is_plain_strided(const c10::TensorImpl* tensor) {
  return tensor->device_type() == kHologram && !tensor->key_set().has_any(kSpecialKeys) &&
         !has_names(tensor) && !tensor->is_sparse() && tensor->has_storage();
}

bool record_plain(Op op, const Tensor& x, const Tensor* y, const Tensor* out, Tensor* fresh) {
  const auto* a = x.unsafeGetTensorImpl();
  const auto dtype = group_dtype(x.scalar_type());
  if (!dtype || !is_plain_strided(a) || !a->is_contiguous() ||
      !op_info(op).supports_in_group(*dtype) || op_info(op).has(kPredicate)) {
    return false;
  }
  Block* const block = operand_block(a);
  if (block == nullptr) {
    return false;
  }
  const auto side_by_side = [&](const c10::TensorImpl* b) {
    return is_plain_strided(b) && b->is_contiguous() && b->dtype() == a->dtype() &&
           b->sizes() == a->sizes() && b->device() == a->device();
  };
  Operands operands{static_cast<Code>(op), *dtype, 1, a->numel(), {}, {}, {}};
  operands.in[0] = dense_view(block, a, *dtype);
  if (y != nullptr) {
    operands.arity = 2;
    const auto* b = y->unsafeGetTensorImpl();
    if (!side_by_side(b)) {
      return false;
    }
    Block* const other = operand_block(b);
    if (other == nullptr || (out != nullptr && overlaps(out->unsafeGetTensorImpl(), b))) {
      return false;
    }
    operands.in[1] = dense_view(other, b, *dtype);
  }
  Window& window = current_window(a->device().index());
  if (out == nullptr) {
    *fresh = make_result(window, a->sizes(), x.scalar_type(), a->device().index());
    out = fresh;
  } else {
    const auto* o = out->unsafeGetTensorImpl();
    if (!side_by_side(o) || overlaps(o, a) || operand_block(o) == nullptr) {
      return false;
    }
  }
  const auto* o = out->unsafeGetTensorImpl();
  if (operands.count == 0) {
    return true;  // of views without elements: there is nothing to compute
  }
  operands.out = dense_view(block_of(o->storage().data_ptr()), o, *dtype);
  window.record(operands);
  run_if_shared(window, {&operands.out, 1});
  run_if_shared(window, {operands.in.data(), static_cast<size_t>(operands.arity)});
  return true;
}

bool record_any(Op op, at::ArrayRef<Argument> in, const Tensor* out, Tensor* fresh) {
  const OpInfo& info = op_info(op);
  const Rule rule{.dtypes = info.dtypes,
                  .condition = info.has(kCondition),
                  .predicate = info.has(kPredicate),
                  .promotes = info.integers == Integers::promote,
                  .keeps_numbers = info.numbers == Numbers::kept,
                  .exact_out = wants_exact_out(op),
                  .no_bool = info.integers == Integers::but_no_bool,
                  .number_operands = info.numbers != Numbers::parameter,
                  .cpu_numbers = true};
  Prepared prepared;
  if (!prepare(rule, in, out, fresh, prepared)) {
    return false;
  }
  // Nor is a second operand without dimensions rounded to half precision, where numbers are not.
  if (is_half(prepared.dtype) && info.numbers == Numbers::kept && in[1].tensor != nullptr &&
      in[1].tensor->dim() == 0 && group_dtype(in[1].tensor->scalar_type()) != prepared.dtype) {
    if (prepared.out.dtype != prepared.dtype) {
      // The result is rounded to half precision nevertheless.
      Builder builder(DType::f32, prepared.space.count,
                      {prepared.space.sizes.data(), prepared.space.sizes.size()});
      builder.apply(op, {prepared.in[0], prepared.in[1]});
      builder.give(prepared.out, prepared.dtype);
      prepared.record(in.size(), builder.list(), builder.temporaries());
      return true;
    }
    prepared.dtype = DType::f32;
  }
  Operands operands{static_cast<Code>(op),
                    prepared.dtype,
                    static_cast<int>(in.size()),
                    prepared.space.count,
                    {prepared.space.sizes.data(), prepared.space.sizes.size()},
                    prepared.out,
                    {}};
  std::copy_n(prepared.in.begin(), in.size(), operands.in.begin());
  prepared.record(in.size(), {&operands, 1});
  return true;
}

bool record_row(Op op, const Tensor& x, const Tensor* y, const Tensor* out, Tensor* fresh) {
  if (record_plain(op, x, y, out, fresh)) {
    return true;
  }
  const std::array<Argument, 2> arguments{Argument(x), Argument(y != nullptr ? *y : x)};
  return record_any(op, {arguments.data(), y != nullptr ? size_t{2} : size_t{1}}, out, fresh);
}

bool record_composite(const Composite& composite, at::ArrayRef<Argument> in, const Tensor* out,
                      Tensor* fresh) {
  // A fraction in an operation on integers is torch's to refuse, or to promote.
  const auto is_floating = [](const Argument& argument) {
    return argument.tensor != nullptr ? argument.tensor->is_floating_point()
                                      : argument.scalar->isFloatingPoint();
  };
  if (!is_floating(in.front()) && std::any_of(in.begin(), in.end(), is_floating)) {
    return false;
  }
  Prepared prepared;
  const auto has = [&](CompositeTraits trait) { return (composite.traits & trait) != 0; };
  const Rule rule{.dtypes = composite.dtypes,
                  .keeps_numbers = !has(kRoundsEach) && !has(kRoundsNumbers),
                  .no_bool = has(kNoBool),
                  .one_dtype = has(kOneDtype),
                  .parameter = has(kParameter),
                  .cpu_numbers = has(kCpuNumbers),
                  .widens = !has(kRoundsEach)};
  if (!prepare(rule, in, out, fresh, prepared)) {
    return false;
  }
  Builder builder(has(kRoundsEach) ? prepared.dtype : compute_dtype(prepared.dtype),
                  prepared.space.count, {prepared.space.sizes.data(), prepared.space.sizes.size()});
  composite.build(builder, prepared.in.data());
  builder.give(prepared.out, prepared.dtype);
  prepared.record(in.size(), builder.list(), builder.temporaries());
  return true;
}

// So many steps are recorded at once: an instruction each, and one for the conversion of the
// result.
constexpr size_t kMostSteps = Window::kMostInstructions - 1;

// Of each step, the last one that uses its value.
static std::vector<size_t> last_uses(const CompositeProgram& program) {
  const size_t first = program.operands + program.numbers.size();
  std::vector<size_t> last(program.steps.size(), 0);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const auto& [op, in] = program.steps[i];
    for (size_t k = 0; k < static_cast<size_t>(op_info(op).arity); ++k) {
      if (in[k] >= first) last[in[k] - first] = i;
    }
  }
  return last;
}

bool record_program(const CompositeProgram& program, at::ArrayRef<Argument> in, Tensor* fresh) {
  if (in.size() > kMostArguments) {
    return false;
  }
  for (const uint32_t i : program.conditions) {
    if (in[i].tensor->scalar_type() != c10::ScalarType::Bool || in[i].tensor->is_cpu()) {
      return false;
    }
  }
  Prepared prepared;
  const Rule rule{.dtypes = kReal,
                  .predicate = program.is_predicate(),
                  .keeps_numbers = true,
                  .cpu_numbers = true,
                  .widens = true};
  if (!prepare(rule, in, nullptr, fresh, prepared)) {
    return false;
  }
  const DType compute = compute_dtype(prepared.dtype);
  const size_t steps = program.steps.size();
  std::vector<size_t> uses;
  if (steps > kMostSteps) uses = last_uses(program);
  std::vector<Tensor> kept(uses.size());  // by step: values that later parts use
  c10::SmallVector<View, 24> values(prepared.in.begin(), prepared.in.begin() + in.size());
  for (size_t begin = 0; begin < steps; begin += kMostSteps) {
    const size_t end = std::min(begin + kMostSteps, steps);
    // First, because there may be no memory.
    for (size_t i = begin; end < steps && i < end; ++i) {
      if (uses[i] < end) continue;
      const bool truth = op_info(program.steps[i].op).has(kPredicate);
      kept[i] = make_result(*prepared.window, prepared.space.count,
                            truth                   ? c10::ScalarType::Bool
                            : compute == DType::f64 ? c10::ScalarType::Double
                                                    : c10::ScalarType::Float,
                            fresh->device().index());
    }
    Builder builder(compute, prepared.space.count,
                    {prepared.space.sizes.data(), prepared.space.sizes.size()});
    for (size_t i = 0; begin == 0 && i < program.numbers.size(); ++i) {
      values.push_back(builder.number(program.numbers[i]));
    }
    for (size_t i = begin; i < end; ++i) {
      const auto& step = program.steps[i];
      std::array<View, 3> operands;
      const auto arity = static_cast<size_t>(op_info(step.op).arity);
      for (size_t k = 0; k < arity; ++k) operands[k] = values[step.in[k]];
      View value = builder.apply(step.op, {operands.data(), arity});
      if (!kept.empty() && kept[i].defined()) {
        value = dense_view(block_of(kept[i].storage().data_ptr()), kept[i].unsafeGetTensorImpl(),
                           value.dtype);
        builder.give(value, value.dtype);
      }
      values.push_back(value);
    }
    if (end == steps) builder.give(prepared.out, prepared.out.dtype);
    prepared.record(in.size(), builder.list(), builder.temporaries());
  }
  return true;
}

View Builder::number(double value) {
  return immediate(immediate_bits(at::Scalar(value), compute_, true), compute_);
}

View Builder::temporary(DType dtype) {
  return {nullptr, 0, dtype, Layout::dense, ++temporaries_};
}

View Builder::apply(Op op, std::span<const View> in) {
  const auto& info = op_info(op);
  const DType dtype = info.has(kPredicate) ? DType::b8 : compute_;
  // Logical operations are of truth values only.
  const DType compute = info.is_logical() ? DType::b8 : compute_;
  const View result = temporary(dtype);
  Operands operands{
      static_cast<Code>(op), compute, static_cast<int>(in.size()), count_, sizes_, result, {}};
  std::copy(in.begin(), in.end(), operands.in.begin());
  list_.push_back(operands);
  return result;
}

void Builder::give(const View& out, DType dtype) {
  if (dtype != compute_ && dtype != out.dtype) {
    // `out` is wider than the result, which is rounded nevertheless.
    list_.back().out.dtype = dtype;
    const View result = list_.back().out;
    list_.push_back({kCopy, compute_, 1, count_, sizes_, out, {result, {}, {}}});
    return;
  }
  // The last operation writes the result itself.
  list_.back().out = out;
  --temporaries_;
}

void Builder::store(const View& out, const View& value) {
  list_.push_back({kCopy, compute_, 1, count_, sizes_, out, {value, {}, {}}});
}

View Builder::put(const View& out, const View& value) {
  const bool is_last = temporaries_ != 0 && temporaries_ == value.temporary &&
                       list_.back().out.temporary == value.temporary;
  if (!is_last || out.dtype != compute_) {
    store(out, value);
    return value;
  }
  give(out, compute_);
  return out;
}

DType compute_dtype(DType dtype) {
  return is_half(dtype) ? DType::f32 : dtype;
}

Window* views_alike(at::ArrayRef<const Tensor*> tensors, View* views) {
  const auto* first = tensors.front()->unsafeGetTensorImpl();
  const auto dtype = group_dtype(tensors.front()->scalar_type());
  if (!dtype || first->numel() == 0) {
    return nullptr;
  }
  for (const auto* tensor : tensors) {
    const auto* impl = tensor->unsafeGetTensorImpl();
    if (!is_plain_strided(impl) || impl->device() != first->device() ||
        impl->dtype() != first->dtype() || !same_and_dense(impl, first)) {
      return nullptr;
    }
    Block* const block = operand_block(impl);
    if (block == nullptr) {
      return nullptr;
    }
    *views++ = dense_view(block, impl, *dtype);
  }
  return &current_window(first->device().index());
}

bool record_fill(const Tensor& out, const at::Scalar& value) {
  const auto* o = out.unsafeGetTensorImpl();
  const auto dtype = group_dtype(out.scalar_type());
  if (!dtype || !is_plain_strided(o) || !o->is_non_overlapping_and_dense() || o->numel() == 0 ||
      !has_value(value, *dtype) || operand_block(o) == nullptr) {
    return false;
  }
  const Operands operands{kCopy,
                          *dtype,
                          1,
                          o->numel(),
                          {},
                          dense_view(block_of(o->storage().data_ptr()), o, *dtype),
                          {immediate(immediate_bits(value, *dtype, false), *dtype), {}, {}}};
  Window& window = current_window(o->device().index());
  window.record(operands);
  run_if_shared(window, {&operands.out, 1});
  return true;
}

bool record_copy(const Tensor& out, const Tensor& src) {
  const auto* o = out.unsafeGetTensorImpl();
  const auto* s = src.unsafeGetTensorImpl();
  const auto to = group_dtype(out.scalar_type()), from = group_dtype(src.scalar_type());
  if (!to || !from || !is_plain_strided(o) || !is_plain_strided(s) || o->device() != s->device() ||
      !same_and_dense(s, o) || o->numel() == 0 || overlaps(o, s) ||
      (o->data() == s->data() && *to != *from)) {
    return false;
  }
  Block* const written = operand_block(o);
  Block* const read = operand_block(s);
  if (written == nullptr || read == nullptr) {
    return false;
  }
  // The class of the source computes, and the store converts: as Tensor.to does.
  const Operands operands{kCopy,
                          *from == DType::b8 ? *to : *from,
                          1,
                          o->numel(),
                          {},
                          dense_view(written, o, *to),
                          {dense_view(read, s, *from), {}, {}}};
  Window& window = current_window(o->device().index());
  window.record(operands);
  run_if_shared(window, {&operands.out, 1});
  run_if_shared(window, {operands.in.data(), 1});
  return true;
}

}  // namespace hologram::aten
