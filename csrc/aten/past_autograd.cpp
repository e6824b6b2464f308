#include "aten/precompiled.h"

#include "aten/past_autograd.h"

#include <vector>

namespace hologram::aten {
namespace {

bool is_symbolic(const c10::Type& type) {
  const auto kind = type.kind();
  if (kind == c10::TypeKind::SymIntType) return true;
  for (const auto& part : type.containedTypes()) {
    if (is_symbolic(*part)) return true;
  }
  return false;
}

}  // namespace

torch::Library& native_library() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                            c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  return *library;
}

c10::OperatorHandle native_operator(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string base = name.substr(0, dot);
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      (base.starts_with("aten::") ? base : "aten::" + base).c_str(),
      dot == std::string::npos ? "" : name.c_str() + dot + 1);
}

std::optional<AutogradRoutine> autograd_routine(const c10::OperatorHandle& op) {
  // One that is a composition where a backend has no kernel is that to torchs_autograd(), too.
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Autograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return std::nullopt;
  }
  uint64_t written = 0, bit = 1;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (is_symbolic(*argument.real_type())) return std::nullopt;
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) written |= bit;
    bit <<= 1;
  }
  // Of lists torch counts none: an operator that writes their tensors one by one has it done there.
  const bool counts = op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView);
  return AutogradRoutine{counts ? written : 0,
                         written == 0 || counts ? c10::autograd_dispatch_keyset_with_ADInplaceOrView
                                                : c10::autograd_dispatch_keyset};
}

void register_past_autograd(const c10::OperatorHandle& op, c10::KernelFunction kernel) {
  // Not through a library, which would infer a schema from the signature.
  static auto& handles = *new std::vector<c10::RegistrationHandleRAII>;
  handles.push_back(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), c10::DispatchKey::AutogradPrivateUse1, std::move(kernel), std::nullopt,
      nullptr, "csrc/aten/past_autograd.h"));
}

}  // namespace hologram::aten
