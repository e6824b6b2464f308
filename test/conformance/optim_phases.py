"""The phases of an optimizer-database unit: five steps, each against the same steps on the CPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.testing._internal.common_optimizers import OptimizerInfo
from torch.testing._internal.common_utils import TestCase

from . import config
from .compare import Comparison, Tolerance
from .transfer import Transfer, map_tensors

Observation = dict[str, Any]
STEPS = 5


def _configurations(info: OptimizerInfo) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name for messages, keyword arguments) of every configuration for the CPU."""
    for sample in info.optim_inputs_func(device="cpu"):
        yield f"{sample.desc} {sample.kwargs}", sample.kwargs


def _parameters(info: OptimizerInfo, dtype: torch.dtype, device: torch.device) -> list[Any]:
    """Leaves that require grad: matrices, one transposed, and if allowed vectors and a scalar."""
    generator = torch.Generator().manual_seed(config.SEED)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, generator=generator)

    # LBFGS takes views of the gradients, which a transposed parameter does not allow.
    tensors = [make(4, 3), make(6, 5) if info.name == "LBFGS" else make(6, 5).t()]
    if info.name != "Muon":  # matrices only
        tensors += [make(7), make(1), make(2, 3, 4), make()]
    return [Transfer(device)(tensor).requires_grad_() for tensor in tensors]


def _loss(parameters: list[torch.Tensor], step: int) -> torch.Tensor:
    """A smooth function of the parameters, another one at each step."""
    return sum(((p - 0.1 * step) ** 2).sum() + (p * (step + 1)).sin().sum() for p in parameters)


def _train(
    info: OptimizerInfo,
    optimizer: Optimizer,
    parameters: list[torch.Tensor],
    steps: range,
    sparse: bool,
) -> list[torch.Tensor]:
    """The loss at each of `steps`."""
    losses = []
    for step in steps:

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(parameters, step)
            loss.backward()
            if sparse:
                for parameter in parameters:
                    parameter.grad = parameter.grad.to_sparse()
            return loss

        if info.step_requires_closure:
            losses.append(optimizer.step(closure).detach())
        else:
            losses.append(closure().detach())
            optimizer.step()
    return losses


def _state(optimizer: Optimizer, parameters: list[torch.Tensor]) -> list[dict[str, Any]]:
    """The state of each parameter. Scalars become numbers: their device is the variant's choice."""
    return [
        {
            name: value.item() if torch.is_tensor(value) and value.dim() == 0 else value
            for name, value in optimizer.state[parameter].items()
        }
        for parameter in parameters
    ]


def _steps(
    test: TestCase,
    info: OptimizerInfo,
    dtype: torch.dtype,
    device: torch.device,
    *,
    flags: Callable[[torch.device], dict[str, Any]],
    sparse: bool = False,
) -> Comparison:
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, kwargs in _configurations(info):

        def attempt(device: torch.device, kwargs: dict[str, Any] = kwargs) -> Observation:
            parameters = _parameters(info, dtype, device)
            if sparse:
                parameters = [p for p in parameters if p.dim() > 0]
            optimizer = info.optim_cls(parameters, **copy.deepcopy(kwargs), **flags(device))
            losses = _train(info, optimizer, parameters, range(STEPS), sparse)
            return {
                "losses": losses,
                "parameters": [parameter.detach() for parameter in parameters],
                "state": _state(optimizer, parameters),
            }

        comparison.run(what, attempt)
    return comparison.result()


def _off(info: OptimizerInfo, **on: bool) -> dict[str, bool]:
    """Every implementation flag of the optimizer turned off, then `on`."""
    return {**dict.fromkeys(info.supported_impls, False), **on}


def for_loop(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """One parameter at a time."""
    sparse = info.only_supports_sparse_grads
    return _steps(test, info, dtype, device, flags=lambda _: _off(info), sparse=sparse)


def default(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """No flag given: accelerators then choose `foreach`, the CPU the loop."""
    sparse = info.only_supports_sparse_grads
    return _steps(test, info, dtype, device, flags=lambda _: {}, sparse=sparse)


def foreach(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """All parameters in one call of each _foreach operator."""
    return _steps(test, info, dtype, device, flags=lambda _: _off(info, foreach=True))


def fused(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """The whole step as one operator."""
    return _steps(test, info, dtype, device, flags=lambda _: _off(info, fused=True))


def capturable(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Step counts on the device. The CPU refuses the flag: it is compared without it."""
    return _steps(
        test,
        info,
        dtype,
        device,
        flags=lambda device: {**_off(info), "capturable": device.type != "cpu"},
    )


def capturable_foreach(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """`capturable` with the _foreach operators."""
    return _steps(
        test,
        info,
        dtype,
        device,
        flags=lambda device: {**_off(info, foreach=True), "capturable": device.type != "cpu"},
    )


def sparse(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Sparse gradients of dense parameters, with the options upstream has for them."""
    comparison = Comparison(test, device, Tolerance(dtype))
    options, _ = info.metadata_for_sparse

    def attempt(device: torch.device) -> Observation:
        parameters = [p for p in _parameters(info, dtype, device) if p.dim() > 0]
        optimizer = info.optim_cls(parameters, **options)
        losses = _train(info, optimizer, parameters, range(STEPS), sparse=True)
        return {
            "losses": losses,
            "parameters": [parameter.detach() for parameter in parameters],
            "state": _state(optimizer, parameters),
        }

    comparison.run("sparse gradients", attempt)
    return comparison.result()


def differentiable(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Derivatives of the parameters after a step by the parameters and gradients before it."""
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, kwargs in _configurations(info):

        def attempt(device: torch.device, kwargs: dict[str, Any] = kwargs) -> Observation:
            leaves = _parameters(info, dtype, device)
            slopes = [leaf.detach().clone().requires_grad_() for leaf in leaves]
            parameters = [leaf.clone() for leaf in leaves]
            optimizer = info.optim_cls(
                parameters, **copy.deepcopy(kwargs), **_off(info, differentiable=True)
            )
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.grad = slope * 1.0
            optimizer.step()
            total = sum((parameter**2).sum() for parameter in parameters)
            gradients = torch.autograd.grad(total, [*leaves, *slopes], allow_unused=True)
            return {"parameters": parameters, "gradients": gradients}

        comparison.run(what, attempt)
    return comparison.result()


def state_dict(
    test: TestCase, info: OptimizerInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Three steps, saved and loaded into a second optimizer, two more steps there."""
    sparse = info.only_supports_sparse_grads
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, kwargs in _configurations(info):

        def attempt(device: torch.device, kwargs: dict[str, Any] = kwargs) -> Observation:
            parameters = _parameters(info, dtype, device)
            if sparse:
                parameters = [p for p in parameters if p.dim() > 0]
            first = info.optim_cls(parameters, **copy.deepcopy(kwargs))
            _train(info, first, parameters, range(3), sparse)
            file = io.BytesIO()
            torch.save(first.state_dict(), file)
            copies = [p.detach().clone().requires_grad_() for p in parameters]
            second = info.optim_cls(copies, **copy.deepcopy(kwargs))
            file.seek(0)
            second.load_state_dict(torch.load(file, weights_only=True))
            losses = _train(info, second, copies, range(3, STEPS), sparse)
            return {
                "losses": losses,
                "parameters": map_tensors(torch.Tensor.detach, copies),
                "state": _state(second, copies),
            }

        comparison.run(what, attempt)
    return comparison.result()


Phase = Callable[[TestCase, OptimizerInfo, torch.dtype, torch.device], Comparison]

# Each phase with the question whether an optimizer has it.
PHASES: dict[str, tuple[Phase, Callable[[OptimizerInfo], bool]]] = {
    "forloop": (for_loop, lambda info: True),
    "default": (default, lambda info: True),
    "foreach": (foreach, lambda info: "foreach" in info.supported_impls),
    "fused": (
        fused,
        lambda info: "fused" in info.supported_impls and "cpu" in info.supports_fused_on,
    ),
    "capturable": (capturable, lambda info: info.has_capturable_arg),
    "capturable_foreach": (
        capturable_foreach,
        lambda info: info.has_capturable_arg and "foreach" in info.supported_impls,
    ),
    "differentiable": (differentiable, lambda info: "differentiable" in info.supported_impls),
    "sparse": (sparse, lambda info: info.supports_sparse),
    "state_dict": (state_dict, lambda info: True),
}
