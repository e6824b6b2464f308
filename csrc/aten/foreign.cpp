#include "aten/precompiled.h"

#include "aten/foreign.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>

#include "aten/block.h"
#include "aten/compat.h"
#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/window.h"

namespace hologram::aten {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

// Of a tensor of ours in any layout.
void each_storage(const at::Tensor& tensor, void (*call)(c10::StorageImpl*)) {
  if (!tensor.defined() || tensor.device().type() != kHologram) return;
  auto* impl = tensor.unsafeGetTensorImpl();
  if (tensor.is_sparse()) {
    const auto* sparse = static_cast<const at::SparseTensorImpl*>(impl);
    each_storage(sparse->indices(), call);
    each_storage(sparse->values(), call);
  } else if (tensor.layout() != c10::kStrided &&
             impl->key_set().has(DispatchKey::SparseCsrPrivateUse1)) {
    const auto* compressed = static_cast<const at::SparseCsrTensorImpl*>(impl);
    each_storage(compressed->compressed_indices(), call);
    each_storage(compressed->plain_indices(), call);
    each_storage(compressed->values(), call);
  } else if (impl->has_storage()) {
    call(impl->unsafe_storage().unsafeGetStorageImpl());
  }
}

void hand_out_value(const c10::IValue& value) {
  if (value.isTensor()) {
    hand_out_tensor(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      hand_out_tensor(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      hand_out_value(element);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      hand_out_value(element);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      hand_out_value(entry.value());
    }
  }
}

void hand_out_arguments(const c10::OperatorHandle& op, const Stack& stack) {
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    hand_out_value(value);
  }
}

class BackendGuard final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    hand_out_arguments(op, *stack);
    op.redispatchBoxed(
        keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect), stack);
  }
};

// Stands where the dispatcher would find a CompositeImplicitAutograd kernel, or torch's fallback.
class AutogradGuard final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    hand_out_arguments(op, *stack);
    // What stands at a backend's autograd key that nobody uses is what would stand at ours, unless
    // a kernel for our backend turns a composite one off.
    const bool ours_alone = op.hasKernelForDispatchKey(DispatchKey::PrivateUse1) &&
                            !op.hasKernelForDispatchKey(DispatchKey::Autograd);
    // Where nothing does, there may be no kernel at all: that is said below autograd.
    if (ours_alone || !op.hasComputedKernelForDispatchKey(DispatchKey::AutogradPrivateUse3)) {
      op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    } else {
      op.getComputedKernelForDispatchKey(DispatchKey::AutogradPrivateUse3)
          .callBoxed(op, keys, stack);
    }
  }
};

// torch's own operators reach memory through our kernels and our delegate. (c10d's collectives do
// not: process groups of other libraries read tensors.)
bool is_of_torch(std::string_view name_space) {
  constexpr std::string_view own[] = {"_c10d_functional",
                                      "_c10d_functional_autograd",
                                      "_dtensor",
                                      "_native",
                                      "_quantized",
                                      "_test",
                                      "aten",
                                      "export",
                                      "hologram",
                                      "inductor",
                                      "inductor_prims",
                                      "mkl",
                                      "mkldnn",
                                      "mkldnn_prepacked",
                                      "onednn",
                                      "prim",
                                      "prims",
                                      "profiler",
                                      "quantization",
                                      "quantized",
                                      "rngprims",
                                      "sparse",
                                      "static_runtime",
                                      "symm_mem"};
  return std::find(std::begin(own), std::end(own), name_space) != std::end(own);
}

bool mentions_tensor(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType || type.kind() == c10::TypeKind::AnyType) {
    return true;
  }
  const auto parts = type.containedTypes();
  return std::any_of(parts.begin(), parts.end(),
                     [](const auto& part) { return mentions_tensor(*part); });
}

bool takes_tensors(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& argument) { return mentions_tensor(*argument.type()); });
}

// Operators that have been defined wait here until the next instruction is recorded: a listener
// runs under the dispatcher's lock and cannot register kernels.
class Guards {
 public:
  static Guards& instance() {
    static auto* guards = new Guards();  // the dispatcher outlives it
    return *guards;
  }

  void note(const c10::OperatorHandle& op) {
    if (is_of_torch(op.operator_name().getNamespace().value_or("")) || !takes_tensors(op)) {
      return;
    }
    {
      std::lock_guard<std::mutex> lock(noted_mutex_);
      noted_.push_back(op.operator_name());
      Window::set_before_record(&install_noted);
    }
    // The operator may be called before anything else is recorded. Nobody is asked which devices
    // there are: operators are registered while the package is imported, and a vendor's driver that
    // has been asked cannot be used by children of a fork.
    for (int index = 0; index < kMaxDevices; ++index) {
      Device* const device = device_if_used(index);
      if (device == nullptr) continue;
      try {
        prepare(*device);
      } catch (const std::exception&) {
        // Raised where the values are read.
      }
    }
  }

  void set(const c10::OperatorHandle& op, bool on) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto& name = op.operator_name();
    if (on) {
      unwanted_.erase(name);
      install(op);
    } else {
      unwanted_.insert(name);
      installed_.erase(name);
    }
  }

  std::vector<std::string> names() {
    std::lock_guard<std::mutex> lock(mutex_);
    install_all_noted();
    std::vector<std::string> result;
    for (const auto& [name, handles] : installed_) {
      result.push_back(toString(name));
    }
    return result;
  }

 private:
  struct Less {
    bool operator()(const c10::OperatorName& a, const c10::OperatorName& b) const {
      return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
    }
  };

  // Kernels on a vendor's streams come after what has been launched there. Its end may be far, for
  // a collective waits for other processes, and it is not to be waited for under the dispatcher's
  // lock.
  static void prepare(Device& device) {
    Channels& channels = device.channels();
    if (!device.properties().queues_are_streams) {
      channels.finish(FlushReason::read);
    } else if (!channels.empty()) {
      channels.flush(FlushReason::read);
    }
  }

  static void install_noted() {
    auto& guards = instance();
    std::lock_guard<std::mutex> lock(guards.mutex_);
    guards.install_all_noted();
  }

  void install_all_noted() {
    while (true) {
      std::vector<c10::OperatorName> names;
      {
        std::lock_guard<std::mutex> lock(noted_mutex_);
        names.swap(noted_);
        if (names.empty()) {
          Window::set_before_record(nullptr);
          return;
        }
      }
      for (const auto& name : names) {
        const auto op = c10::Dispatcher::singleton().findSchema(name);
        if (op && unwanted_.count(name) == 0) {
          install(*op);
        }
      }
    }
  }

  void install(const c10::OperatorHandle& op) {
    const auto& name = op.operator_name();
    if (installed_.count(name) != 0 || op.hasKernelForDispatchKey(DispatchKey::BackendSelect)) {
      return;
    }
    auto& handles = installed_[name];
    const bool composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    const bool has_autograd = op.hasKernelForDispatchKey(DispatchKey::AutogradPrivateUse1);
    register_kernel(handles, name, DispatchKey::BackendSelect,
                    c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BackendGuard>()));
    // Also where no kernel is there yet.
    if ((composite || !op.hasComputedKernelForDispatchKey(DispatchKey::CPU)) && !has_autograd) {
      register_kernel(handles, name, DispatchKey::AutogradPrivateUse1,
                      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<AutogradGuard>()));
    }
  }

  static void register_kernel(std::vector<c10::RegistrationHandleRAII>& handles,
                              const c10::OperatorName& name, DispatchKey key,
                              c10::KernelFunction kernel) {
    handles.push_back(c10::Dispatcher::singleton().registerImpl(
        name, key, std::move(kernel), std::nullopt, nullptr, "torch_hologram's guard"));
  }

  std::mutex noted_mutex_;  // never held while anything else is called
  std::vector<c10::OperatorName> noted_;

  std::mutex mutex_;  // taken before the dispatcher's
  std::map<c10::OperatorName, std::vector<c10::RegistrationHandleRAII>, Less> installed_;
  std::set<c10::OperatorName, Less> unwanted_;
};

struct Listener final : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle& op) override { Guards::instance().note(op); }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

}  // namespace

void synchronize_tensor(const at::Tensor& tensor) {
  each_storage(tensor, &synchronize_storage);
}

void hand_out_tensor(const at::Tensor& tensor) {
  each_storage(tensor, &hand_out_storage);
}

void guard_foreign_operators() {
  static auto* const listening =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<Listener>()));  // for as long as the process lives
  static_cast<void>(listening);
}

void flush_before(const std::string& operator_name, bool on) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto dot = operator_name.find('.');
  bool found = false;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (dot == std::string::npos ? name.name != operator_name : toString(name) != operator_name) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (!op) {
      continue;
    }
    found = true;
    TORCH_CHECK_VALUE(!on || takes_tensors(*op), "flush_before: ", operator_name,
                      " takes no tensors");
    Guards::instance().set(*op, on);
  }
  TORCH_CHECK_VALUE(
      found, "flush_before: there is no operator ", operator_name,
      " (expected a name such as \"ns::name\" or \"ns::name.overload\" of an operator "
      "that has been defined)");
}

std::vector<std::string> guarded_operators() {
  return Guards::instance().names();
}

// What hologram::sync() of torch_hologram.h calls; and torch.hologram.synchronize() in a graph, -1
// being the device that is current when the graph runs.
TORCH_LIBRARY(hologram, m) {
  m.def("sync(Tensor tensor) -> ()", &hand_out_tensor);
  m.def("synchronize(int device) -> ()");
}
TORCH_LIBRARY_IMPL(hologram, CompositeExplicitAutograd, m) {
  m.impl("synchronize", [](int64_t index) {
    hologram::device(check_device(static_cast<c10::DeviceIndex>(index))).synchronize();
  });
}
TORCH_LIBRARY_IMPL(hologram, Meta, m) {
  m.impl("synchronize", [](int64_t) {});
}

}  // namespace hologram::aten
