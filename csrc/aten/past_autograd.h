// Calls that have nothing for autograd to do go past torch's kernels of it.
//
// Those of VariableType take a call's tensors apart before they know whether a gradient is wanted;
// a tensor that only Python holds is then counted once more and once less, each time with the lock
// of the interpreter. That is a fifth of what recording an instruction takes, in optimizers, in the
// backward pass and under no_grad, where no call wants one. So a native kernel is registered below
// autograd, as ever, and in its place too, where it looks first and hands over what torch has to
// record.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace hologram::aten {

// The library of the native kernels, and an operator of aten by its name, "add.Tensor".
torch::Library& native_library();
c10::OperatorHandle native_operator(const std::string& name);
// Of a call that reached a kernel of ours in autograd's place: the keys that lead to torch's own,
// which it registers for every key of autograd, by one that we do not register for.
inline c10::DispatchKeySet torchs_autograd(c10::DispatchKeySet keys) {
  return (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther);
}

// What torch's kernels do for every call of an operator.
struct AutogradRoutine {
  // Bits for the positions of arguments whose versions they count.
  uint64_t counted = 0;
  // What they keep from calls in the kernel below.
  c10::DispatchKeySet excluded;
};
// None where torch has no kernel of autograd for it, or another one for other devices, or one that
// takes symbolic sizes, which a native kernel is not given.
std::optional<AutogradRoutine> autograd_routine(const c10::OperatorHandle& op);
void register_past_autograd(const c10::OperatorHandle& op, c10::KernelFunction kernel);

// The call of a kernel as autograd would make it.
class PastAutogradCall {
 public:
  PastAutogradCall(c10::DispatchKeySet keys, uint64_t counted)
      : counted_(counted),
        records_(c10::GradMode::is_enabled()),
        is_ours_((keys & c10::after_ADInplaceOrView_keyset).highestPriorityTypeId() ==
                 c10::DispatchKey::PrivateUse1) {}

  // Whether it goes to the native kernel, by the keys alone: not where a mode or a transform is to
  // see it.
  bool is_ours() const { return is_ours_; }

  template <class T>
  bool is_for_autograd(size_t, const T&) const {
    static_assert(!std::is_same_v<T, c10::List<std::optional<at::Tensor>>> &&
                      !std::is_same_v<T, at::ITensorListRef>,
                  "tensors that this does not look at");
    return false;
  }
  bool is_for_autograd(size_t position, const at::Tensor& tensor) const {
    auto* const impl = tensor.unsafeGetTensorImpl();
    // An inference tensor may not be written here; torch says so.
    if (counts(position) && impl->is_inference()) return true;
    return impl->autograd_meta() != nullptr &&
           ((records_ && impl->requires_grad()) || tensor._fw_grad(/*level=*/0).defined());
  }
  bool is_for_autograd(size_t position, const std::optional<at::Tensor>& tensor) const {
    return tensor && is_for_autograd(position, *tensor);
  }
  bool is_for_autograd(size_t position, const at::TensorList& list) const {
    for (const at::Tensor& tensor : list) {
      if (is_for_autograd(position, tensor)) return true;
    }
    return false;
  }

  template <class T>
  void count(size_t, const T&) const {}
  void count(size_t position, const at::Tensor& tensor) const {
    if (counts(position)) tensor.unsafeGetTensorImpl()->bump_version();
  }
  void count(size_t position, const at::TensorList& list) const {
    for (const at::Tensor& tensor : list) count(position, tensor);
  }

 private:
  bool counts(size_t position) const { return (counted_ >> position & 1) != 0; }

  uint64_t counted_;
  bool records_, is_ours_;
};

// One class for all operators of a signature: an instance costs the compiler time.
template <class Signature>
class PastAutograd;

template <class Result, class... Args>
class PastAutograd<Result(Args...)> final : public c10::OperatorKernel {
 public:
  PastAutograd(const c10::OperatorHandle& op, Result (*kernel)(Args...), AutogradRoutine routine)
      : op_(op.typed<Result(Args...)>()), kernel_(kernel), routine_(routine) {}

  Result operator()(c10::DispatchKeySet keys, Args... args) {
    return call(keys, std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
  }
  void call_boxed(c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    op_.redispatchBoxed(torchs_autograd(keys), stack);
  }

 private:
  template <size_t... Positions>
  Result call(c10::DispatchKeySet keys, std::index_sequence<Positions...>, Args... args) {
    const PastAutogradCall its(keys, routine_.counted);
    if (C10_UNLIKELY(!its.is_ours() || (its.is_for_autograd(Positions, args) || ...))) {
      return op_.redispatch(torchs_autograd(keys), std::forward<Args>(args)...);
    }
    const c10::impl::ExcludeDispatchKeyGuard below(routine_.excluded);
    if (routine_.counted == 0) return kernel_(std::forward<Args>(args)...);
    if constexpr (std::is_void_v<Result>) {
      kernel_(args...);
      (its.count(Positions, args), ...);
    } else {
      Result result = kernel_(args...);
      (its.count(Positions, args), ...);
      return std::forward<Result>(result);
    }
  }

  const c10::TypedOperatorHandle<Result(Args...)> op_;
  Result (*const kernel_)(Args...);
  const AutogradRoutine routine_;
};

// Lets calls of an overload of aten's, "add.Tensor", that have nothing for autograd to do go past
// torch's kernel of autograd, to its native kernel.
template <class Result, class... Args>
void pass_autograd(const std::string& name, Result (*kernel)(Args...)) {
  const auto op = native_operator(name);
  if (const auto routine = autograd_routine(op)) {
    using Kernel = PastAutograd<Result(Args...)>;
    register_past_autograd(op, c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
                                   std::make_unique<Kernel>(op, kernel, *routine)));
  }
}

// Registers a native kernel, in a library of that key, and lets calls pass.
template <class Result, class... Args>
void implement(const std::string& name, Result (*kernel)(Args...),
               torch::Library& library = native_library()) {
  library.impl(name.c_str(), kernel);
  pass_autograd(name, kernel);
}

}  // namespace hologram::aten

// A call through a stack is one of a graph or of a mode, and goes to torch as it is: taking it
// apart would cost the compiler a second for each signature.
template <class Signature>
struct c10::impl::make_boxed_from_unboxed_functor<hologram::aten::PastAutograd<Signature>, false> {
  static void call(OperatorKernel* kernel, const OperatorHandle& /*op*/, DispatchKeySet keys,
                   Stack* stack) {
    static_cast<hologram::aten::PastAutograd<Signature>*>(kernel)->call_boxed(keys, stack);
  }
};
