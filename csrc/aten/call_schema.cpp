#include "aten/precompiled.h"

#include "aten/call_schema.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace hologram::aten {
namespace {

// Operators that check the devices of their arguments themselves, from torch's own schema file
// (`device_check: NoCheck`); on CUDA all others want every tensor on one device.
const std::unordered_set<std::string>& operators_without_device_check() {
  static const auto* names = new std::unordered_set<std::string>{
#include "device_check.inc"
  };
  return *names;
}

// Of those, the ones that take any number of 0-dim CPU tensors; the others take one at most.
bool takes_many_cpu_scalars(const std::string& name) {
  constexpr std::string_view prefixes[] = {
      "aten::where", "aten::_foreach_",        "aten::_fused_", "aten::_amp_",
      "aten::index", "aten::_index_put_impl_", "aten::_unsafe_"};
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](auto prefix) { return name.starts_with(prefix); });
}

FromCpu accepted_from_cpu(std::string_view overload, const c10::Argument& argument) {
  const auto base = overload.substr(0, overload.find('.'));
  const auto is = [&](std::string_view name) {
    return base == name || (base.ends_with('_') && base.substr(0, base.size() - 1) == name);
  };
  // Operators whose CUDA kernels read a 0-dim CPU tensor from one of their arguments only.
  constexpr std::pair<std::string_view, std::string_view> only[] = {
      {"addcdiv", "tensor2"},   {"addcmul", "tensor2"},  {"binary_cross_entropy", ""},
      {"binomial", ""},         {"index_fill", "value"}, {"lerp", "weight"},
      {"masked_fill", "value"},
  };
  for (const auto& [name, scalar] : only) {
    if (is(name)) {
      return argument.name() == scalar ? FromCpu::scalar : FromCpu::nothing;
    }
  }
  // The shapes of nested tensors are CPU tensors on every device.
  constexpr std::string_view shapes[] = {"cpu_nested_shape_example", "nested_size",
                                         "nested_strides", "offsets"};
  if (base.starts_with("_nested_") &&
      std::find(std::begin(shapes), std::end(shapes), argument.name()) != std::end(shapes)) {
    return FromCpu::anything;
  }
  // CUDA's attention keeps the state of its generator on the host, where it is no graph's.
  if (argument.name().starts_with("philox_")) return FromCpu::anything;
  const bool moved = is("bernoulli") && argument.name() == "p";  // to the device, by CUDA's kernel
  return moved || argument.name() == "indices" ? FromCpu::anything : FromCpu::scalar;
}

// Arguments that a kernel writes although the schema does not say so: running statistics.
bool is_written_unsaid(std::string_view overload, std::string_view argument) {
  return overload.starts_with("native_batch_norm") &&
         (argument == "running_mean" || argument == "running_var");
}

std::optional<ArgKind> kind_of(const c10::Argument& argument) {
  const auto& type = *argument.real_type();
  const auto* inner = &type;
  if (type.kind() == c10::TypeKind::OptionalType) {
    inner = type.castRaw<c10::OptionalType>()->getElementType().get();
  }
  switch (inner->kind()) {
    case c10::TypeKind::TensorType: return ArgKind::tensor;
    case c10::TypeKind::GeneratorType: return ArgKind::generator;
    case c10::TypeKind::DeviceObjType: return ArgKind::device;
    case c10::TypeKind::ListType: {
      const auto& element = *inner->castRaw<c10::ListType>()->getElementType();
      if (element.kind() == c10::TypeKind::TensorType) {
        return ArgKind::tensor_list;
      }
      if (element.kind() == c10::TypeKind::OptionalType &&
          element.castRaw<c10::OptionalType>()->getElementType()->kind() ==
              c10::TypeKind::TensorType) {
        return ArgKind::optional_list;
      }
      return std::nullopt;
    }
    default:
      return argument.name() == "pin_memory" ? std::optional(ArgKind::pin_memory) : std::nullopt;
  }
}

}  // namespace

CallSchema::CallSchema(const c10::OperatorHandle& op, const char* counted_as)
    : name(toString(op.operator_name())),
      counter(op_counter(counted_as != nullptr ? counted_as : name)) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const auto overload = name.starts_with("aten::") ? name.substr(6) : name;
  checks_devices = operators_without_device_check().count(overload) == 0;
  argument_count = arguments.size();
  for (size_t position = 0; position < arguments.size(); ++position) {
    const auto& argument = arguments[position];
    const bool written = (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
                         is_written_unsaid(overload, argument.name());
    if (const auto kind = kind_of(argument)) {
      args.push_back(
          {static_cast<uint16_t>(position), *kind, written,
           checks_devices || written ? FromCpu::nothing : accepted_from_cpu(overload, argument)});
    }
  }
  many_cpu_scalars = takes_many_cpu_scalars(name);
  bumps_versions = !name.starts_with("aten::");
  per_element = overload.starts_with("_foreach_") || overload.starts_with("_fused_") ||
                overload.starts_with("_amp_foreach_");
  takes_cpu_indices = overload.starts_with("index") || overload.starts_with("_index_put_impl_") ||
                      overload.starts_with("_unsafe_");
  asks_requires_grad = overload.starts_with("_sparse_mm_reduce_impl");
  method = "wrapper_HOLOGRAM_" + overload;
  std::replace(method.begin(), method.end(), '.', '_');
}

}  // namespace hologram::aten
