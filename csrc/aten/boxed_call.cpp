#include "aten/precompiled.h"

#include "aten/boxed_call.h"

#include <ATen/core/op_registration/adaption.h>

#include <optional>
#include <utility>

#include "aten/alias.h"
#include "aten/below_autograd.h"
#include "aten/block.h"
#include "aten/delegate_target.h"
#include "aten/device_errors.h"
#include "aten/generator.h"
#include "aten/report.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using c10::DispatchKeySet;
using torch::jit::Stack;

class BoxedCall {
 public:
  BoxedCall(const CallSchema& schema, const c10::OperatorHandle& op, DispatchKeySet keys,
            Stack* stack)
      : schema_(schema),
        op_(op),
        keys_(keys & kBackendKeys),
        stack_(*stack),
        begin_(stack->size() - schema.argument_count) {}

  void run() {
    for (const auto& arg : schema_.args) {
      convert(arg);
    }
    finish_device();
    const DelegateTarget& target = target_for(device_);
    note_delegated(schema_.counter, target);
    if (C10_UNLIKELY(!target.is_cpu())) note_vendor_call(schema_.counter.name);
    {
      BelowAutograd below;
      const TargetGuard guard(target);
      const ResultsFromPool results(leaves_device_ ? c10::DeviceIndex(-1) : device_);
      try {
        op_.redispatchBoxed(target.keys_like(keys_), &stack_);
      } catch (...) {
        frame_.write_back();  // an out= may have been resized before the kernel failed
        throw;
      }
    }
    frame_.write_back();
    if (C10_UNLIKELY(schema_.bumps_versions)) {
      frame_.bump_versions();
    }
    results();
  }

 private:
  const char* argument_name(const Arg& arg) const {
    return op_.schema().arguments()[arg.position].name().c_str();
  }

  // That of the call's first device, whose vendor may lack the kernel.
  const DelegateTarget& target_for(c10::DeviceIndex device) {
    if (C10_UNLIKELY(target_ == nullptr)) {
      target_ = &target_of(device);
      if (C10_UNLIKELY(!has_kernel(op_, keys_, *target_))) {
        target_ = &copying_target();
        frame_.use_images();
      }
    }
    return *target_;
  }

  void convert(const Arg& arg) {
    auto& value = stack_[begin_ + arg.position];
    switch (arg.kind) {
      case ArgKind::tensor:
        if (value.isTensor() && value.toTensor().defined()) {
          value = convert(std::move(value).toTensor(), arg);
        }
        return;
      case ArgKind::tensor_list:
        if (value.isTensorList()) {
          const auto list = value.toTensorList();
          c10::List<at::Tensor> aliases;
          aliases.reserve(list.size());
          for (const at::Tensor& tensor : list) {
            note_element(tensor, arg);
            aliases.push_back(tensor.defined() ? convert(tensor, arg) : tensor);
          }
          value = std::move(aliases);
          has_list_ = true;
        }
        return;
      case ArgKind::optional_list:
        if (value.isOptionalTensorList()) {
          const auto list = value.toOptionalTensorList();
          c10::List<std::optional<at::Tensor>> aliases;
          aliases.reserve(list.size());
          for (const std::optional<at::Tensor> tensor : list) {
            aliases.push_back(tensor && tensor->defined() ? std::optional(convert(*tensor, arg))
                                                          : tensor);
          }
          value = std::move(aliases);
        }
        return;
      case ArgKind::generator: generator_ = &arg; return;
      case ArgKind::device:
        if (value.isDevice()) {
          const auto device = value.toDevice();
          if (device.type() == kHologram) {
            requested_ = check_device(device);
            target_for(*requested_);
            // Another one than that of the tensors, where a copy is asked for.
            value = frame_.target(*requested_).device;
          } else {
            leaves_device_ = true;
          }
        }
        return;
      case ArgKind::pin_memory:
        value = c10::IValue();  // device memory is never pinned
        return;
    }
  }

  void note_element(const at::Tensor& tensor, const Arg&) {
    if (schema_.per_element && !has_list_ && tensor.defined()) {
      element_devices_.push_back(tensor.device().index());
    }
  }

  at::Tensor convert(at::Tensor tensor, const Arg& arg) {
    check(tensor, arg);
    if (tensor.device().type() != kHologram) {
      return tensor;
    }
    target_for(tensor.device().index());
    const bool requires_grad = schema_.asks_requires_grad && tensor.requires_grad();
    auto alias = frame_.argument(std::move(tensor), arg.written);
    if (C10_UNLIKELY(requires_grad)) {
      alias.set_requires_grad(true);
    }
    return alias;
  }

  bool accepts_from_cpu(const at::Tensor& tensor, const Arg& arg) {
    switch (arg.from_cpu) {
      case FromCpu::anything: return true;
      case FromCpu::scalar:
        return tensor.dim() == 0 && (schema_.many_cpu_scalars || ++cpu_scalars_ == 1);
      case FromCpu::nothing: break;
    }
    return false;
  }

  // CUDA's rules and words for tensors of several devices.
  void check(const at::Tensor& tensor, const Arg& arg) {
    const auto device = tensor.device();
    if (C10_LIKELY(device.type() == kHologram &&
                   (!common_ || *common_ == device || schema_.per_element))) {
      common_ = device;
      return;
    }
    const auto ours = common_ ? common_ : hologram_operand();
    TORCH_CHECK(ours || !schema_.takes_cpu_indices, "indices should be either on ", c10::kCPU,
                " or on the same device as the indexed tensor (", device, ")");
    if (!ours && device.is_cpu() && makes_hologram_result()) {
      return;  // a factory that takes a CPU tensor as its model
    }
    if (!ours) {
      // A CPU operator came here because of its generator.
      TORCH_CHECK(false, "Expected a '", device.type() == c10::kCPU ? "cpu" : device.str(),
                  "' device type for generator but found 'hologram'");
    }
    if (!schema_.checks_devices) {
      if (device.is_cpu() && accepts_from_cpu(tensor, arg)) {
        return;
      }
      TORCH_CHECK(false,
                  "Expected all tensors to be on the same device, but found at least two "
                  "devices, ",
                  *ours, " and ", device, "!");
    }
    c10::impl::common_device_check_failure(*ours, tensor, schema_.method.c_str(),
                                           argument_name(arg));
  }

  bool makes_hologram_result() const {
    for (const auto& arg : schema_.args) {
      const auto& value = stack_[begin_ + arg.position];
      if (arg.kind == ArgKind::device && value.isDevice() && value.toDevice().type() == kHologram) {
        return true;
      }
    }
    return false;
  }

  // A device to name when the argument at fault comes before any hologram tensor.
  std::optional<c10::Device> hologram_operand() const {
    for (const auto& arg : schema_.args) {
      const auto& value = stack_[begin_ + arg.position];
      if (value.isTensor() && value.toTensor().defined() &&
          value.toTensor().device().type() == kHologram) {
        return value.toTensor().device();
      }
      if (value.isTensorList()) {
        for (const at::Tensor& element : value.toTensorList()) {
          if (element.defined() && element.device().type() == kHologram) {
            return element.device();
          }
        }
      }
    }
    return std::nullopt;
  }

  void finish_device() {
    device_ = common_ ? common_->index() : requested_ ? *requested_ : current_device();
    if (generator_ != nullptr) {
      auto& value = stack_[begin_ + generator_->position];
      std::optional<at::Generator> given;
      if (value.isGenerator()) {
        given = value.toGenerator();
        if (!common_ && !requested_ && given->device().type() == kHologram) {
          device_ = given->device().index();
        }
      }
      value = kernel_generator(target_for(device_), given, device_);
    }
    if (requested_) {
      device_ = *requested_;
    }
  }

  void results() {
    if (leaves_device_) {
      return;
    }
    const size_t count = op_.schema().returns().size();
    for (size_t index = stack_.size() - count; index < stack_.size(); ++index) {
      auto& value = stack_[index];
      if (value.isTensor()) {
        value = frame_.result(std::move(value).toTensor(), device_);
      } else if (value.isTensorList()) {
        auto list = std::move(value).toTensorVector();
        c10::List<at::Tensor> mapped;
        mapped.reserve(list.size());
        const bool per_element = element_devices_.size() == list.size();
        for (size_t position = 0; position < list.size(); ++position) {
          mapped.push_back(frame_.result(std::move(list[position]),
                                         per_element ? element_devices_[position] : device_));
        }
        value = std::move(mapped);
      }
    }
  }

  const CallSchema& schema_;
  const c10::OperatorHandle& op_;
  const DispatchKeySet keys_;
  Stack& stack_;
  const size_t begin_;
  AliasFrame frame_;
  const DelegateTarget* target_ = nullptr;
  std::optional<c10::Device> common_;
  std::optional<c10::DeviceIndex> requested_;
  const Arg* generator_ = nullptr;
  c10::SmallVector<c10::DeviceIndex, 2> element_devices_;
  c10::DeviceIndex device_ = 0;
  int cpu_scalars_ = 0;
  bool has_list_ = false;
  bool leaves_device_ = false;  // the caller asked for a result elsewhere
};

}  // namespace

bool has_kernel(const c10::OperatorHandle& op, DispatchKeySet keys, const DelegateTarget& target) {
  return target.is_cpu() || op.hasComputedKernelForDispatchKey(
                                target.keys_like(keys & kBackendKeys).highestPriorityTypeId());
}

void call_boxed(const CallSchema& schema, const c10::OperatorHandle& op, DispatchKeySet keys,
                Stack* stack) {
  BoxedCall(schema, op, keys, stack).run();
}

}  // namespace hologram::aten
