// Recurrent networks and their cells.
//
// torch composes nn.LSTM, nn.GRU and nn.RNN of many calls, and composes them better for CPU tensors
// than for others: oneDNN's kernel of a whole layer, or else one product for the inputs of all
// steps. So a network runs as one delegated call over CPU aliases. Where gradients are wanted, the
// graph that autograd makes of that call is kept behind one node: values and gradients are the
// CPU's, bit for bit. What a graph over aliases cannot serve - gradients of gradients, transforms
// of functions, tensors that are looked at by a mode - is composed of operations on the device.
#include <ATen/SavedTensorHooks.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_thnn_fused_gru_cell_ops.h>
#include <ATen/ops/_thnn_fused_lstm_cell_ops.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "aten/autocast.h"
#include "aten/bare.h"
#include "aten/compat.h"
#include "aten/delegate.h"
#include "aten/delegate_target.h"
#include "aten/past_autograd.h"

namespace hologram::aten {
namespace {

using at::Tensor;
using at::TensorList;
using c10::DispatchKeySet;
using torch::autograd::edge_list;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

// ---- networks ----------------------------------------------------------------------------------

// The arguments of a network. With `batch_sizes`, on the CPU, the data are packed sequences.
struct Network {
  Tensor data;
  Tensor batch_sizes;
  std::vector<Tensor> states;      // (layers * directions, batch, width) each
  std::vector<Tensor> parameters;  // of all layers, one after another
  bool biases;
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  // The same over other tensors.
  template <class Function>
  Network map(Function&& function) const {
    Network mapped = *this;
    mapped.data = function(data);
    for (auto& state : mapped.states) state = function(state);
    for (auto& parameter : mapped.parameters) parameter = function(parameter);
    return mapped;
  }
  template <class Predicate>
  bool any(Predicate&& predicate) const {
    return predicate(data) || std::any_of(states.begin(), states.end(), predicate) ||
           std::any_of(parameters.begin(), parameters.end(), predicate);
  }
};

using Results = std::vector<Tensor>;  // the output, then the states after the last step

struct Kind {
  const char* name;
  int64_t gates;
  Results (*call)(const Network&);     // the operator, through the dispatcher
  Results (*compose)(const Network&);  // torch's composition of operations
};

template <class... Tensors>
Results results_of(std::tuple<Tensors...> results) {
  return std::apply([](auto&&... parts) { return Results{std::move(parts)...}; },
                    std::move(results));
}

// The call of a torch function that has an overload for padded and one for packed sequences.
template <class Function, class States>
Results call_with(const Network& n, const States& states, Function&& function) {
  return n.batch_sizes.defined()
             ? results_of(function(n.data, n.batch_sizes, states, TensorList(n.parameters),
                                   n.biases, n.layers, n.dropout, n.train, n.bidirectional))
             : results_of(function(n.data, states, TensorList(n.parameters), n.biases, n.layers,
                                   n.dropout, n.train, n.bidirectional, n.batch_first));
}

#define HOLOGRAM_NETWORK(function, gates, states)                                             \
  constexpr Kind function##_kind{"aten::" #function, gates,                                   \
                                 [](const Network& n) {                                       \
                                   return call_with(n, states, [](const auto&... arguments) { \
                                     return at::function(arguments...);                       \
                                   });                                                        \
                                 },                                                           \
                                 [](const Network& n) {                                       \
                                   return call_with(n, states, [](const auto&... arguments) { \
                                     return at::native::function(arguments...);               \
                                   });                                                        \
                                 }};
HOLOGRAM_NETWORK(lstm, 4, TensorList(n.states))
HOLOGRAM_NETWORK(gru, 3, n.states[0])
HOLOGRAM_NETWORK(rnn_tanh, 1, n.states[0])
HOLOGRAM_NETWORK(rnn_relu, 1, n.states[0])
#undef HOLOGRAM_NETWORK

// Whether gradients are wanted of the tensor.
bool is_wanted(const Tensor& tensor) {
  return tensor.requires_grad();
}

bool wants_graph(const Network& network) {
  return c10::GradMode::is_enabled() && network.any(is_wanted);
}

// Whether the sizes go together. oneDNN's kernel does not ask; the composition complains.
bool fits(const Kind& kind, const Network& n) {
  const bool packed = n.batch_sizes.defined();
  const auto count = n.layers * n.directions();
  if (n.layers < 1 || n.states.size() != (&kind == &lstm_kind ? 2 : 1) ||
      n.data.dim() != (packed ? 2 : 3) ||
      (packed && (n.batch_sizes.dim() != 1 || n.batch_sizes.numel() == 0 ||
                  n.batch_sizes.scalar_type() != at::kLong))) {
    return false;
  }
  const auto batch =
      packed ? *n.batch_sizes.const_data_ptr<int64_t>() : n.data.size(n.batch_first ? 0 : 1);
  for (const auto& state : n.states) {
    if (state.dim() != 3 || state.size(0) != count || state.size(1) != batch) return false;
  }
  // Of the output and of the gates: different where a network projects.
  const auto width = n.states.front().size(2), hidden = n.states.back().size(2);
  const bool projects = width != hidden;
  const auto each = static_cast<size_t>(2 + (n.biases ? 2 : 0) + (projects ? 1 : 0));
  if (n.parameters.size() != each * static_cast<size_t>(count)) return false;
  for (size_t i = 0; i < n.parameters.size(); ++i) {
    const auto sizes = n.parameters[i].sizes();
    const auto which = i % each;
    const auto input =
        i < each * static_cast<size_t>(n.directions()) ? n.data.size(-1) : width * n.directions();
    const bool right = which == 0              ? sizes.equals({kind.gates * hidden, input})
                       : which == 1            ? sizes.equals({kind.gates * hidden, width})
                       : which < 4 && n.biases ? sizes.equals({kind.gates * hidden})
                                               : sizes.equals({width, hidden});
    if (!right) return false;
  }
  return true;
}

// Whether one call over aliases does what the composition would do, apart from rounding.
bool is_whole(const Kind& kind, const Network& n) {
  if (n.any([&](const Tensor& t) { return !is_bare(t); }) ||
      (n.batch_sizes.defined() && !n.batch_sizes.device().is_cpu()) ||
      c10::impl::TorchDispatchModeTLS::any_modes_set() ||
      at::autocast::is_autocast_enabled(c10::DeviceType::PrivateUse1) ||
      n.any([](const Tensor& t) { return t._fw_grad(/*level=*/0).defined(); }) || !fits(kind, n)) {
    return false;
  }
  // Hooks on what is kept for a backward pass expect tensors of the device. torch has an error for
  // an inference tensor that would be kept. A vendor's graph would run on threads and streams of
  // its own.
  return !wants_graph(n) || (target_of(n.data.device().index()).is_cpu() &&
                             at::SavedTensorDefaultHooks::get_tls_state().stack.empty() &&
                             !n.any([](const Tensor& t) { return t.is_inference(); }));
}

// Results of the CPU as the device's: `results` of the operator over the aliases in `frame`.
Results to_device(AliasFrame& frame, Results results, c10::DeviceIndex device) {
  for (auto& result : results) {
    Tensor data = result.tensor_data();  // without a graph, and with the same version counter
    result = Tensor();
    result = frame.result(std::move(data), device);
  }
  return results;
}

// Around CPU code that builds or runs a graph over aliases.
class OverAliases {
 public:
  explicit OverAliases(c10::DeviceIndex device) : results_(device) {}

 private:
  const c10::impl::ExcludeDispatchKeyGuard no_autocast_{kTheirAutocast};
  const ResultsFromPool results_;
};

// The backward pass of one network: that of the graph over aliases of its arguments.
class NetworkBackward final : public torch::autograd::Node {
 public:
  NetworkBackward(const Kind& kind, Network network, variable_list inputs)
      : kind_(kind),
        network_(network.map([](const Tensor&) { return Tensor(); })),
        device_(network.data.device().index()) {
    set_next_edges(torch::autograd::collect_next_edges(inputs));
    network.map([&](const Tensor& tensor) {
      saved_.emplace_back(tensor, /*is_output=*/false);
      const auto found = std::find_if(inputs.begin(), inputs.end(),
                                      [&](const Tensor& input) { return input.is_same(tensor); });
      input_of_.push_back(found == inputs.end() ? -1 : found - inputs.begin());
      return tensor;
    });
  }

  // Edges into the graph over aliases: from its results, and to the aliases of the inputs.
  edge_list roots;
  edge_list leaves;

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
    const bool plain = std::all_of(grads.begin(), grads.end(), [](const Tensor& grad) {
      return !grad.defined() || is_bare(grad);
    });
    if (c10::GradMode::is_enabled() || !plain || c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      return composed(grads);
    }
    AliasFrame frame;
    const OverAliases context(device_);
    edge_list from, to;
    variable_list cpu_grads;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined() && roots[i].is_valid()) {
        from.push_back(roots[i]);
        cpu_grads.push_back(frame.argument(std::move(grads[i])));
      }
    }
    const auto wanted = wanted_inputs();
    for (const size_t i : wanted) to.push_back(leaves[i]);
    variable_list gradients(leaves.size());
    if (from.empty() || to.empty()) return gradients;
    // What the graph keeps is given back when this node gives back its own.
    auto found = torch::autograd::Engine::get_default_engine().execute(
        from, cpu_grads, /*keep_graph=*/true, /*create_graph=*/false, /*accumulate_grad=*/false,
        to);
    cpu_grads.clear();
    for (size_t k = 0; k < wanted.size(); ++k) {
      gradients[wanted[k]] = frame.result(std::move(found[k]), device_);
    }
    return gradients;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    roots.clear();
    leaves.clear();
    for (auto& variable : saved_) variable.reset_data();
  }

  std::string name() const override {
    return std::string(kind_.name).substr(std::string("aten::").size()) + "Backward";
  }

 private:
  std::vector<size_t> wanted_inputs() const {
    std::vector<size_t> wanted;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (task_should_compute_output(i)) wanted.push_back(i);
    }
    return wanted;
  }

  // The same gradients out of the composition on the device, which has gradients of its own.
  variable_list composed(const variable_list& grads) {
    const bool create_graph = c10::GradMode::is_enabled();
    const at::AutoGradMode graph(true);
    // A view of each input stands for it: one input may have been computed from another.
    variable_list inputs(leaves.size());
    size_t position = 0;
    const auto network = network_.map([&](const Tensor&) {
      const auto input = input_of_[position];
      Tensor tensor = saved_[position++].unpack();
      if (input < 0) return tensor;
      auto& view = inputs[static_cast<size_t>(input)];
      if (!view.defined()) view = tensor.view_as(tensor);
      return view;
    });
    const auto results = kind_.compose(network);
    variable_list from, cotangents, to;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined() && results[i].requires_grad()) {
        from.push_back(results[i]);
        cotangents.push_back(grads[i]);
      }
    }
    const auto wanted = wanted_inputs();
    for (const size_t i : wanted) to.push_back(inputs[i]);
    variable_list gradients(leaves.size());
    if (from.empty() || to.empty()) return gradients;
    auto found = torch::autograd::grad(from, to, cotangents, /*retain_graph=*/create_graph,
                                       create_graph, /*allow_unused=*/true);
    for (size_t k = 0; k < wanted.size(); ++k) gradients[wanted[k]] = std::move(found[k]);
    return gradients;
  }

  const Kind& kind_;
  const Network network_;  // without its tensors, which are saved, in the order of Network::map
  std::vector<SavedVariable> saved_;
  std::vector<ptrdiff_t> input_of_;  // of each: which input it is, -1 where no gradient is wanted
  const c10::DeviceIndex device_;
  bool released_ = false;
};

// One call over aliases, with a graph.
Results run_with_graph(const Kind& kind, const Network& network) {
  AliasFrame frame;
  const auto device = network.data.device().index();
  variable_list inputs;
  edge_list leaves;
  Results results;
  edge_list roots;
  {
    const OverAliases context(device);
    results = kind.call(network.map([&](const Tensor& tensor) {
      auto alias = frame.argument(tensor);
      // A change between now and the backward pass is found as on the CPU.
      alias.unsafeGetTensorImpl()->set_version_counter(
          tensor.unsafeGetTensorImpl()->version_counter());
      if (is_wanted(tensor) && !alias.requires_grad()) {
        alias.set_requires_grad(true);
        inputs.push_back(tensor);
        leaves.push_back(torch::autograd::impl::gradient_edge(alias));
      }
      return alias;
    }));
    for (const auto& result : results) {
      roots.push_back(result.requires_grad() ? torch::autograd::impl::gradient_edge(result)
                                             : torch::autograd::Edge());
    }
    results = to_device(frame, std::move(results), device);
  }
  auto node = make_node<NetworkBackward>(kind, network, std::move(inputs));
  for (size_t i = 0; i < results.size(); ++i) {
    if (roots[i].is_valid()) {
      torch::autograd::set_history(results[i], node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  node->roots = std::move(roots);
  node->leaves = std::move(leaves);
  return results;
}

Results run(const Kind& kind, const Network& network);

// Dropout between layers draws from the device's generator, so it is done on the device.
Results run_layers(const Kind& kind, const Network& network) {
  const auto directions = network.directions();
  const auto count = network.parameters.size() / static_cast<size_t>(network.layers);
  Network layer = network;
  layer.layers = 1;
  layer.dropout = 0;
  layer.batch_first = false;
  if (network.batch_first) layer.data = network.data.transpose(0, 1);
  std::vector<std::vector<Tensor>> states(network.states.size());
  for (int64_t index = 0; index < network.layers; ++index) {
    for (size_t s = 0; s < states.size(); ++s) {
      layer.states[s] = network.states[s].narrow(0, index * directions, directions);
    }
    const auto first = network.parameters.begin() + static_cast<ptrdiff_t>(count) * index;
    layer.parameters.assign(first, first + static_cast<ptrdiff_t>(count));
    auto results = run(kind, layer);
    layer.data = index + 1 < network.layers
                     ? at::dropout(results[0], network.dropout, /*train=*/true)
                     : results[0];
    for (size_t s = 0; s < states.size(); ++s) states[s].push_back(std::move(results[s + 1]));
  }
  Results results{network.batch_first ? layer.data.transpose(0, 1) : layer.data};
  for (const auto& of_layers : states) results.push_back(at::cat(of_layers, 0));
  return results;
}

// Before torch's composition looks at anything else, because it would name one of its operations.
void check_devices(const Network& network) {
  const auto device = network.data.device();
  network.any([&](const Tensor& tensor) {
    TORCH_CHECK(!tensor.defined() || tensor.device() == device,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device, " and ", tensor.device(), "!");
    return false;
  });
}

Results run(const Kind& kind, const Network& network) {
  check_devices(network);
  if (!is_whole(kind, network)) return kind.compose(network);
  if (network.train && network.dropout != 0 && network.layers > 1) {
    return run_layers(kind, network);
  }
  auto& counter =
      op_counter(std::string(kind.name) + (network.batch_sizes.defined() ? ".data" : ".input"));
  if (wants_graph(network)) {
    note_delegated(counter, network.data.device().index());
    return run_with_graph(kind, network);
  }
  Delegation call(counter);
  auto results = kind.call(network.map([&](const Tensor& tensor) { return call.in(tensor); }));
  for (auto& result : results) result = call.out(std::move(result));
  return results;
}

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

Two one_state_of(const Kind& kind, const Network& network) {
  auto results = run(kind, network);
  return {std::move(results[0]), std::move(results[1])};
}

template <const Kind& kind>
Two one_state(const Tensor& input, const Tensor& state, TensorList parameters, bool biases,
              int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  return one_state_of(kind, {input,
                             Tensor(),
                             {state},
                             parameters.vec(),
                             biases,
                             layers,
                             dropout,
                             train,
                             bidirectional,
                             batch_first});
}

template <const Kind& kind>
Two one_state_packed(const Tensor& data, const Tensor& batch_sizes, const Tensor& state,
                     TensorList parameters, bool biases, int64_t layers, double dropout, bool train,
                     bool bidirectional) {
  return one_state_of(kind, {data,
                             batch_sizes,
                             {state},
                             parameters.vec(),
                             biases,
                             layers,
                             dropout,
                             train,
                             bidirectional,
                             false});
}

Three lstm(const Tensor& input, TensorList states, TensorList parameters, bool biases,
           int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  auto results = run(lstm_kind, {input, Tensor(), states.vec(), parameters.vec(), biases, layers,
                                 dropout, train, bidirectional, batch_first});
  return {std::move(results[0]), std::move(results[1]), std::move(results[2])};
}

Three lstm_packed(const Tensor& data, const Tensor& batch_sizes, TensorList states,
                  TensorList parameters, bool biases, int64_t layers, double dropout, bool train,
                  bool bidirectional) {
  auto results = run(lstm_kind, {data, batch_sizes, states.vec(), parameters.vec(), biases, layers,
                                 dropout, train, bidirectional, false});
  return {std::move(results[0]), std::move(results[1]), std::move(results[2])};
}

// ---- cells -------------------------------------------------------------------------------------
// Gate order and formulas: torch.nn.LSTMCell and torch.nn.GRUCell. `workspace` is private to each
// forward/backward pair.

bool is_defined(const OptionalTensor& tensor) {
  return tensor && tensor->defined();
}

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return is_defined(bias) ? gates + *bias : gates;
}

// The gates of a matrix (batch, count * hidden), one after another.
std::vector<Tensor> gates_of(const Tensor& matrix, int64_t count, const Tensor& state) {
  TORCH_CHECK(matrix.dim() == 2 && state.dim() == 2 && matrix.size(0) == state.size(0) &&
                  matrix.size(1) == count * state.size(1),
              "Expected the gates of an RNN cell to have size (batch, ", count,
              " * hidden) for a state of size (batch, hidden), got ", matrix.sizes(), " and ",
              state.sizes());
  return matrix.unsafe_chunk(count, 1);
}

// hy, cy and workspace. input_gates, hidden_gates (batch, 4 hidden); cx (batch, hidden).
Three lstm_step(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto gates = with_bias(hidden_gates, hidden_bias) + with_bias(input_gates, input_bias);
  const auto parts = gates_of(gates, 4, cx);
  const auto i = at::sigmoid(parts[0]);
  const auto f = at::sigmoid(parts[1]);
  const auto g = at::tanh(parts[2]);
  const auto o = at::sigmoid(parts[3]);
  auto cy = f * cx + i * g;
  auto hy = o * at::tanh(cy);
  return {std::move(hy), std::move(cy), at::cat({i, f, g, o}, 1)};
}

Three lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  static auto& counter = op_counter("aten::_thnn_fused_lstm_cell");
  Delegation call(counter);
  auto [hy, cy, workspace] = lstm_step(call.in(input_gates), call.in(hidden_gates), call.in(cx),
                                       call.in(input_bias), call.in(hidden_bias));
  return {call.out(std::move(hy)), call.out(std::move(cy)), call.out(std::move(workspace))};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  static auto& counter = op_counter("aten::_thnn_fused_lstm_cell_backward_impl");
  if (!is_defined(grad_hy) && !is_defined(grad_cy)) {
    return {};
  }
  Delegation call(counter);
  const auto parts = gates_of(call.in(workspace), 4, cx);
  const auto &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const auto c = call.in(cx);
  const auto tanh_cy = at::tanh(call.in(cy));
  const auto dh = is_defined(grad_hy) ? call.in(*grad_hy) : at::zeros_like(tanh_cy);
  auto dc = dh * o * (1 - tanh_cy * tanh_cy);
  if (is_defined(grad_cy)) {
    dc = dc + call.in(*grad_cy);
  }
  auto gates = at::cat({dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g),
                        dh * tanh_cy * o * (1 - o)},
                       1);
  auto dcx = dc * f;
  auto bias = has_bias ? gates.sum(0) : Tensor();
  return {call.out(std::move(gates)), call.out(std::move(dcx)), call.out(std::move(bias))};
}

// hy and workspace. input_gates, hidden_gates (batch, 3 hidden); hx (batch, hidden).
Two gru_step(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto in = gates_of(with_bias(input_gates, input_bias), 3, hx);
  const auto hidden = gates_of(with_bias(hidden_gates, hidden_bias), 3, hx);
  const auto r = at::sigmoid(hidden[0] + in[0]);
  const auto z = at::sigmoid(hidden[1] + in[1]);
  const auto n = at::tanh(in[2] + hidden[2] * r);
  auto hy = (hx - n) * z + n;
  return {std::move(hy), at::cat({r, z, n, hx, hidden[2]}, 1)};
}

Two gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  static auto& counter = op_counter("aten::_thnn_fused_gru_cell");
  Delegation call(counter);
  auto [hy, workspace] = gru_step(call.in(input_gates), call.in(hidden_gates), call.in(hx),
                                  call.in(input_bias), call.in(hidden_bias));
  return {call.out(std::move(hy)), call.out(std::move(workspace))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  static auto& counter = op_counter("aten::_thnn_fused_gru_cell_backward");
  Delegation call(counter);
  const auto parts = gates_of(call.in(workspace), 5, grad_hy);
  const auto &r = parts[0], &z = parts[1], &n = parts[2], &h = parts[3], &hn = parts[4];
  const auto dy = call.in(grad_hy);
  const auto dn = dy * (1 - z) * (1 - n * n);
  const auto dr = dn * hn * r * (1 - r);
  const auto dz = dy * (h - n) * z * (1 - z);
  auto dinput = at::cat({dr, dz, dn}, 1);
  auto dhidden = at::cat({dr, dz, dn * r}, 1);
  auto dhx = dy * z;
  auto dinput_bias = has_bias ? dinput.sum(0) : Tensor();
  auto dhidden_bias = has_bias ? dhidden.sum(0) : Tensor();
  return {call.out(std::move(dinput)), call.out(std::move(dhidden)), call.out(std::move(dhx)),
          call.out(std::move(dinput_bias)), call.out(std::move(dhidden_bias))};
}

// torch has no derivative of the cells for forward mode, and for CPU tensors no need of one: it
// composes them there. So they are composed here where there are tangents.
template <class Result>
using Cell = Result(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                    const OptionalTensor&);

template <class Operator, class Result, Cell<Result>* step>
Result cell_with_tangents(DispatchKeySet keys, const Tensor& input_gates,
                          const Tensor& hidden_gates, const Tensor& state,
                          const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto has_tangent = [](const OptionalTensor& tensor) {
    return is_defined(tensor) && tensor->_fw_grad(/*level=*/0).defined();
  };
  if (has_tangent(input_gates) || has_tangent(hidden_gates) || has_tangent(state) ||
      has_tangent(input_bias) || has_tangent(hidden_bias)) {
    return step(input_gates, hidden_gates, state, input_bias, hidden_bias);
  }
  return Operator::redispatch(torchs_autograd(keys), input_gates, hidden_gates, state, input_bias,
                              hidden_bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  impl_delegated(m, "lstm.input", &lstm);
  impl_delegated(m, "lstm.data", &lstm_packed);
  impl_delegated(m, "gru.input", &one_state<gru_kind>);
  impl_delegated(m, "gru.data", &one_state_packed<gru_kind>);
  impl_delegated(m, "rnn_tanh.input", &one_state<rnn_tanh_kind>);
  impl_delegated(m, "rnn_tanh.data", &one_state_packed<rnn_tanh_kind>);
  impl_delegated(m, "rnn_relu.input", &one_state<rnn_relu_kind>);
  impl_delegated(m, "rnn_relu.data", &one_state_packed<rnn_relu_kind>);
  impl_delegated(m, "_thnn_fused_lstm_cell", &lstm_cell);
  impl_delegated(m, "_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  impl_delegated(m, "_thnn_fused_gru_cell", &gru_cell);
  impl_delegated(m, "_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

// The networks make their own graphs.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("lstm.input", &lstm);
  m.impl("lstm.data", &lstm_packed);
  m.impl("gru.input", &one_state<gru_kind>);
  m.impl("gru.data", &one_state_packed<gru_kind>);
  m.impl("rnn_tanh.input", &one_state<rnn_tanh_kind>);
  m.impl("rnn_tanh.data", &one_state_packed<rnn_tanh_kind>);
  m.impl("rnn_relu.input", &one_state<rnn_relu_kind>);
  m.impl("rnn_relu.data", &one_state_packed<rnn_relu_kind>);
  m.impl("_thnn_fused_lstm_cell",
         &cell_with_tangents<at::_ops::_thnn_fused_lstm_cell, Three, &lstm_step>);
  m.impl("_thnn_fused_gru_cell",
         &cell_with_tangents<at::_ops::_thnn_fused_gru_cell, Two, &gru_step>);
}

}  // namespace hologram::aten
