"""The contenders of a cell, after their values have been compared."""

from __future__ import annotations

import timeit
import types
from collections.abc import Callable
from typing import Any

import torch

from chains.chain import Chain
from chains.reference import Reference

hologram: Any = torch.get_device_module("hologram")

EAGER, INDUCTOR, CASTS, HAND = "eager", "inductor", "inductor casts", "hand"
OTHERS = (EAGER, INDUCTOR, CASTS, HAND)

Tensors = list[torch.Tensor]


def python_contender(
    chain: Chain, function: Callable[..., Any], operands: list[list[torch.Tensor]], finish: str = ""
) -> Callable[[int], float]:
    """seconds(number) of a Python function; its results live until `finish` has run.

    Where the operands require gradients, the backward is part of it.
    """
    names = {f"x{i}": x if chain.tensors > 1 else x[0] for i, x in enumerate(operands)}
    statements = [f"result = function({', '.join(names)})"]
    clean = ["del result"]
    if operands[0][0].requires_grad:
        statements.append("result.backward(seed)")
        clean += [f"{name}.grad = None" for name in names]
    if finish:
        statements.append(finish)
    scope = {"function": function, "synchronize": hologram.synchronize, **names}
    scope["seed"] = torch.ones_like(operands[0][0])
    return timeit.Timer("; ".join(statements + clean), globals=scope).timeit


def compiled(chain: Chain, operands: list[list[torch.Tensor]], casts: bool) -> Callable[..., Any]:
    """The chain through Inductor, warm; raises RuntimeError unless generated code runs."""
    # Dynamo keeps what it compiled by code object: a copy for each way of compiling.
    own = types.FunctionType(
        chain.function.__code__.replace(), chain.function.__globals__, chain.function.__name__
    )
    function: Callable[..., Any] = torch.compile(
        own, dynamic=False, fullgraph=True, options={"emulate_precision_casts": casts}
    )
    for _ in range(3):
        chain.call(function, operands)
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        chain.call(function, operands)
    names = {event.name for event in profile.function_events}
    generated = any("CompiledFxGraph" in name for name in names)
    operators = {name for name in names if name.startswith("aten::")} - {"aten::detach"}
    if not generated or operators:
        raise RuntimeError(f"{chain.name}: Inductor's code did not run alone: {sorted(names)}")
    return function


def close(
    chain: Chain, dtype: torch.dtype, name: str, got: list[torch.Tensor], want: list[torch.Tensor]
) -> None:
    """Compares a contender's values with torch's; raises AssertionError."""
    # Inductor keeps f32 between operations: in bf16 the roundings of a chain are missing.
    rtol, atol = (2e-6, 1e-6) if dtype == torch.float32 else (2e-2, 2e-2)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(
            one.cpu(), other, rtol=rtol, atol=atol, msg=lambda text: f"{chain.name}, {name}: {text}"
        )


def contenders(
    chain: Chain, dtype: torch.dtype, count: int, threads: int, grad: bool, reference: Reference
) -> dict[str, Callable[[int], float]]:
    """seconds(number) of everybody, after their values have been compared.

    Raises:
        AssertionError: a contender computes something else.
    """

    def fresh(device: str = "cpu") -> list[list[torch.Tensor]]:
        return [
            [t.to(device).requires_grad_(grad) for t in operand]
            for operand in chain.operands(dtype, count)
        ]

    def values(function: Callable[..., Any], operands: list[list[torch.Tensor]]) -> Tensors:
        result = chain.call(function, operands)
        if grad:
            result.backward(torch.ones_like(result))
        hologram.synchronize()
        # A copy on the CPU: the operands are used again.
        return [t.detach().cpu().clone() for t in chain.values(result, operands)] + [
            t.grad.cpu() for operand in operands for t in operand if t.grad is not None
        ]

    want = values(chain.function, fresh())
    found = {EAGER: python_contender(chain, chain.function, fresh())}

    ours = values(chain.function, fresh("hologram"))
    close(chain, dtype, "device", ours, want)
    found["device"] = python_contender(chain, chain.function, fresh("hologram"), "synchronize()")

    for name, casts in ((INDUCTOR, False), (CASTS, True)):
        if casts and chain.tensors > 1:
            continue  # Inductor takes a minute to compile so many
        operands = fresh()
        function = compiled(chain, operands, casts)
        close(chain, dtype, name, values(function, fresh()), want)
        found[name] = python_contender(chain, function, operands)

    if not grad:
        operands = fresh("hologram")
        if not chain.results:
            operands.append([torch.empty_like(t) for t in operands[0]])
        hand = reference.contender(chain.reference, chain.numbers, operands, threads)
        hand(1)
        theirs = chain.values(operands[-1][0], operands)
        for one, other in zip(ours, theirs, strict=True):
            if not torch.equal(one, other.cpu()):
                raise AssertionError(f"{chain.name}: the loop by hand computes other bits")
        found[HAND] = hand
    return found
