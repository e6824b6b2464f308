// Kernels for all overloads of an operator that take the same operands: the functional one, the
// in-place one, and the one with `out` or `grad_input`. The schemas say which is which.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "aten/delegate.h"
#include "aten/past_autograd.h"

namespace hologram::aten {

// Where the result of a call goes: to `out`, or where that is null to a new tensor, `fresh`.
struct Target {
  const at::Tensor* out;
  at::Tensor* fresh;
};

enum class Form : uint8_t { functional, inplace, out };

// What an overload takes, from its schema.
struct Signature {
  Form form = Form::functional;
  // In order: 't' for a tensor, 's' for a number, 'o' for a number that may be missing, 'w' for a
  // word.
  std::string operands;
};
std::optional<Signature> signature_of(const c10::FunctionSchema& schema);

// Calls use(name, signature) for each overload of aten::`name` and aten::`name`_ that has a kernel
// of its own in torch and none of ours. (An implicitly composite operator has its gradient from its
// parts: it is left whole.)
void for_overloads(const std::string& name,
                   const std::function<void(const c10::OperatorName&, const Signature&)>& use);

// From now on for_overloads() leaves it out.
void note_overload(const c10::OperatorName& name);

template <class T>
constexpr char kOperandCode = std::is_same_v<T, at::Tensor>                  ? 't'
                              : std::is_same_v<T, at::Scalar>                ? 's'
                              : std::is_same_v<T, std::optional<at::Scalar>> ? 'o'
                                                                             : 'w';
// How torch passes an operand to a kernel.
template <class T>
using Passed = std::conditional_t<std::is_same_v<T, c10::string_view>, T, const T&>;

// Recorder::record(OpCounter&, const Target&, operands ...) records a call, counts it and returns
// true, or returns false with nothing done: then the delegate serves it.
template <class Recorder, class... In>
class Overloads {
 public:
  static constexpr char kOperands[] = {kOperandCode<In>..., '\0'};

  static void add(const c10::OperatorName& name, const Signature& signature) {
    if (signature.operands != kOperands) {
      return;
    }
    const auto form = signature.form;
    service(form) = new Service(name.name.c_str(), name.overload_name.c_str());
    const auto full = toString(name);
    if (form == Form::functional) {
      implement(full, &functional);
    } else if (form == Form::out) {
      implement(full, &out);
    } else {
      add_inplace<In...>(full);
    }
    note_overload(name);
  }

 private:
  static Service*& service(Form form) {
    static Service* services[3];
    return services[static_cast<size_t>(form)];
  }

  static at::Tensor functional(Passed<In>... in) {
    auto& here = *service(Form::functional);
    at::Tensor fresh;
    return Recorder::record(here.counter, {nullptr, &fresh}, in...) ? fresh : here.delegate(in...);
  }
  static at::Tensor& out(Passed<In>... in, at::Tensor& out) {
    auto& here = *service(Form::out);
    if (!Recorder::record(here.counter, {&out, nullptr}, in...)) {
      here.delegate(in..., out);
    }
    return out;
  }
  template <class... Others>
  static at::Tensor& inplace(at::Tensor& self, Passed<Others>... others) {
    auto& here = *service(Form::inplace);
    if (!Recorder::record(here.counter, {&self, nullptr}, std::as_const(self), others...)) {
      here.delegate(self, others...);
    }
    return self;
  }
  template <class First, class... Others>
  static void add_inplace(const std::string& full) {
    if constexpr (std::is_same_v<First, at::Tensor>) {
      implement(full, &inplace<Others...>);
    }
  }
};

}  // namespace hologram::aten
