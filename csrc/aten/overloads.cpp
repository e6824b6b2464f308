#include "aten/precompiled.h"

#include "aten/overloads.h"

#include <map>
#include <set>

namespace hologram::aten {
namespace {

std::set<std::string>& noted() {
  static auto* names = new std::set<std::string>();
  return *names;
}

}  // namespace

std::optional<Signature> signature_of(const c10::FunctionSchema& schema) {
  Signature signature;
  for (const auto& argument : schema.arguments()) {
    const auto& type = argument.real_type();
    const auto kind = type->kind();
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (argument.is_out()) {
      signature.form = Form::out;
    } else if (kind == c10::TypeKind::TensorType) {
      signature.operands += 't';
      signature.form = written ? Form::inplace : signature.form;
    } else if (kind == c10::TypeKind::NumberType) {
      signature.operands += 's';
    } else if (kind == c10::TypeKind::StringType) {
      signature.operands += 'w';
    } else if (kind == c10::TypeKind::OptionalType &&
               type->castRaw<c10::OptionalType>()->getElementType()->kind() ==
                   c10::TypeKind::NumberType) {
      signature.operands += 'o';
    } else {
      return std::nullopt;
    }
  }
  return signature;
}

void for_overloads(const std::string& name,
                   const std::function<void(const c10::OperatorName&, const Signature&)>& use) {
  auto& dispatcher = c10::Dispatcher::singleton();
  // Read once: of the thousands that torch has each row wants a handful.
  static const auto* every = [] {
    auto* names = new std::multimap<std::string, c10::OperatorName>();
    for (auto& op : c10::Dispatcher::singleton().getAllOpNames()) names->emplace(op.name, op);
    return names;
  }();
  for (const auto& full : {"aten::" + name, "aten::" + name + "_"}) {
    const auto [begin, end] = every->equal_range(full);
    for (auto found = begin; found != end; ++found) {
      const auto& op = found->second;
      const auto handle = dispatcher.findOp(op);
      if (!handle || !handle->hasSchema() || noted().count(toString(op)) != 0 ||
          !(handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
            handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))) {
        continue;
      }
      if (const auto signature = signature_of(handle->schema())) {
        use(op, *signature);
      }
    }
  }
}

void note_overload(const c10::OperatorName& name) {
  noted().insert(toString(name));
}

}  // namespace hologram::aten
