// Native pointwise operators: the op table's rows as ATen kernels.
//
// Calls are recorded in the device's window (aten/record.h). What that declines - complex numbers,
// narrow integers, memory that a CPU tensor sees, errors - goes to torch's kernel through the
// delegate.
#include "aten/precompiled.h"

#include "aten/pointwise.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "aten/compat.h"
#include "aten/delegate.h"
#include "aten/record.h"
#include "aten/runtime.h"
#include "atlas/op_table.h"

namespace hologram::aten {
namespace {

using at::Tensor;

// Records out = op(operands). `out` is null for a functional call, whose result is left in `fresh`.
template <class... In>
bool record(Op op, OpCounter& counter, const Tensor* out, Tensor* fresh, const In&... in) {
  if constexpr (std::is_same_v<std::tuple<In...>, std::tuple<Tensor, at::Scalar>>) {
    if (op == Op::pow && record_power(counter, in..., out, fresh)) return true;
  }
  bool recorded = false;
  if constexpr (sizeof...(In) <= 2 && (std::is_same_v<In, Tensor> && ...)) {
    const Tensor* operands[] = {&in..., nullptr};
    recorded = record_plain(op, *operands[0], operands[1], out, fresh);
  }
  if (!recorded) {
    const std::array<Argument, sizeof...(In)> arguments{Argument(in)...};
    recorded = record_any(op, arguments, out, fresh);
  }
  if (recorded) {
    note_native(counter);
  }
  return recorded;
}

enum class Form : uint8_t { functional, inplace, out };

// Set when the overload is registered, below.
template <Op op, Form form, class... In>
Service* served = nullptr;

// torch refuses some other ones, such as True and, for integers, 1.0.
bool is_one(const at::Scalar& alpha) {
  return alpha.isIntegral(/*includeBool=*/false) && alpha.type() != at::kUInt64 &&
         alpha.toLong() == 1;
}

// The kernels of an overload whose operands are `In`, tensors or numbers.
template <Op op, class... In>
struct Kernels {
  static Tensor functional(const In&... in) {
    auto& here = *served<op, Form::functional, In...>;
    Tensor fresh;
    return record(op, here.counter, nullptr, &fresh, in...) ? fresh : here.delegate(in...);
  }
  template <class... Others>
  static Tensor& inplace(Tensor& self, const Others&... others) {
    auto& here = *served<op, Form::inplace, In...>;
    if (!record(op, here.counter, &self, nullptr, std::as_const(self), others...)) {
      here.delegate(self, others...);
    }
    return self;
  }
  static Tensor& out(const In&... in, Tensor& out) {
    auto& here = *served<op, Form::out, In...>;
    if (!record(op, here.counter, &out, nullptr, in...)) {
      here.delegate(in..., out);
    }
    return out;
  }
};

// add and sub, which scale their second operand.
template <Op op>
struct Scaled {
  static bool scaled(Service& here, const Tensor* out, Tensor* fresh, const Tensor& self,
                     const Tensor& other, const at::Scalar& alpha) {
    return is_one(alpha)
               ? record(op, here.counter, out, fresh, self, other)
               : record_scaled_add(here.counter, op == Op::sub, self, other, alpha, out, fresh);
  }
  static Tensor functional(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
    auto& here = *served<op, Form::functional, Tensor, Tensor, at::Scalar>;
    Tensor fresh;
    return scaled(here, nullptr, &fresh, self, other, alpha) ? fresh
                                                             : here.delegate(self, other, alpha);
  }
  static Tensor& inplace(Tensor& self, const Tensor& other, const at::Scalar& alpha) {
    auto& here = *served<op, Form::inplace, Tensor, Tensor, at::Scalar>;
    if (!scaled(here, &self, nullptr, self, other, alpha)) {
      here.delegate(self, other, alpha);
    }
    return self;
  }
  static Tensor& out(const Tensor& self, const Tensor& other, const at::Scalar& alpha,
                     Tensor& out) {
    auto& here = *served<op, Form::out, Tensor, Tensor, at::Scalar>;
    if (!scaled(here, &out, nullptr, self, other, alpha)) {
      here.delegate(self, other, alpha, out);
    }
    return out;
  }
};

// The in-place kernel with its operands spelled out, as the dispatcher wants it.
template <Op op, class Self, class... Others>
auto inplace_kernel() {
  return &Kernels<op, Self, Others...>::template inplace<Others...>;
}

// What an overload of a row's operator takes, from its schema.
struct Signature {
  Form form = Form::functional;
  std::string operands;  // 't' for a tensor, 's' for a number, in order
  bool alpha = false;
};

std::optional<Signature> signature_of(const c10::FunctionSchema& schema) {
  Signature signature;
  for (const auto& argument : schema.arguments()) {
    const auto kind = argument.real_type()->kind();
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (argument.is_out()) {
      signature.form = Form::out;
    } else if (kind == c10::TypeKind::TensorType) {
      signature.operands += 't';
      signature.form = written ? Form::inplace : signature.form;
    } else if (argument.name() == "alpha" && !signature.alpha) {
      signature.alpha = true;
    } else if (kind == c10::TypeKind::NumberType) {
      signature.operands += 's';
    } else {
      return std::nullopt;
    }
  }
  return signature;
}

template <Op op, class K, class... In>
void register_form(torch::Library& library, const c10::OperatorName& name, Form form) {
  const auto full = toString(name);
  const auto make = [&] { return new Service(name.name.c_str(), name.overload_name.c_str()); };
  switch (form) {
    case Form::functional:
      served<op, Form::functional, In...> = make();
      library.impl(full.c_str(), &K::functional);
      return;
    case Form::inplace:
      served<op, Form::inplace, In...> = make();
      if constexpr (std::is_same_v<K, Scaled<op>>) {
        library.impl(full.c_str(), &K::inplace);
      } else {
        library.impl(full.c_str(), inplace_kernel<op, In...>());
      }
      return;
    case Form::out:
      served<op, Form::out, In...> = make();
      library.impl(full.c_str(), &K::out);
      return;
  }
}

// Registers every ATen overload that the row of `op` serves: those named like the row, with the
// row's operands, whose gradient torch has as one formula.
template <Op op, int arity>
void register_row(torch::Library& library, const std::string& row) {
  using at::Scalar;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name != "aten::" + row && name.name != "aten::" + row + "_") {
      continue;
    }
    const auto handle = dispatcher.findOp(name);
    if (!handle || !handle->hasSchema()) {
      continue;
    }
    const auto signature = signature_of(handle->schema());
    // An implicitly composite operator has its gradient from its parts: leave it whole.
    if (!signature ||
        !(handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
          handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))) {
      continue;
    }
    const auto& operands = signature->operands;
    const auto form = signature->form;
    if constexpr (arity == 1) {
      if (operands == "t" && !signature->alpha) {
        register_form<op, Kernels<op, Tensor>, Tensor>(library, name, form);
      }
    } else if constexpr (arity == 2) {
      if (signature->alpha) {
        if (operands == "tt") {
          register_form<op, Scaled<op>, Tensor, Tensor, Scalar>(library, name, form);
        }
      } else if (operands == "tt") {
        register_form<op, Kernels<op, Tensor, Tensor>, Tensor, Tensor>(library, name, form);
      } else if (operands == "ts") {
        register_form<op, Kernels<op, Tensor, Scalar>, Tensor, Scalar>(library, name, form);
      } else if (operands == "st" && form != Form::inplace) {
        register_form<op, Kernels<op, Scalar, Tensor>, Scalar, Tensor>(library, name, form);
      }
    } else if (operands == "ttt" && form != Form::inplace) {
      register_form<op, Kernels<op, Tensor, Tensor, Tensor>, Tensor, Tensor, Tensor>(library, name,
                                                                                     form);
    }
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

}  // namespace

void register_pointwise() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                            c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
#define HOLOGRAM_X(name, arity, dtypes, expression, flags, identity) \
  register_row<Op::name, arity>(*library, #name);
  HOLOGRAM_OPS(HOLOGRAM_X)
#undef HOLOGRAM_X
  library->impl("fill_.Scalar", &fill_);
  library->impl("zero_", &zero_);
}

}  // namespace hologram::aten
