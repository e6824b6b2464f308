"""The phases of a module-database unit, each against the same module on the CPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, ModuleInput
from torch.testing._internal.common_utils import TestCase

from . import config
from .compare import Comparison, Tolerance, referee_of
from .op_phases import cotangent
from .transfer import Transfer, computed_in, noncontiguous, tensors_of
from .units import capped

Observation = dict[str, Any]


def inputs(info: ModuleInfo, dtype: torch.dtype) -> Iterator[tuple[str, bool, ModuleInput]]:
    """(name for messages, training, input) of every sample, in training and in evaluation mode."""
    for training in (True, False):
        torch.manual_seed(config.SEED)
        made = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for index, sample in enumerate(capped(info.name, list(made))):
            if sample.forward_input is not None:
                mode = "training" if training else "evaluation"
                yield f"input {index} {sample.desc} ({mode})", training, sample


def build(
    info: ModuleInfo,
    dtype: torch.dtype,
    training: bool,
    sample: ModuleInput,
    device: torch.device,
    seed: int = config.SEED,
) -> torch.nn.Module:
    """The module of `sample`, initialised on the CPU, the same for every device, then moved."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        arguments = copy.deepcopy((sample.constructor_input.args, sample.constructor_input.kwargs))
        module = info.module_cls(*arguments[0], **arguments[1])
    return module.to(computed_in(dtype)).to(device).train(training)


def arguments_of(sample: ModuleInput, device: torch.device, spread: bool = False) -> Any:
    parts: Any = (sample.forward_input.args, sample.forward_input.kwargs)
    return Transfer(device)(noncontiguous(parts) if spread else parts)


def forward(
    test: TestCase, info: ModuleInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Result and state (running statistics ...) after a call, training and evaluating."""
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, training, sample in inputs(info, dtype):

        def attempt(
            device: torch.device, training: bool = training, sample: ModuleInput = sample
        ) -> Observation:
            module = build(info, dtype, training, sample, device)
            args, kwargs = arguments_of(sample, device)
            with torch.no_grad():
                result = module(*args, **kwargs)
            return {"result": result, "state": dict(module.state_dict())}

        comparison.run(what, attempt)
    return comparison.result()


def noncontiguous_inputs(
    test: TestCase, info: ModuleInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """`backward` with gaps between the elements of the inputs and of the incoming gradients."""
    return _differentiate(test, info, dtype, device, spread=True)


def backward(
    test: TestCase, info: ModuleInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Gradients of inputs and parameters, accumulated in `.grad`."""
    return _differentiate(test, info, dtype, device, spread=False)


def _differentiate(
    test: TestCase, info: ModuleInfo, dtype: torch.dtype, device: torch.device, *, spread: bool
) -> Comparison:
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, training, sample in inputs(info, dtype):

        def attempt(
            device: torch.device, training: bool = training, sample: ModuleInput = sample
        ) -> Observation:
            module = build(info, dtype, training, sample, device)
            arguments = arguments_of(sample, device, spread)
            result = module(*arguments[0], **arguments[1])
            outputs = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
            torch.autograd.backward(
                outputs, [cotangent(output, seed, spread) for seed, output in enumerate(outputs)]
            )
            return {
                "result": result,
                "inputs": [tensor.grad for tensor in tensors_of(arguments) if tensor.is_leaf],
                "parameters": {name: each.grad for name, each in module.named_parameters()},
            }

        comparison.run(what, attempt, referee=referee_of(f"modules:{info.name}", dtype))
    return comparison.result()


def state_dict(
    test: TestCase, info: ModuleInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """State saved and loaded, on the device and from it to the CPU; `to` keeps the parameters.

    The loaded state goes into a module that was initialised differently, which then has to compute
    what the first one does.
    """
    comparison = Comparison(test, device, Tolerance(dtype))
    for what, training, sample in inputs(info, dtype):
        if training:
            continue  # the same parameters as in evaluation

        def attempt(device: torch.device, sample: ModuleInput = sample) -> Observation:
            module = build(info, dtype, False, sample, torch.device("cpu"))
            if info.is_lazy:
                # Its parameters exist after the first call.
                args, kwargs = arguments_of(sample, torch.device("cpu"))
                module(*args, **kwargs)
            before = list(module.parameters())
            module.to(device)
            kept = [one is other for one, other in zip(before, module.parameters(), strict=True)]
            file = io.BytesIO()
            torch.save(module.state_dict(), file)
            file.seek(0)
            loaded = torch.load(file, weights_only=True)
            file.seek(0)
            on_cpu = torch.load(file, map_location="cpu", weights_only=True)
            other = build(info, dtype, False, sample, device, seed=config.SEED + 1)
            missing = other.load_state_dict(loaded)
            args, kwargs = arguments_of(sample, device)
            with torch.no_grad():
                result = other(*args, **kwargs)
            moved = {name: value.to(device) for name, value in on_cpu.items()}
            return {
                "parameters kept": kept,
                "missing": list(missing.missing_keys) + list(missing.unexpected_keys),
                "loaded": dict(loaded),
                "loaded on the CPU": {name: value.device.type for name, value in on_cpu.items()},
                "loaded on the CPU, moved": moved,
                "result": result,
            }

        comparison.run(what, attempt)
    return comparison.result()


def errors(
    test: TestCase, info: ModuleInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Upstream's wrong constructions and calls raise upstream's exceptions and messages."""
    comparison = Comparison(test, device, Tolerance(dtype))
    for training in (True, False):
        for wrong in info.module_error_inputs_func(
            info, device=str(device), dtype=dtype, requires_grad=False, training=training
        ):
            sample = wrong.module_error_input
            constructor, call = sample.constructor_input, sample.forward_input
            if wrong.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
                with test.assertRaisesRegex(wrong.error_type, wrong.error_regex):
                    info.module_cls(*constructor.args, **constructor.kwargs)
            else:
                module = info.module_cls(*constructor.args, **constructor.kwargs)
                module.to(device, dtype).train(training)
                with test.assertRaisesRegex(wrong.error_type, wrong.error_regex):
                    module(*call.args, **call.kwargs)
            comparison.samples += 1
    return comparison.result()


Phase = Callable[[TestCase, ModuleInfo, torch.dtype, torch.device], Comparison]

PHASES: dict[str, Phase] = {
    "forward": forward,
    "noncontiguous": noncontiguous_inputs,
    "backward": backward,
    "state_dict": state_dict,
    "errors": errors,
}
