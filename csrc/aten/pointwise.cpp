// Native pointwise operators: the op table's rows as ATen kernels.
//
// Calls are recorded in the device's window (aten/record.h). What that declines - complex numbers,
// narrow integers, memory that a CPU tensor sees, errors - goes to torch's kernel through the
// delegate.
#include "aten/precompiled.h"

#include "aten/pointwise.h"

#include <array>
#include <type_traits>

#include "aten/arange.h"
#include "aten/convolutions.h"
#include "aten/library_attention.h"
#include "aten/numbers.h"
#include "aten/operand.h"
#include "aten/overloads.h"
#include "aten/past_autograd.h"
#include "aten/products.h"
#include "aten/random.h"
#include "aten/record.h"
#include "aten/row_programs.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// Records a row of the op table on operands `In`.
template <Op op, class... In>
struct Row {
  static bool record(OpCounter& counter, const Target& to, const In&... in) {
    bool recorded = false;
    if constexpr (sizeof...(In) <= 2 && (std::is_same_v<In, Tensor> && ...)) {
      const Tensor* operands[] = {&in..., nullptr};
      recorded = record_row(op, *operands[0], operands[1], to.out, to.fresh);
    } else {
      const std::array<Argument, sizeof...(In)> arguments{Argument(in)...};
      recorded = record_any(op, arguments, to.out, to.fresh);
    }
    if (recorded) {
      note_native(counter);
    }
    return recorded;
  }
};

template <Op op, class... In>
void add_overloads(const char* name) {
  for_overloads(name, &Overloads<Row<op, In...>, In...>::add);
}

// Registers every ATen overload that a row serves: those named like it, with its operands.
template <Op op, int arity>
void register_row(const char* name) {
  using at::Scalar;
  if constexpr (arity == 1) {
    add_overloads<op, Tensor>(name);
  } else if constexpr (arity == 2) {
    add_overloads<op, Tensor, Tensor>(name);
    add_overloads<op, Tensor, Scalar>(name);
    add_overloads<op, Scalar, Tensor>(name);
  } else {
    add_overloads<op, Tensor, Tensor, Tensor>(name);
  }
}

Tensor& fill_(Tensor& self, const at::Scalar& value) {
  static Service here("aten::fill_", "Scalar");
  if (record_fill(self, value)) {
    note_native(here.counter);
  } else {
    here.delegate(self, value);
  }
  return self;
}

Tensor& zero_(Tensor& self) {
  static Service here("aten::zero_", "");
  if (record_fill(self, at::Scalar(0))) {
    note_native(here.counter);
  } else {
    here.delegate(self);
  }
  return self;
}

// What is written keeps the tensor's dtype: torch refuses a number that has no value in it.
Tensor& record_masked_fill(Service& here, Tensor& self, const Tensor& mask, const Argument& value,
                           bool keeps_dtype) {
  const bool is_mask = mask.scalar_type() == at::kBool && !mask.is_cpu();
  const std::array<Argument, 3> choice{Argument(mask), value, Argument(self)};
  if (is_mask && keeps_dtype && record_any(Op::where, choice, &self, nullptr)) {
    note_native(here.counter);
  } else if (value.tensor != nullptr) {
    here.delegate(self, mask, *value.tensor);
  } else {
    here.delegate(self, mask, *value.scalar);
  }
  return self;
}
Tensor& masked_fill_(Tensor& self, const Tensor& mask, const at::Scalar& value) {
  static Service here("aten::masked_fill_", "Scalar");
  const auto dtype = group_dtype(self.scalar_type());
  return record_masked_fill(here, self, mask, value, dtype && has_value(value, *dtype));
}
Tensor& masked_fill_by(Tensor& self, const Tensor& mask, const Tensor& value) {
  static Service here("aten::masked_fill_", "Tensor");
  const bool keeps = value.dim() == 0 && value.scalar_type() == self.scalar_type();
  return record_masked_fill(here, self, mask, value, keeps);
}

// Of truth values; integers are torch's.
Tensor bitwise_not(const Tensor& self) {
  static Service here("aten::bitwise_not", "");
  Tensor fresh;
  const bool recorded = self.scalar_type() == at::kBool &&
                        record_row(Op::logical_not, self, nullptr, nullptr, &fresh);
  if (!recorded) return here.delegate(self);
  note_native(here.counter);
  return fresh;
}

}  // namespace

void register_pointwise() {
  register_composites();
  register_reductions();
  register_row_programs();
  register_rms_norm();
  register_channel_norms();
  register_arg_reductions();
  register_losses();
  register_scans();
  register_products();
  register_library_attention();
  register_convolutions();
  register_arange();
  register_random();
  register_random_choices();
#define HOLOGRAM_X(name, arity, ...) register_row<Op::name, arity>(#name);
  HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
  implement("bitwise_not", &bitwise_not);
  implement("fill_.Scalar", &fill_);
  implement("masked_fill_.Scalar", &masked_fill_);
  implement("masked_fill_.Tensor", &masked_fill_by);
  implement("zero_", &zero_);
}

}  // namespace hologram::aten
