"""The chains, as anybody would write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

SIZES = (16, 1_000, 100_000, 1_000_000, 10_000_000)

GELU = (0.7978845608028654 * 0.044715, 0.7978845608028654, 1.0, 0.5)
ADAM = (0.9, 0.1, 0.999, 0.001, 1e-3, 1e-8)  # both betas and what is left of 1, step, epsilon


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(x * (GELU[1] + GELU[0] * x * x)))


def swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x) * gate


def relu(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a * x + b)


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
    m.mul_(0.9).add_(g * 0.1)
    v.mul_(0.999).add_(g * g * 0.001)
    p.sub_(m * 1e-3 / (v.sqrt() + 1e-8))


def adam_loop(
    ps: list[torch.Tensor],
    gs: list[torch.Tensor],
    ms: list[torch.Tensor],
    vs: list[torch.Tensor],
) -> None:
    for p, g, m, v in zip(ps, gs, ms, vs, strict=True):
        m.mul_(0.9).add_(g * 0.1)
        v.mul_(0.999).add_(g * g * 0.001)
        p.sub_(m * 1e-3 / (v.sqrt() + 1e-8))


@dataclass(frozen=True)
class Chain:
    """A function over tensors of one size.

    inputs: how many tensors it takes, or lists of `tensors` each.
    results: which of them it overwrites; empty if it returns a new tensor instead.
    reference: the chain's name in loops.cpp, with the numbers it takes.
    traffic: elements read and written per element.
    """

    name: str
    function: Callable[..., Any]
    inputs: int
    operations: int
    reference: str
    traffic: int
    numbers: tuple[float, ...] = ()
    results: tuple[int, ...] = ()
    tensors: int = 1
    sizes: tuple[int, ...] = SIZES

    def operands(self, dtype: torch.dtype, count: int) -> list[list[torch.Tensor]]:
        """`inputs` lists of `tensors` CPU tensors (count,); the same for the same arguments.

        Inputs are uniform in -3..3; states of an optimizer (the last two of four) in 0..1.
        """
        generator = torch.Generator().manual_seed(0)

        def make(index: int) -> torch.Tensor:
            values = torch.rand(count, generator=generator)
            return (values if self.results and index > 1 else 6 * values - 3).to(dtype)

        return [[make(i) for _ in range(self.tensors)] for i in range(self.inputs)]

    def call(self, function: Callable[..., Any], operands: list[list[torch.Tensor]]) -> Any:
        if self.tensors > 1:
            return function(*operands)
        return function(*(operand for (operand,) in operands))

    def values(self, result: Any, operands: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        """What the chain computed: what it returned, or the operands it overwrote."""
        if not self.results:
            return [result]
        return [tensor for i in self.results for tensor in operands[i]]


CHAINS = [
    Chain("gelu", gelu, 1, 8, "gelu", 2, GELU),
    Chain("swiglu", swiglu, 2, 3, "swiglu", 3),
    Chain("relu(a*x+b)", relu, 3, 3, "relu(a*x+b)", 4),
    Chain("adam", adam, 4, 12, "adam", 7, ADAM, (0, 2, 3)),
    Chain("adam, 200 tensors", adam_loop, 4, 2400, "adam", 7, ADAM, (0, 2, 3), 200, (4096,)),
]
