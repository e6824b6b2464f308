// A vendor of devices for tests: torch's type MTIA, which no build of torch has kernels for. Its
// memory is the host's, and its kernels are torch's for the CPU over the same bytes. All but those
// of kLacking, so that it lacks some. Built by vendor.py.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/MTIAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using c10::BackendComponent;
using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

constexpr auto kVendor = c10::DeviceType::MTIA;
constexpr auto kBackend = BackendComponent::MTIABit;
constexpr c10::DeviceIndex kDevices = 2;
constexpr std::array kLacking{"aten::median.dim_values", "aten::cholesky_inverse"};

thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, kDevices> streams{};
std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> calls{0};
std::atomic<int64_t> calls_off_device{0};  // while another device was the current one

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kVendor; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kVendor, std::exchange(current, device.index())};
  }
  c10::Device getDevice() const override { return {kVendor, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, streams[static_cast<size_t>(device.index())]);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& now = streams[static_cast<size_t>(stream.device_index())];
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(now, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(0x1000 + 0x100 * stream.device_index() + stream.id());
  }
};
C10_REGISTER_GUARD_IMPL(MTIA, Guard)

// The size lies before the bytes.
constexpr size_t kHeader = 64;
void release(void* data) {
  if (data == nullptr) return;
  auto* const start = static_cast<char*>(data) - kHeader;
  live_bytes -= *reinterpret_cast<int64_t*>(start);
  std::memset(data, 0xff, static_cast<size_t>(*reinterpret_cast<int64_t*>(start)));
  std::free(start);
}
struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes != 0) {
      auto* const start =
          static_cast<char*>(std::aligned_alloc(64, (kHeader + bytes + 63) / 64 * 64));
      *reinterpret_cast<int64_t*>(start) = static_cast<int64_t>(bytes);
      live_bytes += static_cast<int64_t>(bytes);
      data = start + kHeader;
    }
    return {data, data, &release, c10::Device(kVendor, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(kVendor, &allocator)

struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device)
      : GeneratorImpl({kVendor, device}, DispatchKeySet(DispatchKey::MTIA)) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed; }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl&) override {}
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return {}; }
  Generator* clone_impl() const override { return new Generator(*this); }
  Generator(const Generator& other) : Generator(other.device_.index()) { seed_ = other.seed_; }

 private:
  uint64_t seed_ = 0;
};

struct Hooks final : at::MTIAHooksInterface {
  Hooks() = default;
  explicit Hooks(at::MTIAHooksArgs) {}  // up to torch 2.11
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device);
  }
};
}  // namespace

namespace at {
using VendorHooks = ::Hooks;
REGISTER_MTIA_HOOKS(VendorHooks)
}  // namespace at

namespace {

// One call of a CPU kernel for tensors of the vendor.
class Call {
 public:
  Tensor argument(const Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kVendor) return tensor;
    if (tensor.device().index() != current) ++calls_off_device;
    for (const auto& [theirs, cpu] : tensors_) {
      if (theirs.is_same(tensor)) return cpu;
    }
    auto cpu = like(tensor, storage(tensor.storage()), BackendComponent::CPUBit);
    tensors_.emplace_back(tensor, cpu);
    return cpu;
  }
  // Sizes and bytes of what a kernel was given to write.
  void write_back() {
    for (const auto& [theirs, cpu] : storages_) {
      if (cpu.data() == theirs.data() && cpu.nbytes() == theirs.nbytes()) continue;
      auto bytes = theirs.allocator()->allocate(cpu.nbytes());
      if (cpu.nbytes() != 0) std::memcpy(bytes.get(), cpu.data(), cpu.nbytes());
      theirs.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(bytes));
      theirs.unsafeGetStorageImpl()->set_nbytes(cpu.nbytes());
    }
    for (const auto& [theirs, cpu] : tensors_) {
      if (theirs.is_nested()) continue;
      theirs.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(),
                                                          cpu.storage_offset());
      theirs.unsafeGetTensorImpl()->_set_conj(cpu.is_conj());
      theirs.unsafeGetTensorImpl()->_set_neg(cpu.is_neg());
    }
  }
  Tensor result(const Tensor& cpu) {
    if (!cpu.defined() || !cpu.has_storage()) return cpu;
    for (const auto& [theirs, alias] : tensors_) {
      if (alias.is_same(cpu)) return theirs;
    }
    for (const auto& [theirs, alias] : storages_) {
      if (alias.unsafeGetStorageImpl() == cpu.storage().unsafeGetStorageImpl()) {
        return like(cpu, theirs, kBackend);
      }
    }
    auto bytes = allocator.allocate(cpu.storage().nbytes());
    if (bytes) std::memcpy(bytes.get(), cpu.storage().data(), cpu.storage().nbytes());
    const c10::Storage storage(c10::Storage::use_byte_size_t(), cpu.storage().nbytes(),
                               std::move(bytes), &allocator, true);
    storages_.emplace_back(storage, cpu.storage());
    return like(cpu, storage, kBackend);
  }

 private:
  c10::Storage storage(const c10::Storage& theirs) {
    for (const auto& [known, cpu] : storages_) {
      if (known.unsafeGetStorageImpl() == theirs.unsafeGetStorageImpl()) return cpu;
    }
    c10::Storage cpu(c10::Storage::use_byte_size_t(), theirs.nbytes(),
                     c10::DataPtr(theirs.mutable_data(), c10::Device(c10::kCPU)),
                     c10::GetAllocator(c10::kCPU), theirs.resizable());
    storages_.emplace_back(theirs, cpu);
    return cpu;
  }
  static Tensor like(const Tensor& tensor, c10::Storage storage, BackendComponent backend) {
    auto* const from = tensor.unsafeGetTensorImpl();
    if (tensor.is_nested()) {
      auto* const nested = static_cast<at::native::NestedTensorImpl*>(from);
      return at::detail::make_tensor<at::native::NestedTensorImpl>(
          std::move(storage),
          DispatchKeySet({DispatchKey::NestedTensor, DispatchKey::AutogradNestedTensor}) |
              DispatchKeySet(backend),
          tensor.dtype(), nested->get_nested_sizes(), nested->get_nested_strides(),
          nested->get_storage_offsets());
    }
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), DispatchKeySet(DispatchKey::Dense) | DispatchKeySet(backend),
        tensor.dtype());
    auto* const to = made.unsafeGetTensorImpl();
    to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
    to->_set_conj(tensor.is_conj());
    to->_set_neg(tensor.is_neg());
    if (from->is_wrapped_number()) to->set_wrapped_number(true);
    return made;
  }

  std::vector<std::pair<Tensor, Tensor>> tensors_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // the vendor's, and the CPU's
};

template <class F>
void map_value(c10::IValue& value, F&& map) {
  if (value.isTensor()) {
    value = map(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorList()) list.push_back(map(tensor));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
      list.push_back(tensor ? std::optional(map(*tensor)) : tensor);
    }
    value = std::move(list);
  }
}

void on_cpu(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  ++calls;
  Call call;
  bool leaves = false;
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    map_value(value, [&](const Tensor& tensor) { return call.argument(tensor); });
    if (value.isDevice()) {
      if (value.toDevice().type() == kVendor) {
        value = c10::Device(c10::kCPU);
      } else {
        leaves = true;
      }
    }
    if (value.isGenerator() && value.toGenerator().device().type() == kVendor) {
      value = at::detail::createCPUGenerator(value.toGenerator().current_seed());
    }
  }
  const auto cpu_keys =
      (keys & (c10::backend_functionality_keys | DispatchKeySet(DispatchKey::NestedTensor)))
          .remove_backend(kBackend) |
      DispatchKeySet(BackendComponent::CPUBit);
  {
    const c10::impl::ExcludeDispatchKeyGuard below(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    op.redispatchBoxed(cpu_keys, stack);
  }
  call.write_back();
  if (leaves) return;
  const size_t results = op.schema().returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    map_value((*stack)[i], [&](const Tensor& tensor) { return call.result(tensor); });
  }
}

// Flash attention as CUDA has it: under a name that the CPU has no kernel for, for heads of whole
// units only, by the CPU's.
constexpr int64_t kHeadUnit = 8;
using Attention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Attention flash_attention(const Tensor& q, const Tensor& k, const Tensor& v, double dropout,
                          bool causal, bool, std::optional<double> scale) {
  ++calls;
  TORCH_CHECK(q.size(-1) % kHeadUnit == 0, "heads of ", q.size(-1));
  Call call;
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      call.argument(q), call.argument(k), call.argument(v), dropout, causal, {}, scale);
  return {call.result(out), call.result(sums), {}, {}, q.sym_size(2), k.sym_size(2), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& sums, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double dropout,
    bool causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  ++calls;
  TORCH_CHECK(out.size(-1) % kHeadUnit == 0, "heads of ", out.size(-1));
  Call call;
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const auto [of_q, of_k, of_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      call.argument(grad), call.argument(q), call.argument(k), call.argument(v), call.argument(out),
      call.argument(sums), dropout, causal, {}, scale);
  return {call.result(of_q), call.result(of_k), call.result(of_v)};
}

TORCH_LIBRARY_IMPL(aten, MTIA, m) {
  m.impl("_scaled_dot_product_flash_attention", &flash_attention);
  m.impl("_scaled_dot_product_flash_attention_backward", &flash_attention_backward);
}

void register_kernels(DispatchKey cpu, DispatchKey vendor) {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto& handles = *new std::vector<c10::RegistrationHandleRAII>;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    const auto full = toString(name);
    if (name.getNamespace().value_or("") != "aten" || !op || !op->hasSchema() ||
        !(op->hasKernelForDispatchKey(cpu) || full.starts_with("aten::convolution") ||
          full == "aten::copy_") ||
        op->hasKernelForDispatchKey(vendor) ||
        std::ranges::find(kLacking, full) != kLacking.end()) {
      continue;
    }
    handles.push_back(dispatcher.registerImpl(name, vendor,
                                              c10::KernelFunction::makeFromBoxedFunction<&on_cpu>(),
                                              std::nullopt, nullptr, "test/vendor.cpp"));
  }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  register_kernels(DispatchKey::CPU, DispatchKey::MTIA);
  register_kernels(DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorMTIA);
  m.def("live_bytes", [] { return live_bytes.load(); });
  m.def("calls", [] { return calls.load(); });
  m.def("calls_off_device", [] { return calls_off_device.load(); });
  m.def("set_stream",
        [](int64_t device, int64_t id) { streams.at(static_cast<size_t>(device)) = id; });
}
