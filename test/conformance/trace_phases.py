"""The phases of a module under the tools that look through it.

torch.compile, torch.export and make_fx record what the module does with tensors that have no
memory; torch.func calls it with tensors that stand for others. What comes out has to be what the
module itself computes on the CPU, called without a tool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput
from torch.testing._internal.common_utils import TestCase
from torch.utils import _pytree as pytree

from . import config
from .compare import Comparison, Tolerance
from .module_phases import Observation, Phase, arguments_of, build, inputs
from .op_phases import cotangent
from .transfer import map_tensors, tensors_of

Call = Callable[..., Any]
# (module, args, kwargs) -> what stands for the module from then on.
Tool = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Call]


@dataclass
class Case:
    """One input of a unit."""

    info: ModuleInfo
    dtype: torch.dtype
    training: bool
    sample: ModuleInput

    def on(self, device: torch.device) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """The module and its arguments, equal on every device, and copied by every call."""
        cpu = torch.device("cpu")
        module = build(self.info, self.dtype, self.training, self.sample, cpu)
        if self.info.is_lazy:
            # Its parameters exist after the first call.
            args, kwargs = arguments_of(self.sample, cpu)
            with torch.no_grad():
                module(*args, **kwargs)
        return module.to(device), *arguments_of(self.sample, device)


def cases(info: ModuleInfo, dtype: torch.dtype) -> Iterator[tuple[str, Case]]:
    """(name for messages, case) of the first input in every mode: a tool sees no numbers."""
    every = list(inputs(info, dtype))
    for mode in (True, False) if info.train_and_eval_differ else (True,):
        what, training, sample = next(entry for entry in every if entry[1] is mode)
        yield what, Case(info, dtype, training, sample)


def itself(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """No tool: the reference."""
    return module


def compiled(backend: str) -> Tool:
    def tool(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        torch._dynamo.reset()
        return torch.compile(module, backend=backend)

    return tool


def exported(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    program = torch.export.export(module, args, kwargs, strict=False)
    return program.module(check_guards=False)


def traced(mode: str) -> Tool:
    """make_fx, with the tensors among parameters, buffers and arguments as inputs of the graph."""

    def tool(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def call(state: dict[str, torch.Tensor], tensors: list[torch.Tensor]) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            args, kwargs = pytree.tree_unflatten(filled, spec)
            return functional_call(module, state, args, kwargs)

        def copies(tree: Any) -> Any:  # a trace with real tensors writes to them
            return pytree.tree_map(lambda tensor: tensor.detach().clone(), tree)

        graph = make_fx(call, tracing_mode=mode)(copies(state), copies([leaves[i] for i in places]))

        def run(*args: Any, **kwargs: Any) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            return graph(state, [leaves[place] for place in places])

        return run

    return tool


def observe_call(tool: Tool, case: Case, device: torch.device, *, gradients: bool) -> Observation:
    """Result, state after the call and, with `gradients`, those of inputs and parameters."""
    module, args, kwargs = case.on(device)
    call = tool(module, args, kwargs)
    torch.manual_seed(config.SEED)
    with torch.set_grad_enabled(gradients):
        result = call(*args, **kwargs)
    # Without gradients: what an input that is handed through requires is nobody's business.
    seen: Observation = {
        "result": result if gradients else map_tensors(torch.Tensor.detach, result)
    }
    if gradients:
        outputs = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
        torch.autograd.backward(
            outputs, [cotangent(output, seed, False) for seed, output in enumerate(outputs)]
        )
        seen["inputs"] = [tensor.grad for tensor in tensors_of((args, kwargs)) if tensor.is_leaf]
        seen["parameters"] = {name: each.grad for name, each in module.named_parameters()}
    seen["state"] = {name: each.detach() for name, each in module.named_buffers()}
    return seen


def _looked_through(
    tool: Tool,
    gradients: bool,
    test: TestCase,
    info: ModuleInfo,
    dtype: torch.dtype,
    device: torch.device,
) -> Comparison:
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, case in cases(info, dtype):
        comparison.run(
            what,
            lambda device, case=case: observe_call(tool, case, device, gradients=gradients),
            reference=lambda device, case=case: observe_call(
                itself, case, device, gradients=gradients
            ),
            strides=False,  # a compiler may choose them
        )
    return comparison.result()


def _scalar(result: Any) -> torch.Tensor:
    """A number that depends on every differentiable value of a result, on each in another way."""
    total = None
    for tensor in tensors_of(result):
        if tensor.is_floating_point():
            weights = torch.linspace(0.5, 1.5, tensor.numel(), dtype=tensor.dtype)
            part = (tensor * weights.reshape(tensor.shape).to(tensor.device)).sum()
            total = part if total is None else total + part
    assert total is not None
    return total


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _with_tensors(tree: Any, which: Callable[[Any], bool], tensors: list[torch.Tensor]) -> Any:
    """`tree` with the tensors that `which` names replaced, in order."""
    remaining = iter(tensors)
    return pytree.tree_map(lambda leaf: next(remaining) if which(leaf) else leaf, tree)


def func_grad(
    test: TestCase, info: ModuleInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """grad of functional_call, by parameters and inputs, against autograd."""
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, case in cases(info, dtype):

        def prepared(device: torch.device, case: Case = case) -> Any:
            module, args, kwargs = case.on(device)
            weights = {name: each.detach() for name, each in module.named_parameters()}
            buffers = {name: each.detach() for name, each in module.named_buffers()}

            def value(weights: Any, tensors: list[torch.Tensor], buffers: Any) -> torch.Tensor:
                new_args, new_kwargs = _with_tensors((args, kwargs), _differentiable, tensors)
                return _scalar(functional_call(module, (weights, buffers), new_args, new_kwargs))

            tensors = [
                tensor.detach() for tensor in tensors_of((args, kwargs)) if _differentiable(tensor)
            ]
            torch.manual_seed(config.SEED)
            return value, weights, tensors, buffers

        def attempt(device: torch.device, prepared: Any = prepared) -> Observation:
            value, *arguments = prepared(device)
            weights, tensors = grad(value, (0, 1))(*arguments)
            return {"weights": weights, "inputs": tensors}

        def reference(device: torch.device, prepared: Any = prepared) -> Observation:
            value, weights, tensors, buffers = prepared(device)
            for tensor in (*weights.values(), *tensors):
                tensor.requires_grad_()
            value(weights, tensors, buffers).backward()

            def gradient(tensor: torch.Tensor) -> torch.Tensor:
                return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad

            return {
                "weights": {name: gradient(each) for name, each in weights.items()},
                "inputs": [gradient(tensor) for tensor in tensors],
            }

        comparison.run(what, attempt, reference=reference, strides=False)
    return comparison.result()


def func_vmap(
    test: TestCase, info: ModuleInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """vmap of functional_call over stacked parameters and inputs, against a loop."""
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, case in cases(info, dtype):

        def prepared(device: torch.device, case: Case = case) -> Any:
            module, args, kwargs = case.on(device)
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            copies = [
                {
                    name: each.detach() * scale if each.is_floating_point() else each.detach()
                    for name, each in state.items()
                }
                for scale in (1.0, 0.5)
            ]
            stacked = {name: torch.stack([copy[name] for copy in copies]) for name in state}
            tensors = [t.detach() for t in tensors_of((args, kwargs)) if _floating(t)]
            batches = [torch.stack([tensor, tensor * 0.5]) for tensor in tensors]

            def call(state: dict[str, torch.Tensor], tensors: list[torch.Tensor]) -> Any:
                new_args, new_kwargs = _with_tensors((args, kwargs), _floating, tensors)
                return functional_call(module, state, new_args, new_kwargs)

            return call, stacked, batches

        def attempt(device: torch.device, prepared: Any = prepared) -> Observation:
            call, state, batches = prepared(device)
            torch.manual_seed(config.SEED)
            with torch.no_grad():
                result = vmap(call, randomness="same")(state, batches)
            return {"result": list(tensors_of(result))}

        def reference(device: torch.device, prepared: Any = prepared) -> Observation:
            call, state, batches = prepared(device)
            results = []
            for index in range(2):
                torch.manual_seed(config.SEED)
                with torch.no_grad():
                    one = call(
                        {name: each[index] for name, each in state.items()},
                        [batch[index] for batch in batches],
                    )
                results.append(list(tensors_of(one)))
            return {"result": [torch.stack(parts) for parts in zip(*results, strict=True)]}

        comparison.run(what, attempt, reference=reference, strides=False)
    return comparison.result()


PHASES: dict[str, Phase] = {
    "compile": functools.partial(_looked_through, compiled("hologram"), True),
    "export": functools.partial(_looked_through, exported, False),
    "make_fx_real": functools.partial(_looked_through, traced("real"), False),
    "make_fx_fake": functools.partial(_looked_through, traced("fake"), False),
    "make_fx_symbolic": functools.partial(_looked_through, traced("symbolic"), False),
    "func_grad": func_grad,
    "func_vmap": func_vmap,
}
