// Unboxed delegates for the operators real programs call most (csrc/aten/quick_calls.tsv).
//
// The boxed delegate (boxed_call.h) serves every operator through a stack of IValues. QuickKernel
// does the same for one operator whose C++ signature is known, without the stack, in the case that
// nearly every call is: all tensors dense and on one hologram device. What differs in any way goes
// to the boxed delegate, which owns the rules and the error messages.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "aten/alias.h"
#include "aten/below_autograd.h"
#include "aten/block.h"
#include "aten/delegate_target.h"
#include "aten/device_errors.h"
#include "aten/generator.h"
#include "aten/record_call.h"
#include "aten/report.h"

namespace hologram::aten {

// What a quick kernel knows of its operator.
class QuickOperator {
 public:
  explicit QuickOperator(const c10::OperatorHandle& op);

  const c10::OperatorHandle& handle() const { return op_; }
  const c10::BoxedKernel& boxed() const { return boxed_; }
  OpCounter& counter() const { return *counter_; }
  // Whether the target has a kernel for dense tensors.
  bool is_served_by(const DelegateTarget& target) const {
    return target.is_cpu() || op_.hasComputedKernelForDispatchKey(target.key);
  }
  bool always_boxed() const { return always_boxed_; }
  // Whether the argument at this position is written, by the schema.
  bool writes(size_t position) const { return (written_ >> position & 1) != 0; }

 private:
  c10::OperatorHandle op_;
  c10::BoxedKernel boxed_;
  OpCounter* counter_;
  uint64_t written_ = 0;
  bool always_boxed_ = false;
};

// The state of one call: which device, which aliases.
class QuickCall {
 public:
  // Whether an argument leaves the call to this path.
  template <class T>
  bool accepts(const T&) {
    return true;
  }
  bool accepts(const at::Tensor& tensor) {
    if (C10_UNLIKELY(!tensor.defined())) {
      return true;
    }
    const auto device = tensor.device();
    if (C10_UNLIKELY(device.type() != c10::DeviceType::PrivateUse1 ||
                     (device_ >= 0 && device.index() != device_))) {
      return false;
    }
    device_ = device.index();
    return true;
  }
  bool accepts(const std::optional<at::Tensor>& tensor) { return !tensor || accepts(*tensor); }
  bool accepts(at::TensorList list) { return accepts_each(list); }
  bool accepts(const at::ITensorListRef& list) { return accepts_each(list); }
  bool accepts(const c10::List<std::optional<at::Tensor>>& list) {
    for (const std::optional<at::Tensor> tensor : list) {
      if (!accepts(tensor)) {
        return false;
      }
    }
    return true;
  }

  bool has_device() const { return device_ >= 0; }
  c10::DeviceIndex device() const { return device_; }
  AliasFrame& frame() { return frame_; }

  void alias(const at::Tensor& tensor, bool written, at::Tensor& alias) {
    if (C10_LIKELY(tensor.defined())) {
      frame_.borrow(tensor, written, alias);
    }
  }
  // The same for an argument that the operator returns a reference to.
  void alias_returned(at::Tensor& tensor, at::Tensor& alias) {
    this->alias(tensor, true, alias);
    returned_.push_back({alias.unsafeGetTensorImpl(), &tensor});
  }

  // Results of the kernel as the caller's.
  at::Tensor result(at::Tensor&& theirs) { return frame_.result(std::move(theirs), device_); }
  at::Tensor& result(at::Tensor& alias) {
    for (auto& [impl, tensor] : returned_) {
      if (impl == alias.unsafeGetTensorImpl()) {
        return *tensor;
      }
    }
    TORCH_INTERNAL_ASSERT(false, "a kernel returned a tensor it was not given");
  }
  std::vector<at::Tensor> result(std::vector<at::Tensor>&& list) {
    for (auto& tensor : list) {
      tensor = result(std::move(tensor));
    }
    return std::move(list);
  }
  template <class... Ts>
  std::tuple<Ts...> result(std::tuple<Ts...>&& results) {
    return std::apply(
        [this](auto&&... parts) {
          return std::tuple<Ts...>(this->result(std::forward<Ts>(parts))...);
        },
        std::move(results));
  }
  template <class T>
  T result(T&& other) {
    return std::forward<T>(other);
  }

 private:
  template <class List>
  bool accepts_each(const List& list) {
    for (const at::Tensor& tensor : list) {
      if (!accepts(tensor)) {
        return false;
      }
    }
    return true;
  }

  AliasFrame frame_;
  c10::SmallVector<std::pair<c10::TensorImpl*, at::Tensor*>, 2> returned_;
  c10::DeviceIndex device_ = -1;
};

// One argument on its way to the kernel: KernelArgument<T>(...).get() is of type T.
template <class T>
struct QuickSource {
  QuickCall& call;
  const QuickOperator& op;
  size_t position;
  T value;
};

template <class T>
class KernelArgument {
 public:
  explicit KernelArgument(QuickSource<T> from) : value_(std::forward<T>(from.value)) {}
  T get() { return std::forward<T>(value_); }

 private:
  T value_;
};

template <>
class KernelArgument<const at::Tensor&> {
 public:
  explicit KernelArgument(QuickSource<const at::Tensor&> from) {
    from.call.alias(from.value, from.op.writes(from.position), alias_);
  }
  const at::Tensor& get() { return alias_; }

 private:
  at::Tensor alias_;
};

template <>
class KernelArgument<at::Tensor&> {
 public:
  explicit KernelArgument(QuickSource<at::Tensor&> from) {
    from.call.alias_returned(from.value, alias_);
  }
  at::Tensor& get() { return alias_; }

 private:
  at::Tensor alias_;
};

template <>
class KernelArgument<const std::optional<at::Tensor>&> {
 public:
  explicit KernelArgument(QuickSource<const std::optional<at::Tensor>&> from) {
    if (from.value) {
      from.call.alias(*from.value, from.op.writes(from.position), alias_.emplace());
    }
  }
  const std::optional<at::Tensor>& get() { return alias_; }

 private:
  std::optional<at::Tensor> alias_;
};

template <class List>
class KernelTensorList {
 public:
  template <class From>
  explicit KernelTensorList(const From& from) {
    const bool written = from.op.writes(from.position);
    aliases_.reserve(from.value.size());
    for (const at::Tensor& tensor : from.value) {
      from.call.alias(tensor, written, aliases_.emplace_back());
    }
  }

 protected:
  std::vector<at::Tensor> aliases_;
};

template <>
class KernelArgument<at::TensorList> : KernelTensorList<at::TensorList> {
 public:
  explicit KernelArgument(QuickSource<at::TensorList> from) : KernelTensorList(from) {}
  at::TensorList get() { return aliases_; }
};

template <>
class KernelArgument<const at::ITensorListRef&> : KernelTensorList<at::ITensorListRef> {
 public:
  explicit KernelArgument(QuickSource<const at::ITensorListRef&> from)
      : KernelTensorList(from), list_(aliases_) {}
  const at::ITensorListRef& get() { return list_; }

 private:
  at::ITensorListRef list_;
};

template <>
class KernelArgument<const c10::List<std::optional<at::Tensor>>&> {
 public:
  explicit KernelArgument(QuickSource<const c10::List<std::optional<at::Tensor>>&> from) {
    aliases_.reserve(from.value.size());
    for (const std::optional<at::Tensor> tensor : from.value) {
      // The list gives out copies: the frame needs references of its own.
      aliases_.push_back(tensor && tensor->defined()
                             ? std::optional(from.call.frame().argument(*tensor, false))
                             : tensor);
    }
  }
  const c10::List<std::optional<at::Tensor>>& get() { return aliases_; }

 private:
  c10::List<std::optional<at::Tensor>> aliases_;
};

template <>
class KernelArgument<std::optional<at::Generator>> {
 public:
  explicit KernelArgument(QuickSource<std::optional<at::Generator>> from)
      : generator_(
            kernel_generator(target_of(from.call.device()), from.value, from.call.device())) {}
  std::optional<at::Generator> get() { return std::move(generator_); }

 private:
  std::optional<at::Generator> generator_;
};

// The kernel of an operator of this signature. One class serves all that share it, because an
// instance costs the compiler a second or so; which operator it is, the constructor says.
template <class Signature>
class QuickKernel;

template <class Result, class... Args>
class QuickKernel<Result(Args...)> final : public c10::OperatorKernel {
 public:
  using Redispatch = Result(c10::DispatchKeySet, Args...);

  QuickKernel(const c10::OperatorHandle& op, Redispatch* redispatch)
      : op_(op), redispatch_(redispatch) {}

  const QuickOperator& op() const { return op_; }

  Result operator()(c10::DispatchKeySet keys, Args... args) {
    QuickCall call;
    const bool served = (call.accepts(args) && ...) && call.has_device();
    if (C10_UNLIKELY(!served || op_.always_boxed() ||
                     !op_.is_served_by(target_of(call.device())))) {
      return c10::impl::BoxedKernelWrapper<Result(Args...)>::call(op_.boxed(), op_.handle(), keys,
                                                                  std::forward<Args>(args)...);
    }
    note_delegated(op_.counter(), call.device());
    return run(call, std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
  }

 private:
  template <size_t... Positions>
  Result run(QuickCall& call, std::index_sequence<Positions...>, Args... args) {
    std::tuple<KernelArgument<Args>...> theirs(
        QuickSource<Args>{call, op_, Positions, std::forward<Args>(args)}...);
    const auto kernel = [&]() -> Result {
      const DelegateTarget& target = target_of(call.device());
      const BelowAutograd below;
      const TargetGuard guard(target);
      if (C10_UNLIKELY(!target.is_cpu())) note_vendor_call(op_.counter().name);
      const ResultsFromPool results(call.device());
      try {
        return redispatch_(c10::DispatchKeySet(target.key), std::get<Positions>(theirs).get()...);
      } catch (...) {
        call.frame().write_back();  // an out= may have been resized before the kernel failed
        throw;
      }
    };
    if constexpr (std::is_void_v<Result>) {
      kernel();
      call.frame().write_back();
    } else {
      Result result = kernel();
      call.frame().write_back();
      return call.result(std::forward<Result>(result));
    }
  }

  const QuickOperator op_;
  Redispatch* const redispatch_;
};

// That of one of torch's at::_ops types, for a native kernel to hand over what it does not serve.
template <class Op>
QuickKernel<typename Op::schema>& quick_kernel() {
  static auto* const kernel = new QuickKernel<typename Op::schema>(
      c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name), &Op::redispatch);
  return *kernel;
}

// The quick kernels by the full name of their operator, "aten::mm".
using MakeQuickKernel = c10::KernelFunction (*)(const c10::OperatorHandle&);
MakeQuickKernel find_quick_kernel(const std::string& name);

// A row of the generated tables.
struct QuickRow {
  const char* name;      // "aten::mm"
  const char* overload;  // "" or "out"
  MakeQuickKernel make;
};
// Op: one of torch's at::_ops types.
template <class Op>
constexpr QuickRow quick_row() {
  return {Op::name, Op::overload_name, [](const c10::OperatorHandle& op) {
            using Kernel = QuickKernel<typename Op::schema>;
            return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
                std::make_unique<Kernel>(op, &Op::redispatch));
          }};
}

}  // namespace hologram::aten

// A call through a stack goes to the boxed delegate with its stack. torch's template would take the
// stack apart first, and compiling that for every signature takes longer than all else here.
template <class Signature>
struct c10::impl::make_boxed_from_unboxed_functor<hologram::aten::QuickKernel<Signature>, false> {
  static void call(OperatorKernel* kernel, const OperatorHandle& op, DispatchKeySet keys,
                   Stack* stack) {
    static_cast<hologram::aten::QuickKernel<Signature>*>(kernel)->op().boxed().callBoxed(op, keys,
                                                                                         stack);
  }
};
