// Autocast: CUDA's operator lists. The rest falls through.
#include "aten/precompiled.h"

#include <ATen/core/stack.h>
#include <ATen/ops/norm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <span>
#include <vector>

#include "aten/autocast.h"

namespace hologram::aten {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;

// What becomes of the arguments; the names are those of torch's at::autocast::CastPolicy.
enum class Policy {
  lower_precision_fp,  // to autocast's dtype
  fp32,                // to float32
  fp32_set_opt_dtype,  // float32 is the dtype asked for, where none is
  promote,             // to the widest of them, at least autocast's dtype
};

bool is_eligible(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() && tensor.device().type() == kDevice &&
         tensor.scalar_type() != at::kDouble;
}

c10::IValue cast(const c10::IValue& argument, c10::ScalarType to) {
  const auto one = [to](const at::Tensor& tensor) {
    return at::autocast::cached_cast(to, tensor, kDevice);
  };
  if (argument.isTensor()) return one(argument.toTensor());
  if (argument.isTensorList()) {
    std::vector<at::Tensor> list = argument.toTensorVector();
    std::transform(list.begin(), list.end(), list.begin(), one);
    return list;
  }
  return argument;
}

// As at::autocast::promote_type, which looks at no argument that may be left out.
c10::ScalarType widest(const c10::FunctionSchema& schema, std::span<const c10::IValue> arguments) {
  const auto lower = at::autocast::get_autocast_dtype(kDevice);
  auto current = lower;
  const auto consider = [&](const at::Tensor& tensor) {
    if (!is_eligible(tensor) || current == at::kFloat) return;
    current = tensor.scalar_type();
    TORCH_CHECK(current == at::kFloat || current == lower,
                "Unexpected floating ScalarType in at::autocast::prioritize");
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (schema.arguments()[i].type()->kind() == c10::TypeKind::OptionalType) continue;
    if (arguments[i].isTensor()) {
      consider(arguments[i].toTensor());
    } else if (arguments[i].isTensorList()) {
      for (const at::Tensor& tensor : arguments[i].toTensorVector()) consider(tensor);
    }
  }
  return current;
}

// One kernel for all operators of a policy, through the stack: a template over their signatures
// takes torch's 25 seconds to compile, and costs a call less than a microsecond more.
template <Policy policy>
void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::span<c10::IValue> arguments(stack->data() + stack->size() - count, count);
  if constexpr (policy == Policy::fp32_set_opt_dtype) {
    if (arguments[0].isTensor() && is_eligible(arguments[0].toTensor())) {
      for (size_t i = 0; i < count; ++i) {
        if (schema.arguments()[i].name() == "dtype" && arguments[i].isNone()) {
          arguments[i] = at::kFloat;
        }
      }
    }
  } else {
    const auto to = policy == Policy::fp32      ? at::kFloat
                    : policy == Policy::promote ? widest(schema, arguments)
                                                : at::autocast::get_autocast_dtype(kDevice);
    for (auto& argument : arguments) argument = cast(argument, to);
  }
  op.callBoxed(stack);
}

// Norms, which have an overload with a dtype.
c10::ScalarType norm_dtype(const at::Tensor& self) {
  return is_eligible(self) ? at::kFloat : self.scalar_type();
}
at::Tensor norm(const at::Tensor& self, const at::Scalar& p) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  return at::norm(self, p, norm_dtype(self));
}
at::Tensor norm_dim(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim,
                    bool keepdim) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  return at::norm(self, p, dim, keepdim, norm_dtype(self));
}

// As on CUDA: float16 probabilities cannot represent what this loss needs.
at::Tensor binary_cross_entropy_banned(const at::Tensor&, const at::Tensor&,
                                       const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast.\nMany models use a sigmoid layer right before the binary cross entropy "
              "layer.\nIn this case, combine the two layers using "
              "torch.nn.functional.binary_cross_entropy_with_logits\nor "
              "torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are"
              "\nsafe to autocast.");
}

struct Entry {
  Policy policy;
  const char* name;
};
constexpr Entry kEntries[] = {
#include "autocast.inc"  // written by setup.py from torch's lists
};

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  const auto kernel = [](Policy policy) {
    using torch::CppFunction;
    switch (policy) {
      case Policy::lower_precision_fp:
        return CppFunction::makeFromBoxedFunction<&call<Policy::lower_precision_fp>>();
      case Policy::fp32: return CppFunction::makeFromBoxedFunction<&call<Policy::fp32>>();
      case Policy::fp32_set_opt_dtype:
        return CppFunction::makeFromBoxedFunction<&call<Policy::fp32_set_opt_dtype>>();
      case Policy::promote: break;
    }
    return CppFunction::makeFromBoxedFunction<&call<Policy::promote>>();
  };
  for (const auto& [policy, name] : kEntries) m.impl(name, kernel(policy));
  m.impl("norm.Scalar", &norm);
  m.impl("norm.ScalarOpt_dim", &norm_dim);
  m.impl("binary_cross_entropy", &binary_cross_entropy_banned);
}

}  // namespace hologram::aten
