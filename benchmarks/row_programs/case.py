"""A cell of benchmarks/rows.py: an expression over operands, or its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

BROADCAST, REDUCTION = "broadcast", "reduction"
FORWARD, BACKWARD, LOSS, STEP = "forward", "backward", "loss", "loss step"

GRADIENTS = "torch.autograd.grad({value}, leaves, seed, retain_graph=True)"

Names = dict[str, Any]

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Hand:
    """A program of benchmarks/reference/rows.cpp.

    operands: expressions of what it reads, then of what it writes, the results.
    """

    program: str
    sizes: tuple[int, int, int]
    operands: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """An expression, called as a function of its operands.

    operands: names of tensors on the CPU, made anew at each call.
    leaves: those whose gradients are computed, in `BACKWARD` of one forward, in `STEP` of a forward
    that is part of what is timed.
    """

    group: str
    program: str
    dtype: str
    shape: str
    count: int
    expression: str
    operands: Callable[[], Names]
    leaves: tuple[str, ...] = ()
    hand: Hand | None = None
    compiles: bool = True  # Inductor is a contender
    extra: Names = field(default_factory=dict)  # functions that the expression calls

    @property
    def name(self) -> str:
        size = f"{self.count:.0e}".replace("e+0", "e")
        return " ".join(part for part in (self.program, self.dtype, self.shape, size) if part)

    def function(self) -> Callable[..., Any]:
        """The expression as a function of the operands; new code at each call."""
        parameters = ", ".join(self.operands())
        scope = {"torch": torch, "F": torch.nn.functional, **self.extra}
        function: Callable[..., Any] = eval(f"lambda {parameters}: {self.expression}", scope)
        return function

    @property
    def statement(self) -> str:
        """What is timed: of `function`, the operands and `leaves`; leaves its value in `r`."""
        call = f"function({', '.join(self.operands())})"
        if self.group == BACKWARD:
            return f"r = {GRADIENTS.format(value='value')}"
        if self.group == STEP:
            return f"r = torch.autograd.grad({call}, leaves)"
        return f"r = {call}"

    def names(
        self, device: torch.device, function: Callable[..., Any], wide: bool = False
    ) -> Names:
        """What the statement uses, on a device; wide: the same values in float32."""
        torch.manual_seed(0)
        names: Names = {k: tensor.to(device) for k, tensor in self.operands().items()}
        if wide:
            names = {k: t.float() if t.is_floating_point() else t for k, t in names.items()}
        if self.group in (BACKWARD, STEP):
            for leaf in self.leaves:
                names[leaf].requires_grad_()
            names["leaves"] = tuple(names[leaf] for leaf in self.leaves)
        if self.group == BACKWARD:
            arguments = [names[k] for k in self.operands()]
            names["value"] = function(*arguments)
            # A view, or zeros, would be another case.
            names["seed"] = torch.randn(names["value"].shape).to(DTYPES[self.dtype])
            names["seed"] = names["seed"].to(names["value"])
            if self.operands()["x"].is_contiguous(memory_format=torch.channels_last):
                names["seed"] = names["seed"].contiguous(memory_format=torch.channels_last)
        return {**names, "function": function, "torch": torch}
