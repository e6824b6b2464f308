// Operators and functions as another library would bring them. Built by test_foreign.py.
#include <torch/extension.h>
#include <torch_hologram.h>

namespace {

double sum_of(const at::Tensor& x) {
  TORCH_CHECK(x.is_contiguous() && x.scalar_type() == at::kFloat);
  const float* data = x.const_data_ptr<float>();
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) sum += data[i];
  return sum;
}

double sum_synced(const at::Tensor& x) {
  hologram::sync(x);
  return sum_of(x);
}

// Records something itself before it reads.
double sum_of_next(const at::Tensor& x) {
  const at::Tensor y = x + 1;
  hologram::sync(y);
  return sum_of(y);
}

double sum_list(at::TensorList list, const std::optional<at::Tensor>& other) {
  double sum = other ? sum_of(*other) : 0;
  for (const at::Tensor& x : list) sum += sum_of(x);
  return sum;
}

void store(at::Tensor x, double value) {
  std::fill_n(x.mutable_data_ptr<float>(), x.numel(), static_cast<float>(value));
}

// y = 2 x by raw pointers, with a gradient.
at::Tensor twice_kernel(const at::Tensor& x) {
  auto y = at::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * from[i];
  return y;
}

at::Tensor twice(const at::Tensor& x) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("hologram_test::twice", "");
  return op.typed<at::Tensor(const at::Tensor&)>().call(x);
}

struct Twice : torch::autograd::Function<Twice> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView below;
    return twice(x * 1.5);  // recorded below autograd, then read
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    return {twice(gradients[0] * 1.5)};
  }
};

at::Tensor twice_autograd(const at::Tensor& x) {
  return Twice::apply(x);
}

}  // namespace

TORCH_LIBRARY(hologram_test, m) {
  m.def("sum_composite", &sum_of);
  m.def("sum_synced", &sum_synced);
  m.def("sum_of_next", &sum_of_next);
  m.def("sum_list(Tensor[] list, Tensor? other) -> float", &sum_list);
  m.def("sum_declared(Tensor x) -> float");
  m.def("store_(Tensor(a!) x, float value) -> ()");
  m.def("twice(Tensor x) -> Tensor");
  m.def("sum_later(Tensor x) -> float");
}

TORCH_LIBRARY_IMPL(hologram_test, PrivateUse1, m) {
  m.impl("sum_declared", &sum_of);
  m.impl("store_", &store);
  m.impl("twice", &twice_kernel);
}

TORCH_LIBRARY_IMPL(hologram_test, CompositeExplicitAutograd, m) {
  m.impl("sum_later", &sum_of);
}

TORCH_LIBRARY_IMPL(hologram_test, AutogradPrivateUse1, m) {
  m.impl("twice", &twice_autograd);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("sum_unsynced", &sum_of);
  m.def("sum_synced", &sum_synced);
}
