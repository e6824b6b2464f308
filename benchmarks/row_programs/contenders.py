"""The contenders of a cell, after their values have been compared."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch
from chains.contenders import EAGER, HAND, INDUCTOR
from chains.reference import Reference

from row_programs.case import BACKWARD, STEP, Case, Hand, Names

DEVICE = "device"
# Of the largest value, against eager torch in f32: sums have other orders.
TOLERANCE = {"f32": 1e-4, "bf16": 3e-2}


def run(case: Case, names: Names, finish: Callable[[], None]) -> list[torch.Tensor]:
    """The values of the statement, on the CPU."""
    exec(case.statement, names)
    finish()
    value = names.pop("r")
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    # A copy: with out= the statement writes there again.
    return [tensor.detach().cpu().clone() for tensor in values]


def compare(case: Case, name: str, got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    """Raises AssertionError where a contender computes something else."""
    for one, other in zip(got, want, strict=True):
        if one.shape != other.shape:
            raise AssertionError(f"{case.name}, {name}: {one.shape}")
        if not other.is_floating_point():
            if not torch.equal(one, other):
                raise AssertionError(f"{case.name}, {name}: other indices")
            continue
        one, other = one.float(), other.float()
        error = float((one - other).abs().max())
        limit = TOLERANCE[case.dtype] * max(1.0, float(other.abs().max()))
        if not error <= limit:
            raise AssertionError(f"{case.group} {case.name}, {name}: off by {error:.3g}")


def compiled(case: Case) -> Callable[..., Any]:
    """The function through Inductor, warm; raises RuntimeError unless generated code runs."""
    function: Callable[..., Any] = torch.compile(case.function(), dynamic=False, fullgraph=True)
    names = case.names(torch.device("cpu"), function)
    nothing = torch.device("cpu")
    for _ in range(3):
        run(case, names, lambda: None)
    arguments = [case.names(nothing, function)[k] for k in case.operands()]
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        function(*arguments)
    events = {event.name for event in profile.function_events}
    if not any("CompiledFxGraph" in event or "Torch-Compiled" in event for event in events):
        raise RuntimeError(f"{case.name}: Inductor's code did not run: {sorted(events)}")
    return function


def by_hand(
    case: Case, hand: Hand, names: Names, reference: Reference, clock: Callable[[], float]
) -> tuple[Callable[[int], float], list[torch.Tensor]]:
    """seconds(number) of the loop, on memory of the device, and its results, of one run."""
    with torch.no_grad():
        operands, results = (
            [eval(text, dict(names)) for text in texts] for texts in (hand.operands, hand.results)
        )
    torch.get_device_module("hologram").synchronize()
    seconds = reference.rows_contender(hand.program, hand.sizes, [*operands, *results], clock)
    seconds(1)
    return seconds, [result.detach().cpu().clone() for result in results]


def contenders(
    case: Case, reference: Reference, inductor: bool, clock: Callable[[], float]
) -> dict[str, Callable[[int], float]]:
    """seconds(number) of everybody.

    Raises:
        AssertionError: a contender computes something else.
    """
    hologram, cpu = torch.device("hologram"), torch.device("cpu")
    synchronize: Callable[[], None] = torch.get_device_module("hologram").synchronize
    found: dict[str, Callable[[int], float]] = {}

    def add(name: str, device: torch.device, function: Callable[..., Any]) -> list[torch.Tensor]:
        names = case.names(device, function)
        names["finish"] = synchronize
        values = run(case, names, synchronize if device == hologram else lambda: None)
        statement = case.statement + ("; finish()" if device == hologram else "")
        found[name] = timeit.Timer(f"{statement}; del r", timer=clock, globals=names).timeit
        return values

    with torch.set_grad_enabled(case.group in (BACKWARD, STEP)):
        # In bf16 torch's own sums over many rows are off by a tenth.
        want = run(case, case.names(cpu, case.function(), wide=True), lambda: None)
        add(EAGER, cpu, case.function())
        compare(case, DEVICE, add(DEVICE, hologram, case.function()), want)
        if inductor and case.compiles:
            compare(case, INDUCTOR, add(INDUCTOR, cpu, compiled(case)), want)
        if case.hand is not None:
            names = case.names(hologram, case.function())
            found[HAND], values = by_hand(case, case.hand, names, reference, clock)
            compare(case, HAND, values, want)
    return found
