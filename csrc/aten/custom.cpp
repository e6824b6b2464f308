// Pointwise operators that are defined at run time.
//
// Python has parsed the expression and defined the operator. Here it gets its kernel for the
// device, which records the whole expression at once, and its kernel for autograd. Gradients are
// pointwise operators too, defined in Python when one is first needed, so that they have gradients
// of their own.
#include "aten/custom.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros_like.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "aten/compat.h"
#include "aten/operand.h"
#include "aten/pointwise.h"
#include "aten/record_composite.h"
#include "aten/report.h"
#include "atlas/op_info.h"

namespace py = pybind11;

namespace hologram::aten {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::jit::Stack;
using Tensors = c10::SmallVector<Tensor, 4>;

// The gradient of the result with respect to one operand.
struct Gradient {
  enum class Kind : uint8_t { zero, same, computed };  // same: that of the result itself
  Kind kind;
  // What it is computed from: 0 is the gradient of the result, i + 1 is operand i.
  std::vector<uint32_t> operands;
};

// An operator. Lives as long as the process, like its kernels.
struct Custom {
  std::string name;
  CompositeProgram program;
  std::vector<Gradient> gradients;  // of each operand; empty where there are none
  OpCounter& counter;
  // Python's: the result out of operations of torch; the name of the operator of a gradient.
  PyObject* evaluate;
  PyObject* gradient_operator;
  std::unique_ptr<std::atomic<const OperatorHandle*>[]> found;  // the operators of the gradients

  size_t arity() const { return program.operands; }
};

Tensor evaluate(const Custom& custom, at::ArrayRef<c10::IValue> in) {
  const py::gil_scoped_acquire gil;
  py::tuple operands(in.size());
  for (size_t i = 0; i < in.size(); ++i) operands[i] = py::cast(in[i].toTensor());
  return py::reinterpret_borrow<py::object>(custom.evaluate)(*operands).cast<Tensor>();
}

const OperatorHandle& operator_of_gradient(const Custom& custom, size_t i) {
  auto& place = custom.found[i];
  if (const auto* found = place.load(std::memory_order_acquire)) {
    return *found;
  }
  // Python has a lock of its own and defines it once.
  const py::gil_scoped_acquire gil;
  const auto name =
      py::reinterpret_borrow<py::object>(custom.gradient_operator)(i).cast<std::string>();
  const auto* made = new OperatorHandle(
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""));  // for good
  place.store(made, std::memory_order_release);
  return *made;
}

// The gradient of operand i out of that of the result. `operand` gives the operands.
template <class Operand>
Tensor gradient_of(const Custom& custom, size_t i, const Tensor& grad, const Operand& operand) {
  const Gradient& gradient = custom.gradients[i];
  switch (gradient.kind) {
    case Gradient::Kind::zero: return at::zeros_like(grad);
    case Gradient::Kind::same: return grad;
    case Gradient::Kind::computed: break;
  }
  Stack stack;
  stack.reserve(gradient.operands.size());
  for (const size_t from : gradient.operands) {
    stack.emplace_back(from == 0 ? grad : operand(from - 1));
  }
  operator_of_gradient(custom, i).callBoxed(stack);
  return std::move(stack.back()).toTensor();
}

struct PointwiseBackward final : torch::autograd::Node {
  explicit PointwiseBackward(const Custom& of) : custom(of), saved(of.arity()) {}

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list result(custom.arity());
    if (!grads[0].defined()) {
      return result;
    }
    for (size_t i = 0; i < result.size(); ++i) {
      if (task_should_compute_output(i)) {
        TORCH_CHECK_NOT_IMPLEMENTED(!custom.gradients.empty(), "derivative for ", custom.name,
                                    " is not implemented");
        // The engine sums it over the dimensions in which the operand was broadcast, and converts
        // it to the operand's dtype.
        result[i] = gradient_of(custom, i, grads[0], [&](size_t k) { return saved[k].unpack(); });
      }
    }
    return result;
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& variable : saved) variable.reset_data();
  }
  // As torch names its own: after the function.
  std::string name() const override {
    return custom.name.substr(custom.name.rfind(':') + 1) + "Backward";
  }

  const Custom& custom;
  std::vector<SavedVariable> saved;  // the operands that gradients are computed from
};

// Records the expression.
class DeviceKernel final : public c10::OperatorKernel {
 public:
  explicit DeviceKernel(const Custom& custom) : custom_(custom) {}
  void operator()(const OperatorHandle&, DispatchKeySet, Stack* stack) {
    const auto in = torch::jit::last(*stack, custom_.arity());
    c10::SmallVector<Argument, 4> arguments;
    for (const c10::IValue& value : in) arguments.emplace_back(value.toTensor());
    Tensor result;
    if (record_program(custom_.program, arguments, &result)) {
      note_native(custom_.counter);
    } else {
      // What recording declines, torch's operations do, or complain about.
      result = evaluate(custom_, in);
    }
    torch::jit::drop(*stack, custom_.arity());
    stack->emplace_back(std::move(result));
  }

 private:
  const Custom& custom_;
};

class AutogradKernel final : public c10::OperatorKernel {
 public:
  explicit AutogradKernel(const Custom& custom) : custom_(custom) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto in = torch::jit::last(*stack, custom_.arity());
    bool history = false, tangents = false, complex = false;
    if (!custom_.program.is_predicate()) {
      const bool recording = c10::GradMode::is_enabled();
      for (const c10::IValue& value : in) {
        const Tensor& tensor = value.toTensor();
        history = history || (recording && tensor.requires_grad());
        tangents = tangents || tensor._fw_grad(/*level=*/0).defined();
        complex = complex || tensor.is_complex();
      }
    }
    if (!history && !tangents) {
      redispatch(op, keys, stack);
      return;
    }
    if (complex) {
      // Gradients are of real operands; torch has those of complex ones, operation by operation.
      Tensor result = evaluate(custom_, in);
      torch::jit::drop(*stack, custom_.arity());
      stack->emplace_back(std::move(result));
      return;
    }
    Tensors operands;
    for (const c10::IValue& value : in) operands.push_back(value.toTensor());
    NodePointer<PointwiseBackward> node;
    if (history) {
      node = make_node<PointwiseBackward>(custom_);
      node->set_next_edges(torch::autograd::collect_next_edges(at::ArrayRef<Tensor>(operands)));
      save(*node, operands);
    }
    redispatch(op, keys, stack);
    const Tensor result = stack->back().toTensor();
    if (history) {
      torch::autograd::set_history(result, node);
    }
    if (tangents) {
      result._set_fw_grad(tangent_of(operands, result), /*level=*/0, /*is_inplace_op=*/false);
    }
  }

 private:
  static void redispatch(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }

  void save(PointwiseBackward& node, const Tensors& operands) const {
    for (size_t i = 0; i < custom_.gradients.size(); ++i) {
      if (!node.should_compute_output(i)) continue;
      for (const size_t from : custom_.gradients[i].operands) {
        if (from != 0) node.saved[from - 1] = SavedVariable(operands[from - 1], false);
      }
    }
  }

  // Of the result, out of those of the operands. The derivative of an element is a number, so it is
  // the same function as the gradient.
  Tensor tangent_of(const Tensors& operands, const Tensor& result) const {
    Tensor sum;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Tensor& tangent = operands[i]._fw_grad(/*level=*/0);
      if (!tangent.defined()) continue;
      TORCH_CHECK_NOT_IMPLEMENTED(!custom_.gradients.empty(), "derivative for ", custom_.name,
                                  " is not implemented");
      const Tensor part = gradient_of(
          custom_, i, tangent, [&](size_t k) { return operands[k]._fw_primal(/*level=*/0); });
      sum = sum.defined() ? at::add(sum, part) : part;
    }
    return sum.to(result.scalar_type()).expand_symint(result.sym_sizes());
  }

  const Custom& custom_;
};

template <class Kernel>
void register_kernel(const OperatorHandle& op, DispatchKey key, const Custom& custom) {
  new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), key,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(custom)), std::nullopt,
      nullptr, "torch_hologram.pointwise"));  // for as long as the process lives
}

Op row_named(const std::string& name) {
  static const auto* rows = [] {
    auto* made = new std::unordered_map<std::string, Op>();
    for (size_t i = 0; i < kOpInfos.size(); ++i) {
      made->emplace(kOpInfos[i].name, static_cast<Op>(i));
    }
    return made;
  }();
  const auto found = rows->find(name);
  TORCH_CHECK_VALUE(found != rows->end(), "the op table has no row ", name);
  return found->second;
}

using NamedStep = std::pair<std::string, std::vector<uint32_t>>;

// The steps come from our own parser; what is checked is what would be undefined behaviour.
CompositeProgram program_of(size_t operands, std::vector<double> numbers,
                            const std::vector<NamedStep>& steps, std::vector<uint32_t> conditions) {
  CompositeProgram program{operands, std::move(numbers), {}, std::move(conditions)};
  size_t values = operands + program.numbers.size();
  for (const auto& [name, in] : steps) {
    CompositeProgram::Step step{row_named(name), {}};
    const auto arity = static_cast<size_t>(op_info(step.op).arity);
    TORCH_CHECK_VALUE(in.size() == arity, name, " takes ", arity, " operands, not ", in.size());
    for (size_t i = 0; i < arity; ++i) {
      TORCH_CHECK_VALUE(in[i] < values, "value ", in[i], " of ", values);
      step.in[i] = in[i];
    }
    program.steps.push_back(step);
    ++values;
  }
  TORCH_CHECK_VALUE(!program.steps.empty(), "a program without steps");
  for (const uint32_t condition : program.conditions) {
    TORCH_CHECK_VALUE(condition < operands, "condition ", condition, " of ", operands);
  }
  return program;
}

void define_pointwise(const std::string& name, size_t operands, std::vector<double> numbers,
                      const std::vector<NamedStep>& steps, std::vector<uint32_t> conditions,
                      const std::vector<std::pair<bool, std::vector<uint32_t>>>& gradients,
                      py::object evaluate, py::object gradient_operator) {
  auto program = program_of(operands, std::move(numbers), steps, std::move(conditions));
  auto* custom = new Custom{name,
                            std::move(program),
                            {},
                            op_counter(name),
                            evaluate.release().ptr(),
                            gradient_operator.release().ptr(),
                            std::make_unique<std::atomic<const OperatorHandle*>[]>(operands)};
  TORCH_CHECK_VALUE(gradients.empty() || gradients.size() == operands, gradients.size(),
                    " gradients of ", operands, " operands");
  for (const auto& [computed, from] : gradients) {
    const auto kind = computed       ? Gradient::Kind::computed
                      : from.empty() ? Gradient::Kind::zero
                                     : Gradient::Kind::same;
    custom->gradients.push_back({kind, from});
  }
  const py::gil_scoped_release release;  // the dispatcher's lock comes first
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  register_kernel<DeviceKernel>(op, DispatchKey::PrivateUse1, *custom);
  register_kernel<AutogradKernel>(op, DispatchKey::Autograd, *custom);
}

}  // namespace

void bind_custom(py::module_& m) {
  // The columns of each row of the op table that Python has a use for.
  m.def("op_rows", [] {
    std::vector<py::dict> rows;
    for (const OpInfo& info : kOpInfos) {
      std::vector<std::string> derivative;
      for (const char* text : info.derivative) {
        if (text != nullptr) derivative.emplace_back(text);
      }
      py::dict row;
      row["name"] = info.name;
      row["arity"] = info.arity;
      row["predicate"] = info.has(kPredicate);
      row["condition"] = info.has(kCondition);
      row["logical"] = info.is_logical();
      row["expression"] = info.expression;
      row["derivative"] = derivative;
      rows.push_back(std::move(row));
    }
    return rows;
  });
  m.def("composites", &composite_names);
  m.def("define_pointwise", &define_pointwise);
}

}  // namespace hologram::aten
