#include "aten/precompiled.h"

#include "aten/delegate.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>

#include "aten/block.h"
#include "aten/generator.h"
#include "aten/quick.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

// The keys of kernels proper, below autograd and its like.
constexpr DispatchKeySet kBackendKeys =
    c10::backend_functionality_keys | DispatchKeySet(DispatchKey::NestedTensor);

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

// What may be on the CPU for one argument of an operator without device check.
enum class FromCpu : uint8_t { nothing, scalar, anything };

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
  const bool moved = is("bernoulli") && argument.name() == "p";  // to the device, by CUDA's kernel
  return moved || argument.name() == "indices" ? FromCpu::anything : FromCpu::scalar;
}

// Arguments that a kernel writes although the schema does not say so: running statistics.
bool is_written_unsaid(std::string_view overload, std::string_view argument) {
  return overload.starts_with("native_batch_norm") &&
         (argument == "running_mean" || argument == "running_var");
}

enum class ArgKind : uint8_t { tensor, tensor_list, optional_list, generator, device, pin_memory };

struct Arg {
  uint16_t position;
  ArgKind kind;
  bool written;
  FromCpu from_cpu;
};

}  // namespace

// What the boxed delegate knows of an operator, read off its schema once.
struct Record {
  explicit Record(const c10::OperatorHandle& op)
      : name(toString(op.operator_name())), counter(op_counter(name)) {
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

  static std::optional<ArgKind> kind_of(const c10::Argument& argument) {
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

  std::string name;
  OpCounter& counter;
  size_t argument_count = 0;
  c10::SmallVector<Arg, 8> args;
  bool checks_devices = true;
  bool bumps_versions = false;  // torch does so above the kernels of aten only
  bool many_cpu_scalars = false;
  bool takes_cpu_indices = false;
  bool asks_requires_grad = false;  // the CPU kernel keeps more for a backward pass
  bool per_element = false;         // list operators treat each position on its own device
  std::string method;
};

namespace {

// One boxed call.
class BoxedCall {
 public:
  BoxedCall(const Record& record, const c10::OperatorHandle& op, Stack* stack)
      : record_(record), op_(op), stack_(*stack), begin_(stack->size() - record.argument_count) {}

  void run(DispatchKeySet keys) {
    for (const auto& arg : record_.args) {
      convert(arg);
    }
    finish_device();
    note_delegated(record_.counter, device_);
    {
      BelowAutograd below;
      const ResultsFromPool results(leaves_device_ ? c10::DeviceIndex(-1) : device_);
      const auto cpu_keys =
          (keys & kBackendKeys).remove_backend(c10::BackendComponent::PrivateUse1Bit) |
          DispatchKeySet(c10::BackendComponent::CPUBit);
      try {
        op_.redispatchBoxed(cpu_keys, &stack_);
      } catch (...) {
        frame_.write_back();  // an out= may have been resized before the kernel failed
        throw;
      }
    }
    frame_.write_back();
    if (C10_UNLIKELY(record_.bumps_versions)) {
      frame_.bump_versions();
    }
    results();
  }

 private:
  const char* argument_name(const Arg& arg) const {
    return op_.schema().arguments()[arg.position].name().c_str();
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
            value = c10::Device(c10::kCPU);
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
    if (record_.per_element && !has_list_ && tensor.defined()) {
      element_devices_.push_back(tensor.device().index());
    }
  }

  at::Tensor convert(at::Tensor tensor, const Arg& arg) {
    check(tensor, arg);
    if (tensor.device().type() != kHologram) {
      return tensor;
    }
    const bool requires_grad = record_.asks_requires_grad && tensor.requires_grad();
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
        return tensor.dim() == 0 && (record_.many_cpu_scalars || ++cpu_scalars_ == 1);
      case FromCpu::nothing: break;
    }
    return false;
  }

  // CUDA's rules and words for tensors of several devices.
  void check(const at::Tensor& tensor, const Arg& arg) {
    const auto device = tensor.device();
    if (C10_LIKELY(device.type() == kHologram &&
                   (!common_ || *common_ == device || record_.per_element))) {
      common_ = device;
      return;
    }
    const auto ours = common_ ? common_ : hologram_operand();
    TORCH_CHECK(ours || !record_.takes_cpu_indices, "indices should be either on ", c10::kCPU,
                " or on the same device as the indexed tensor (", device, ")");
    if (!ours && device.is_cpu() && makes_hologram_result()) {
      return;  // a factory that takes a CPU tensor as its model
    }
    if (!ours) {
      // A CPU operator came here because of its generator.
      TORCH_CHECK(false, "Expected a '", device.type() == c10::kCPU ? "cpu" : device.str(),
                  "' device type for generator but found 'hologram'");
    }
    if (!record_.checks_devices) {
      if (device.is_cpu() && accepts_from_cpu(tensor, arg)) {
        return;
      }
      TORCH_CHECK(false,
                  "Expected all tensors to be on the same device, but found at least two "
                  "devices, ",
                  *ours, " and ", device, "!");
    }
    c10::impl::common_device_check_failure(*ours, tensor, record_.method.c_str(),
                                           argument_name(arg));
  }

  bool makes_hologram_result() const {
    for (const auto& arg : record_.args) {
      const auto& value = stack_[begin_ + arg.position];
      if (arg.kind == ArgKind::device && value.isDevice() && value.toDevice().type() == kHologram) {
        return true;
      }
    }
    return false;
  }

  // A device to name when the argument at fault comes before any hologram tensor.
  std::optional<c10::Device> hologram_operand() const {
    for (const auto& arg : record_.args) {
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
      value = cpu_generator(given, device_);
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

  const Record& record_;
  const c10::OperatorHandle& op_;
  Stack& stack_;
  const size_t begin_;
  AliasFrame frame_;
  std::optional<c10::Device> common_;
  std::optional<c10::DeviceIndex> requested_;
  const Arg* generator_ = nullptr;
  c10::SmallVector<c10::DeviceIndex, 2> element_devices_;
  c10::DeviceIndex device_ = 0;
  int cpu_scalars_ = 0;
  bool has_list_ = false;
  bool leaves_device_ = false;  // the caller asked for a result elsewhere
};

// The kernel registered for one operator.
class DelegateKernel final : public c10::OperatorKernel {
 public:
  explicit DelegateKernel(const c10::OperatorHandle& op) : record_(op) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    BoxedCall(record_, op, stack).run(keys);
  }
  const Record& record() const { return record_; }

 private:
  const Record record_;
};

// Records of operators that may be removed and defined anew, as notebooks do.
class OperatorRecords {
 public:
  static OperatorRecords& instance() {
    static auto* records = new OperatorRecords();
    return *records;
  }

  std::shared_ptr<const Record> find(const c10::OperatorHandle& op) {
    std::call_once(listening_, [this] {
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<Listener>(*this)));  // for as long as the process lives
    });
    const auto* key = &op.schema();
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      const auto found = records_.find(key);
      if (found != records_.end()) {
        return found->second;
      }
    }
    auto made = std::make_shared<const Record>(op);
    std::unique_lock<std::shared_mutex> lock(mutex_);
    records_[key] = made;
    return made;
  }

 private:
  struct Listener final : c10::OpRegistrationListener {
    explicit Listener(OperatorRecords& to) : records(to) {}
    void onOperatorRegistered(const c10::OperatorHandle&) override {}
    void onOperatorDeregistered(const c10::OperatorHandle& op) override {
      std::unique_lock<std::shared_mutex> lock(records.mutex_);
      records.records_.erase(&op.schema());
    }
    OperatorRecords& records;
  };

  std::once_flag listening_;
  std::shared_mutex mutex_;
  std::unordered_map<const c10::FunctionSchema*, std::shared_ptr<const Record>> records_;
};

// The fallback for operators defined after import or outside aten.
class FallbackKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto key = (keys & kBackendKeys).highestPriorityTypeId();
    TORCH_CHECK_NOT_IMPLEMENTED(
        op.hasComputedKernelForDispatchKey(cpu_key(key)), "Could not run '", op.operator_name(),
        "' on the hologram device: it has neither a hologram kernel nor a CPU kernel for ",
        layout(key), " tensors");
    BoxedCall(*records_.find(op), op, stack).run(keys);
  }

  static DispatchKey cpu_key(DispatchKey key) {
    switch (key) {
      case DispatchKey::SparsePrivateUse1: return DispatchKey::SparseCPU;
      case DispatchKey::SparseCsrPrivateUse1: return DispatchKey::SparseCsrCPU;
      case DispatchKey::QuantizedPrivateUse1: return DispatchKey::QuantizedCPU;
      case DispatchKey::NestedTensorPrivateUse1: return DispatchKey::NestedTensorCPU;
      default: return DispatchKey::CPU;
    }
  }

 private:
  static const char* layout(DispatchKey key) {
    switch (key) {
      case DispatchKey::SparsePrivateUse1: return "sparse COO";
      case DispatchKey::SparseCsrPrivateUse1: return "compressed sparse";
      case DispatchKey::QuantizedPrivateUse1: return "quantized";
      case DispatchKey::NestedTensorPrivateUse1: return "nested";
      default: return "strided";
    }
  }

  OperatorRecords& records_ = OperatorRecords::instance();
};

constexpr std::pair<DispatchKey, DispatchKey> delegated_keys[] = {
    {DispatchKey::CPU, DispatchKey::PrivateUse1},
    {DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1},
    {DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1},
    {DispatchKey::QuantizedCPU, DispatchKey::QuantizedPrivateUse1},
    {DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorPrivateUse1},
};

// Composite operators that treat the CPU apart, name the devices they work on, or call a kernel
// table of torch's directly, ours not among them.
bool excludes_us(const std::string& name) {
  static const auto* names =
      new std::unordered_set<std::string>{"aten::addr_",
                                          "aten::conj_physical_",
                                          "aten::mode.values",
                                          "aten::kaiser_window",
                                          "aten::kaiser_window.periodic",
                                          "aten::kaiser_window.beta",
                                          "aten::_validate_sparse_coo_tensor_args",
                                          "aten::_validate_sparse_compressed_tensor_args"};
  return names->count(name) != 0;
}

std::unordered_set<std::string>& delegated_kernels() {
  static auto* names = new std::unordered_set<std::string>();
  return *names;
}

std::vector<std::pair<std::string, Served>>& table() {
  static auto* rows = new std::vector<std::pair<std::string, Served>>();
  return *rows;
}

std::vector<std::string>& quick_names() {
  static auto* names = new std::vector<std::string>();
  return *names;
}

}  // namespace

BelowAutograd::BelowAutograd()
    : guard_(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
             DispatchKeySet(DispatchKey::AutocastCPU)) {}

at::Tensor Delegation::in(const at::Tensor& tensor, bool written) {
  if (!tensor.defined()) {
    return tensor;
  }
  const auto device = tensor.device();
  TORCH_CHECK(device.type() == kHologram && (device_ < 0 || device.index() == device_),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(kHologram, device_ < 0 ? current_device() : device_), " and ", device,
              "!");
  if (device_ < 0) {
    device_ = device.index();
    note_delegated(counter_, device_);
    results_.emplace(device_);
  }
  return frame_.argument(tensor, written);
}

std::optional<at::Tensor> Delegation::in(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(in(*tensor)) : std::nullopt;
}

void note_delegated_kernel(const std::string& name) {
  delegated_kernels().insert(name);
}

OperatorDelegate::OperatorDelegate(const char* name, const char* overload)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)),
      record_(new Record(op_)) {}  // lives as long as the process

const std::string& OperatorDelegate::name() const {
  return record_->name;
}

QuickOperator::QuickOperator(const c10::OperatorHandle& op) : op_(op) {
  auto kernel = std::make_unique<DelegateKernel>(op);
  const Record& record = kernel->record();
  counter_ = &record.counter;
  always_boxed_ = record.asks_requires_grad;
  for (const auto& arg : record.args) {
    written_ |= uint64_t{arg.written} << arg.position;
  }
  boxed_ = c10::BoxedKernel::makeFromFunctor(std::move(kernel));
}

void OperatorDelegate::call(torch::jit::Stack* stack) const {
  BoxedCall(*record_, op_, stack).run(DispatchKeySet(DispatchKey::PrivateUse1));
}

void register_delegates() {
  install_result_allocator();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& [cpu, ours] : delegated_keys) {
    static std::vector<std::unique_ptr<torch::Library>> libraries;
    libraries.push_back(
        std::make_unique<torch::Library>(torch::Library::IMPL, "aten", ours, __FILE__, __LINE__));
    auto& library = *libraries.back();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (name.getNamespace().value_or("") != "aten") {
        continue;
      }
      const auto op = dispatcher.findOp(name);
      if (!op || !op->hasSchema()) {
        continue;
      }
      const auto full = toString(name);
      if (op->hasKernelForDispatchKey(ours)) {
        if (ours == DispatchKey::PrivateUse1) {
          table().emplace_back(
              full, delegated_kernels().count(full) != 0 ? Served::delegated : Served::native);
        }
        continue;
      }
      if (!op->hasKernelForDispatchKey(cpu) &&
          !(ours == DispatchKey::PrivateUse1 && excludes_us(full))) {
        continue;
      }
      const auto quick = ours == DispatchKey::PrivateUse1 ? find_quick_kernel(full) : nullptr;
      if (quick != nullptr) {
        // Not through the library, which would infer a schema from the signature.
        static auto& handles = *new std::vector<c10::RegistrationHandleRAII>;
        handles.push_back(c10::Dispatcher::singleton().registerImpl(
            op->operator_name(), ours, quick(*op), std::nullopt, nullptr, "csrc/aten/quick.h"));
      } else {
        library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                       std::make_unique<DelegateKernel>(*op)));
      }
      if (ours == DispatchKey::PrivateUse1) {
        table().emplace_back(full, Served::delegated);
      }
      if (quick != nullptr) {
        quick_names().push_back(full);
      }
    }
  }
}

std::vector<std::pair<std::string, Served>> operator_table() {
  return table();
}

std::vector<std::string> quick_operators() {
  return quick_names();
}

#define HOLOGRAM_FALLBACK(key)                                                                \
  TORCH_LIBRARY_IMPL(_, key, m) {                                                             \
    m.fallback(torch::CppFunction::makeFromBoxedFunctor(std::make_unique<FallbackKernel>())); \
  }
HOLOGRAM_FALLBACK(PrivateUse1)
HOLOGRAM_FALLBACK(SparsePrivateUse1)
HOLOGRAM_FALLBACK(SparseCsrPrivateUse1)
HOLOGRAM_FALLBACK(QuantizedPrivateUse1)
HOLOGRAM_FALLBACK(NestedTensorPrivateUse1)

}  // namespace hologram::aten
