"""The phases of an operator-database unit, each against torch on the CPU over the same samples.

A phase is a function (test, op, dtype, device) -> Comparison that raises on the first difference.
The CPU is run on its own copy of the sample with the same strides, offsets and aliases, and with
the same seed, so that everything may be asked to agree: values, strides, views, warnings,
exception types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as dual_numbers
from torch.testing._internal.common_utils import (
    TestCase,
    is_iterable_of_tensors,
    noncontiguous_like,
)
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    SampleInput,
    UnaryUfuncInfo,
)

from . import config
from .compare import CPU, Comparison, Outcome, Tolerance, aliasing, observe, referee_of
from .transfer import Transfer, drawn_in, map_tensors, noncontiguous, tensors_of
from .units import (
    SPARSE_LAYOUTS,
    error_inputs,
    samples,
    sparse_samples,
    tolerance,
    wanted_dtypes,
)

# Entries whose results are memory that nobody has written, in whole or, after resizing, in part.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}

# Entries whose arguments after the input have to be on the CPU whatever the device of the input.
HOST_ARGUMENTS = {"tensor_split"}

# Written in Python: compute, then copy into `out`, wherever that is.
COPIES_TO_OUT = {"lu"}


@dataclass
class Call:
    """A copy of one sample on `device`."""

    device: torch.device
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    # Those of its tensors that are on `device`: all of them but for HOST_ARGUMENTS.
    tensors: list[torch.Tensor]

    @staticmethod
    def of(op: OpInfo, parts: Any, device: torch.device) -> Call:
        """A copy of `parts`, a sample's (input, args, kwargs) on the CPU."""
        input, args, kwargs = Transfer(device)(parts)
        if op.full_name in HOST_ARGUMENTS:
            return Call(device, input, Transfer(CPU)(parts[1]), kwargs, list(tensors_of(input)))
        return Call(device, input, args, kwargs, list(tensors_of((input, args, kwargs))))

    def run(self, function: Callable[..., Any], **more: Any) -> Any:
        """`function` of the sample and, in addition, the keywords `more`."""
        return function(self.input, *self.args, **self.kwargs, **more)


# What a phase looks at after running a call, by name; compared leaf by leaf.
Observation = dict[str, Any]


class Unit:
    """One unit in one phase: walks over the samples and compares the device with the CPU."""

    def __init__(
        self,
        test: TestCase,
        op: OpInfo,
        dtype: torch.dtype,
        device: torch.device,
        *upstream_tests: str,
    ) -> None:
        self.op = op
        self.dtype = dtype
        self.device = device
        self.comparison = Comparison(test, device, tolerance(op, dtype, upstream_tests))
        self._initialised = op.full_name not in UNINITIALISED
        self._referee = referee_of(f"ops:{op.full_name}", dtype)

    def samples(self, requires_grad: bool = False) -> Iterator[tuple[str, SampleInput]]:
        """Every sample of the phase with its name for messages."""
        for index, sample in enumerate(samples(self.op.full_name, self.dtype, requires_grad)):
            yield f"sample {index}", sample

    def compare(
        self,
        what: str,
        sample: SampleInput,
        attempt: Callable[[Call], Observation | None],
        *,
        prepare: Callable[[Any], Any] = lambda parts: parts,
        on_device: bool | None = None,
    ) -> None:
        """Runs `attempt` on a copy of the sample on each device and compares the observations.

        `prepare` changes the sample's (input, args, kwargs) before they are copied. An attempt that
        has nothing to compare returns None. `on_device` says whether results belong on the device;
        by default, if the sample has a tensor or names a device.
        """
        parts = prepare((sample.input, sample.args, sample.kwargs))
        self.comparison.run(
            f"{what} {sample.name}".strip(),
            lambda device: attempt(Call.of(self.op, parts, device)),
            values=self._initialised,
            referee=self._referee,
            on_device=_names_device(parts) if on_device is None else on_device,
        )


def _names_device(parts: Any) -> bool:
    """Whether results belong on the device: the sample has a tensor or names a device."""
    input, args, kwargs = parts
    if next(tensors_of(parts), None) is not None or "device" in kwargs:
        return True
    return any(isinstance(value, torch.device) for value in (input, *args, *kwargs.values()))


def forward(test: TestCase, op: OpInfo, dtype: torch.dtype, device: torch.device) -> Comparison:
    """The result, its aliases, and the arguments as the call leaves them."""
    unit = Unit(test, op, dtype, device, "test_compare_cpu", "test_variant_consistency_eager")
    for what, sample in unit.samples():
        unit.compare(what, sample, lambda call: _call(op, call))
    return unit.comparison.result()


def _call(op: OpInfo, call: Call) -> Observation:
    before = call.tensors
    with torch.no_grad():
        result = call.run(op)
    return {"result": result, "aliasing": aliasing(result, before), "arguments": before}


def noncontiguous_inputs(
    test: TestCase, op: OpInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """`forward`, and `backward` where there is one, with gaps between the inputs' elements."""
    unit = Unit(test, op, dtype, device, "test_noncontiguous_samples")
    differentiable = dtype in op.supported_backward_dtypes("cpu")
    for what, sample in unit.samples(differentiable):
        unit.compare(what, sample, lambda call: _call(op, call), prepare=noncontiguous)
        if differentiable:
            unit.compare(
                f"{what} gradient",
                sample,
                lambda call, sample=sample: _gradients(op, sample, call, spread=True),
                prepare=noncontiguous,
            )
    return unit.comparison.result()


def backward(test: TestCase, op: OpInfo, dtype: torch.dtype, device: torch.device) -> Comparison:
    """Gradients for random cotangents, of the function and of a differentiable in-place variant."""
    unit = Unit(test, op, dtype, device, "test_variant_consistency_eager", "test_compare_cpu")
    for what, sample in unit.samples(requires_grad=True):
        unit.compare(what, sample, lambda call, sample=sample: _gradients(op, sample, call))
        if op.get_inplace() and op.supports_inplace_autograd and not sample.broadcasts_input:
            unit.compare(
                f"{what} in place",
                sample,
                lambda call, sample=sample: _gradients(op, sample, call, in_place=True),
            )
    return unit.comparison.result()


def _gradients(
    op: OpInfo, sample: SampleInput, call: Call, *, spread: bool = False, in_place: bool = False
) -> Observation | None:
    inputs = [tensor for tensor in call.tensors if tensor.requires_grad]
    if in_place:
        # Autograd refuses to overwrite a leaf.
        call.input = map_tensors(torch.clone, call.input)
    function = op.get_inplace() if in_place else op.get_op()
    result = op.gradcheck_wrapper(function, call.input, *call.args, **call.kwargs)
    processed = sample.output_process_fn_grad(result)
    outputs = [tensor for tensor in tensors_of(processed) if tensor.requires_grad]
    if not inputs or not outputs:
        return None
    cotangents = [cotangent(output, seed, spread) for seed, output in enumerate(outputs)]
    gradients = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    return {"result": result, "gradients": gradients}


def cotangent(output: torch.Tensor, seed: int, spread: bool) -> torch.Tensor:
    """A random tensor like `output`, the same on every device."""
    if output.layout is not torch.strided or output.is_nested:
        return torch.ones_like(output)
    generator = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(output.shape, dtype=drawn_in(output.dtype), generator=generator)
    cotangent = cotangent.to(output.dtype)
    return Transfer(output.device)(noncontiguous_like(cotangent) if spread else cotangent)


def forward_mode(
    test: TestCase, op: OpInfo, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Tangents of the results for random tangents of the differentiable inputs (dual numbers)."""
    unit = Unit(test, op, dtype, device, "test_forward_ad", "test_compare_cpu")
    for what, sample in unit.samples(requires_grad=True):
        unit.compare(what, sample, lambda call, sample=sample: _tangents(op, sample, call))
    return unit.comparison.result()


def _tangents(op: OpInfo, sample: SampleInput, call: Call) -> Observation | None:
    with dual_numbers.dual_level():
        seed = 0

        def dual(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal seed
            if not tensor.requires_grad:
                return tensor
            seed += 1
            tangent = cotangent(tensor, seed, spread=False)
            return dual_numbers.make_dual(tensor.detach(), tangent)

        input, args, kwargs = map_tensors(dual, (call.input, call.args, call.kwargs))
        if seed == 0:
            return None
        result = sample.output_process_fn_grad(
            op.gradcheck_wrapper(op.get_op(), input, *args, **kwargs)
        )
        pairs = [dual_numbers.unpack_dual(tensor) for tensor in tensors_of(result)]
        return {"pairs": [(pair.primal, pair.tangent) for pair in pairs]}


def out(test: TestCase, op: OpInfo, dtype: torch.dtype, device: torch.device) -> Comparison:
    """`out=`: right, resized, strided, of another dtype, of another device, the input itself."""
    unit = Unit(test, op, dtype, device, "test_out", "test_out_warning")
    elementwise = isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo))
    for what, sample in unit.samples():
        plain = observe(lambda sample=sample: _functional(op, sample))
        if plain.error is not None or not is_iterable_of_tensors(
            plain.value if isinstance(plain.value, (list, tuple)) else [plain.value]
        ):
            continue
        for case, make in OUT_CASES.items():
            outputs = map_tensors(make, _plain(plain.value))
            unit.compare(
                f"{what} out={case}",
                sample,
                lambda call, outputs=outputs: _write(op, call, outputs),
                on_device=True,
            )
        if elementwise:
            unit.compare(f"{what} out=the input", sample, lambda call: _write(op, call, None))
        if unit.device.type != "cpu" and op.full_name not in COPIES_TO_OUT:
            _wrong_device(unit, what, sample, plain.value)
    return unit.comparison.result()


def _functional(op: OpInfo, sample: SampleInput) -> Any:
    call = Call.of(op, (sample.input, sample.args, sample.kwargs), CPU)
    with torch.no_grad():
        return call.run(op)


def _plain(value: Any) -> Any:
    """A tensor, or a tuple in place of a list or named tuple of tensors."""
    return value if isinstance(value, torch.Tensor) else tuple(value)


def _filled(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of numbers that no operator would leave there by chance."""
    return torch.full(tuple(shape), 37, dtype=torch.uint8).to(dtype)


def _longer(tensor: torch.Tensor) -> torch.Tensor:
    shape = [*tensor.shape[:-1], tensor.shape[-1] + 1] if tensor.dim() else [2]
    return _filled(shape, tensor.dtype)


def _column_major(tensor: torch.Tensor) -> torch.Tensor:
    # Matrices only. With all dimensions reversed, torch's linalg.lu writes past the end of `out`.
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


# Each makes, from a result, the tensor to pass as `out`.
OUT_CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "right": lambda tensor: _filled(tensor.shape, tensor.dtype),
    "strided": lambda tensor: noncontiguous_like(_filled(tensor.shape, tensor.dtype)),
    "column-major": lambda tensor: _column_major(_filled(tensor.shape, tensor.dtype)),
    "empty": lambda tensor: torch.empty(0, dtype=tensor.dtype),
    "too long": _longer,
    "int64": lambda tensor: _filled(tensor.shape, torch.int64),
    "float64": lambda tensor: _filled(tensor.shape, torch.float64),
}


def _write(op: OpInfo, call: Call, outputs: Any) -> Observation:
    """Calls with out=`outputs` (CPU tensors, copied to the device) or, if None, out=the input."""
    if outputs is None:
        targets = call.input
    else:
        targets = Transfer(call.device)(outputs)
    tensors = list(tensors_of(targets))
    before = [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
    with torch.no_grad():
        result = call.run(op, out=targets)
    after = [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
    kept = [one == other for one, other in zip(before, after, strict=True)]
    written = list(tensors_of(result))
    return {
        "result": result,
        "out": tensors,
        "returns its out": [any(one is other for other in tensors) for one in written],
        "kept memory and strides": kept,
        # What a resized storage holds beside its tensor is undefined.
        "storage": [_storage(tensor) for tensor, same in zip(tensors, kept, strict=True) if same],
        "arguments": call.tensors,
    }


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """Everything in the storage behind `tensor`, shape (elements,): a write beside it shows."""
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return whole.set_(tensor.untyped_storage())


def _wrong_device(unit: Unit, what: str, sample: SampleInput, result: Any) -> None:
    """`out` on the CPU is refused with RuntimeError, except by factories that name no device."""

    def run(device: torch.device) -> Outcome:
        call = Call.of(unit.op, (sample.input, sample.args, sample.kwargs), device)
        outputs = map_tensors(torch.clone, _plain(result))
        return observe(lambda: call.run(unit.op, out=outputs))

    if run(CPU).error is not None:
        return  # this sample's result cannot be given as `out` at all
    outcome = run(unit.device)
    if unit.op.is_factory_function and sample.kwargs.get("device") is None:
        if outcome.error is not None:
            raise AssertionError(f"{what} out on the CPU: {outcome.error!r}") from outcome.error
    elif not isinstance(outcome.error, RuntimeError):
        raise AssertionError(f"{what} out on the CPU: no RuntimeError but {outcome.error!r}")


def in_place(test: TestCase, op: OpInfo, dtype: torch.dtype, device: torch.device) -> Comparison:
    """The in-place variant, also on an input that is a view with gaps in a larger storage."""
    unit = Unit(test, op, dtype, device, "test_variant_consistency_eager", "test_compare_cpu")
    for what, sample in unit.samples():
        unit.compare(what, sample, lambda call: _overwrite(op, call))
        unit.compare(
            f"{what} on a view",
            sample,
            lambda call: _overwrite(op, call),
            prepare=lambda parts: (noncontiguous(parts[0]), *parts[1:]),
        )
    return unit.comparison.result(refusals_count=True)


def _overwrite(op: OpInfo, call: Call) -> Observation:
    targets = list(tensors_of(call.input))
    versions = [tensor._version for tensor in targets]
    with torch.no_grad():
        result = call.run(op.get_inplace())
    return {
        "result": result,
        "returns its input": result is call.input,
        "writes counted": [
            tensor._version - version for tensor, version in zip(targets, versions, strict=True)
        ],
        "storage": [_storage(tensor) for tensor in targets if tensor.layout is torch.strided],
        "arguments": call.tensors,
    }


def sparse(test: TestCase, op: OpInfo, dtype: torch.dtype, device: torch.device) -> Comparison:
    """`forward` on sparse tensors of every layout that the entry supports."""
    unit = Unit(test, op, dtype, device, "test_compare_cpu")
    for index, (layout, sample) in enumerate(sparse_samples(op, dtype)):
        unit.compare(f"{layout} sample {index}", sample, lambda call: _call(op, call))
    return unit.comparison.result()


def errors(test: TestCase, op: OpInfo, dtype: torch.dtype, device: torch.device) -> Comparison:
    """Upstream's wrong calls raise the exceptions and messages that upstream expects.

    A few entries expect another error from the CPU than from other devices; since the device may
    run the CPU's kernel, either is right.
    """
    comparison = Comparison(test, device, Tolerance(dtype))
    on_cpu = error_inputs(op, "cpu")
    on_device = error_inputs(op, str(device))
    for index, wrong in enumerate(on_device):
        sample = wrong.sample_input
        allowed = [(wrong.error_type, wrong.error_regex)]
        if len(on_cpu) == len(on_device):
            allowed.append((on_cpu[index].error_type, on_cpu[index].error_regex))
        outcome = observe(lambda sample=sample: op(sample.input, *sample.args, **sample.kwargs))
        error = outcome.error
        if not any(
            isinstance(error, kind) and re.search(pattern, str(error)) for kind, pattern in allowed
        ):
            raise AssertionError(
                f"wrong call {index} {sample.summary()}: {error!r} instead of {allowed}"
            )
        comparison.samples += 1
    return comparison.result()


@dataclass(frozen=True)
class Phase:
    """`run` is the phase; `dtypes(op)` are those in which the entry has it, empty for none."""

    run: Callable[[TestCase, OpInfo, torch.dtype, torch.device], Comparison]
    dtypes: Callable[[OpInfo], set[torch.dtype]]


def _all(op: OpInfo) -> set[torch.dtype]:
    return set(op.supported_dtypes("cpu"))


def _differentiable(op: OpInfo) -> set[torch.dtype]:
    return set(op.supported_backward_dtypes("cpu")) if op.supports_autograd else set()


def _sparse(op: OpInfo) -> set[torch.dtype]:
    # Which kernels there are depends on the layout; the dtypes are those of the dense phases.
    supported = any(op.supports_sparse_layout(layout) for layout in SPARSE_LAYOUTS)
    return {torch.float32} & _all(op) if supported else set()


def _wrong_calls(op: OpInfo) -> set[torch.dtype]:
    # Wrong calls have dtypes of their own: once per entry is enough. Some entries have none, or
    # none for this device.
    if not error_inputs(op, config.DEVICE):
        return set()
    return set(wanted_dtypes(op.full_name, _all(op))[:1])


def _floating(op: OpInfo) -> set[torch.dtype]:
    return {dtype for dtype in _all(op) if dtype.is_floating_point}


# The _foreach entries claim every dtype, also those their operators refuse.
FOREACH_PHASES: dict[str, Phase] = {
    "forward": Phase(forward, _floating),
    "noncontiguous": Phase(noncontiguous_inputs, _floating),
    "inplace": Phase(in_place, lambda op: _floating(op) if op.get_inplace() else set()),
    "backward": Phase(
        backward, lambda op: _floating(op) & _differentiable(op) if op.supports_autograd else set()
    ),
    "forward_ad": Phase(
        forward_mode,
        lambda op: _floating(op) & _differentiable(op) if op.supports_forward_ad else set(),
    ),
}

PHASES: dict[str, Phase] = {
    "forward": Phase(forward, _all),
    "noncontiguous": Phase(noncontiguous_inputs, _all),
    "out": Phase(out, lambda op: _all(op) if op.supports_out else set()),
    "inplace": Phase(in_place, lambda op: _all(op) if op.get_inplace() else set()),
    "backward": Phase(backward, _differentiable),
    "forward_ad": Phase(
        forward_mode, lambda op: _differentiable(op) if op.supports_forward_ad else set()
    ),
    "sparse": Phase(sparse, _sparse),
    "errors": Phase(errors, _wrong_calls),
}
