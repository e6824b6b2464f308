#include "aten/precompiled.h"

#include "aten/delegate.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "aten/block.h"
#include "aten/boxed_call.h"
#include "aten/call_schema.h"
#include "aten/delegate_target.h"
#include "aten/learned_call.h"
#include "aten/quick.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

// The kernel registered for one operator.
class DelegateKernel final : public c10::OperatorKernel {
 public:
  explicit DelegateKernel(const c10::OperatorHandle& op)
      : schema_(op), learned_(LearnedCalls::of(op)) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (learned_ == nullptr) {
      call_boxed(schema_, op, keys, stack);
    } else {
      learned_->call(schema_, *stack, [&] { call_boxed(schema_, op, keys, stack); });
    }
  }
  const CallSchema& schema() const { return schema_; }
  bool learns() const { return learned_ != nullptr; }

 private:
  const CallSchema schema_;
  const std::unique_ptr<LearnedCalls> learned_;
};

// Schemas of operators that may be removed and defined anew, as notebooks do.
class CallSchemas {
 public:
  static CallSchemas& instance() {
    static auto* schemas = new CallSchemas();
    return *schemas;
  }

  struct Known {
    explicit Known(const c10::OperatorHandle& op) : schema(op), learned(LearnedCalls::of(op)) {}
    const CallSchema schema;
    const std::unique_ptr<LearnedCalls> learned;
  };

  std::shared_ptr<const Known> find(const c10::OperatorHandle& op) {
    std::call_once(listening_, [this] {
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<Listener>(*this)));  // for as long as the process lives
    });
    const auto* key = &op.schema();
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      const auto found = schemas_.find(key);
      if (found != schemas_.end()) {
        return found->second;
      }
    }
    auto made = std::make_shared<const Known>(op);
    std::unique_lock<std::shared_mutex> lock(mutex_);
    schemas_[key] = made;
    return made;
  }

 private:
  struct Listener final : c10::OpRegistrationListener {
    explicit Listener(CallSchemas& to) : schemas(to) {}
    void onOperatorRegistered(const c10::OperatorHandle&) override {}
    void onOperatorDeregistered(const c10::OperatorHandle& op) override {
      std::unique_lock<std::shared_mutex> lock(schemas.mutex_);
      schemas.schemas_.erase(&op.schema());
    }
    CallSchemas& schemas;
  };

  std::once_flag listening_;
  std::shared_mutex mutex_;
  std::unordered_map<const c10::FunctionSchema*, std::shared_ptr<const Known>> schemas_;
};

// The fallback for operators defined after import or outside aten.
class FallbackKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto key = (keys & kBackendKeys).highestPriorityTypeId();
    TORCH_CHECK_NOT_IMPLEMENTED(
        op.hasComputedKernelForDispatchKey(cpu_key(key)) || vendor_has(op, keys, *stack),
        "Could not run '", op.operator_name(),
        "' on the hologram device: it has neither a hologram kernel nor a CPU kernel for ",
        layout(key), " tensors");
    const auto known = schemas_.find(op);
    const auto kernel = [&] { call_boxed(known->schema, op, keys, stack); };
    if (known->learned == nullptr || key != DispatchKey::PrivateUse1) return kernel();
    known->learned->call(known->schema, *stack, kernel);
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
  // Whether the kernel is one that a vendor has and the CPU has not.
  static bool vendor_has(const c10::OperatorHandle& op, DispatchKeySet keys, const Stack& stack) {
    const auto has = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.device().type() != kHologram) return false;
      const DelegateTarget& target = target_of(tensor.device().index());
      return !target.is_cpu() && has_kernel(op, keys, target);
    };
    for (const auto& value : torch::jit::last(stack, op.schema().arguments().size())) {
      if (value.isTensor() && has(value.toTensor())) return true;
      if (!value.isTensorList()) continue;
      for (const at::Tensor& tensor : value.toTensorList()) {
        if (has(tensor)) return true;
      }
    }
    return false;
  }

  static const char* layout(DispatchKey key) {
    switch (key) {
      case DispatchKey::SparsePrivateUse1: return "sparse COO";
      case DispatchKey::SparseCsrPrivateUse1: return "compressed sparse";
      case DispatchKey::QuantizedPrivateUse1: return "quantized";
      case DispatchKey::NestedTensorPrivateUse1: return "nested";
      default: return "strided";
    }
  }

  CallSchemas& schemas_ = CallSchemas::instance();
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
    const DelegateTarget& target = target_of(device_);
    note_delegated(counter_, target);
    guard_.set(target);
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

OperatorDelegate::OperatorDelegate(const char* name, const char* overload, const char* counted_as)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)),
      schema_(new CallSchema(op_, counted_as)),  // both live as long as the process
      learned_(LearnedCalls::of(op_).release()) {}

const std::string& OperatorDelegate::name() const {
  return schema_->name;
}

QuickOperator::QuickOperator(const c10::OperatorHandle& op) : op_(op) {
  auto kernel = std::make_unique<DelegateKernel>(op);
  const CallSchema& schema = kernel->schema();
  counter_ = &schema.counter;
  always_boxed_ = schema.asks_requires_grad || kernel->learns();  // which may record the call
  for (const auto& arg : schema.args) {
    written_ |= uint64_t{arg.written} << arg.position;
  }
  boxed_ = c10::BoxedKernel::makeFromFunctor(std::move(kernel));
}

void OperatorDelegate::call(torch::jit::Stack* stack) const {
  const auto kernel = [&] {
    call_boxed(*schema_, op_, DispatchKeySet(DispatchKey::PrivateUse1), stack);
  };
  if (learned_ == nullptr) {
    kernel();
  } else {
    learned_->call(*schema_, *stack, kernel);
  }
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
