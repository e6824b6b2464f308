// The delegate: an operator without a native kernel runs in torch's kernel for the device's target
// (delegate_target.h) over the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aten/alias.h"
#include "aten/below_autograd.h"
#include "aten/block.h"
#include "aten/delegate_target.h"
#include "aten/report.h"

namespace hologram::aten {

struct CallSchema;
class LearnedCalls;

// For delegated calls written by hand: aliases arguments, keeps autograd out, counts the call.
//
//   Delegation call(counter);
//   auto y = at::foo(call.in(x));
//   return call.out(std::move(y));
class Delegation {
 public:
  explicit Delegation(OpCounter& counter) : counter_(counter) {}

  at::Tensor in(const at::Tensor& tensor, bool written = false);
  std::optional<at::Tensor> in(const std::optional<at::Tensor>& tensor);
  at::Tensor out(at::Tensor theirs) { return frame_.result(std::move(theirs), device_); }
  AliasFrame& frame() { return frame_; }

 private:
  OpCounter& counter_;
  AliasFrame frame_;
  BelowAutograd below_;
  // From the first hologram argument on.
  TargetGuard guard_;
  std::optional<ResultsFromPool> results_;
  c10::DeviceIndex device_ = -1;
};

// Registers a kernel that is composed of delegated calls, so that reports and tables say so.
void note_delegated_kernel(const std::string& name);
template <class Kernel>
void impl_delegated(torch::Library& library, const char* name, Kernel kernel) {
  note_delegated_kernel(std::string("aten::") + name);
  library.impl(name, kernel);
}

// The boxed delegate of one operator, for a native kernel to hand over what it does not serve.
class OperatorDelegate {
 public:
  // Calls are counted as those of another operator, unless that is null.
  OperatorDelegate(const char* name, const char* overload, const char* counted_as = nullptr);
  const std::string& name() const;

  // Calls torch's kernel with these arguments; returns the first result.
  template <class... Args>
  at::Tensor operator()(Args&&... args) const {
    return std::move(results(std::forward<Args>(args)...).back()).toTensor();
  }

  // The same for an operator with several results.
  template <class... Args>
  std::tuple<at::Tensor, at::Tensor> two(Args&&... args) const {
    const torch::jit::Stack all = results(std::forward<Args>(args)...);
    return {all[0].toTensor(), all[1].toTensor()};
  }
  template <class... Args>
  std::tuple<at::Tensor, at::Tensor, at::Tensor> three(Args&&... args) const {
    const torch::jit::Stack all = results(std::forward<Args>(args)...);
    return {all[0].toTensor(), all[1].toTensor(), all[2].toTensor()};
  }

  template <class... Args>
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> four(Args&&... args) const {
    const torch::jit::Stack all = results(std::forward<Args>(args)...);
    return {all[0].toTensor(), all[1].toTensor(), all[2].toTensor(), all[3].toTensor()};
  }

  // The same for an operator without results.
  template <class... Args>
  void run(Args&&... args) const {
    results(std::forward<Args>(args)...);
  }

 private:
  template <class... Args>
  torch::jit::Stack results(Args&&... args) const {
    torch::jit::Stack stack;
    stack.reserve(sizeof...(args));
    (stack.emplace_back(std::forward<Args>(args)), ...);
    call(&stack);
    return stack;
  }
  void call(torch::jit::Stack* stack) const;
  c10::OperatorHandle op_;
  const CallSchema* schema_;
  LearnedCalls* learned_;
};

// What a native kernel of an operator needs beside its own work: the delegate for what it declines,
// and the counter of what it serves.
struct Service {
  Service(const char* name, const char* overload)
      : delegate(name, overload), counter(op_counter(delegate.name())) {}
  OperatorDelegate delegate;
  OpCounter& counter;
};

// Registers the boxed delegate for every operator that has a CPU kernel but no kernel of ours, for
// dense, sparse and quantized tensors. Called once, after the native kernels are registered.
void register_delegates();

// (overload, kind) for every operator registered for the device.
std::vector<std::pair<std::string, Served>> operator_table();

// Those of them that are served without boxing, see quick.h.
std::vector<std::string> quick_operators();

}  // namespace hologram::aten
