"""A program in the making: choosing operands, and writing the lines."""

from __future__ import annotations

import itertools
import random

import torch

from programs.line import Line
from programs.variable import FLOATS, Variable, broadcast, castable, numel

SHAPES = (
    ((6, 8), (6, 8), (6, 8), (8,), (6, 1), (1, 8)),
    ((2, 3, 5), (2, 3, 5), (3, 5), (5,), (2, 1, 5), (3, 1)),
    ((131,), (131,), (131,), (1,), ()),
    ((16,), (16,), (16,), (), (1,)),
    ((5, 27), (5, 27), (27,), (5, 1)),
    ((4, 1, 7), (4, 1, 7), (3, 7), (4, 3, 7)),
    ((1,), (1,), (), (1, 1)),
    ((40, 33), (40, 33), (33,), (40, 1)),
    ((0, 3), (0, 3), (3,), (1, 3)),
)
SHAPE_WEIGHTS = (8, 6, 6, 4, 4, 3, 1, 2, 1)

# Those of programs that fold: rows that are long, of one element, or many; planes; images.
ROW_SHAPES = (
    ((6, 8), (6, 8), (6, 8), (8,), (6, 1), (1, 8)),
    ((2, 3, 5), (2, 3, 5), (3, 5), (5,), (2, 1, 5), (3, 1)),
    ((3, 700), (3, 700), (700,), (3, 1)),
    ((1, 4900), (1, 4900), (4900,), (1, 1)),
    ((2, 1700), (2, 1700), (2, 1)),
    ((300, 9), (300, 9), (9,), (300, 1)),
    ((17, 1), (17, 1), (1,), (1, 1)),
    ((2, 4, 3, 5), (2, 4, 3, 5), (4, 1, 1), (1, 4, 1, 1), (3, 5)),
    ((3, 6, 130), (3, 6, 130), (3, 1, 130), (6, 130), (130,)),
    ((0, 3), (0, 3), (3,), (1, 3)),
)
ROW_SHAPE_WEIGHTS = (8, 6, 6, 3, 3, 4, 1, 6, 4, 1)

NUMBERS: tuple[float, ...] = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -1.5, 1e-3, 1e30, torch.inf)
MILD_NUMBERS: tuple[float, ...] = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -1.5)
INTEGERS: tuple[int, ...] = (0, 1, -1, 2, 5, -3)


class Builder:
    """The lines of a program so far, its variables, and the random numbers of its seed."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.lines: list[Line] = []
        self.variables: list[Variable] = []
        self.made = itertools.count()
        self.storages = itertools.count()
        self.folds = self.chance(0.5)
        # One infinity and a sum says no more: most programs that fold have none.
        self.mild = self.folds and self.chance(0.8)
        shapes, weights = (ROW_SHAPES, ROW_SHAPE_WEIGHTS) if self.folds else (SHAPES, SHAPE_WEIGHTS)
        self.shapes = self.choose.choices(shapes, weights)[0]
        main = self.choose.choices(
            [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int64, torch.bool],
            [10, 4, 2, 1, 2, 1],
        )[0]
        # Most operations of a program are of one dtype, so that they can meet in a pass.
        mixed = self.choose.random() < 0.4
        others = [*FLOATS, torch.int64, torch.bool] if mixed else [main]
        self.dtypes = [main] * 6 + others

    # Choosing.

    def chance(self, probability: float) -> bool:
        return self.choose.random() < probability

    def some(self) -> Variable:
        """A variable, rather one that was made lately."""
        if self.chance(0.6):
            return self.variables[-1 - self.choose.randrange(min(3, len(self.variables)))]
        return self.choose.choice(self.variables)

    def partner(self, x: Variable, floating: bool = False) -> Variable | None:
        """A variable that fits `x`, rather one of its dtype."""
        fitting = [
            y
            for y in self.variables
            if broadcast(x.shape, y.shape) is not None
            and (not floating or y.dtype.is_floating_point)
        ]
        if not fitting:
            return None
        same = [y for y in fitting if y.dtype == x.dtype and y.shape == x.shape]
        return self.choose.choice(same if same and self.chance(0.7) else fitting)

    def number(self, dtype: torch.dtype) -> float:
        if dtype.is_floating_point:
            if self.mild:
                return self.choose.choice(MILD_NUMBERS)
            # Some operations refuse what a dtype cannot hold.
            numbers = [n for n in NUMBERS if dtype != torch.float16 or n != 1e30]
            return self.choose.choice(numbers)
        if self.chance(0.05):
            return self.choose.choice([True, 0.5])
        return self.choose.choice(INTEGERS)

    def floating(self) -> Variable | None:
        candidates = [v for v in self.variables if v.dtype.is_floating_point]
        return self.choose.choice(candidates) if candidates else None

    # Writing lines.

    def emit(
        self, text: str, target: str | None = None, check: str = "bits", scale: str = ""
    ) -> None:
        self.lines.append(Line(text, target, check, scale))

    def new(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        expression: str,
        check: str = "bits",
        scale: str = "",
    ) -> None:
        """A variable with memory of its own."""
        reused = self.some() if self.variables and self.chance(0.1) else None
        name = reused.name if reused is not None else f"t{next(self.made)}"
        if reused is not None:
            self.variables.remove(reused)
        self.variables.append(Variable(name, shape, dtype, next(self.storages), numel(shape)))
        self.emit(f"{name} = {expression}", name, check, scale)

    def result(
        self,
        operands: list[Variable | float],
        dtype: torch.dtype,
        call: str,
        method: str | None,
        check: str,
        scale: str = "",
        exact_out: bool = False,
        has_out: bool = True,
    ) -> None:
        """An operation of the operands: a new tensor, in place (`method`), or with out=.

        `call` and `method` are expressions with {out}, which is replaced by the argument.
        """
        shape: tuple[int, ...] | None = ()
        tensors = [operand for operand in operands if isinstance(operand, Variable)]
        for tensor in tensors:
            shape = None if shape is None else broadcast(shape, tensor.shape)
        if shape is None or numel(shape) > 5000:
            return
        first = operands[0]
        if method is not None and isinstance(first, Variable) and self.chance(0.3):
            if first.shape == shape and (castable(dtype, first.dtype)):
                self.write(first, tensors, method, check, scale)
                return
        if has_out and self.chance(0.1):
            target = self.some()
            fits = dtype == target.dtype if exact_out else castable(dtype, target.dtype)
            # The tolerance is that of the dtype in which the result was rounded.
            fits = fits and (check != "close" or dtype == target.dtype)
            if target.shape == shape and fits:
                text = call.format(out=f", out={target.name}")
                self.write(target, tensors, text, check, scale)
                return
        self.new(shape, dtype, call.format(out=""), check, scale)

    def write(
        self, target: Variable, tensors: list[Variable], text: str, check: str, scale: str
    ) -> None:
        """An expression that writes to a tensor."""
        shared = any(t is not target and t.storage == target.storage for t in tensors)
        if not target.writable or shared:
            if self.chance(0.5):
                return
            names = ", ".join(dict.fromkeys(t.name for t in (target, *tensors)))
            text = f"attempt(lambda: {text}, {names})"
        self.emit(text, target.name, check, scale)

    def view(self, x: Variable, shape: tuple[int, ...], expression: str, writable: bool) -> None:
        name = f"t{next(self.made)}"
        self.variables.append(
            Variable(name, shape, x.dtype, x.storage, x.numel, x.writable and writable, False)
        )
        x.alone = False
        self.emit(f"{name} = {expression}", None)

    def make(self) -> None:
        shape = self.choose.choice(self.shapes)
        dtype = self.choose.choice(self.dtypes)
        seed = self.choose.randrange(10**6)
        mild = ", mild=True" if self.mild else ""
        self.new(shape, dtype, f"data({seed}, {shape}, {dtype}{mild})")
