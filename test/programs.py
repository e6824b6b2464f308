"""Random programs: what a seed stands for, running them, comparing, shrinking what fails.

A program is a list of Python lines that use the public API and the helpers of `World`. It depends
on its seed alone, so a failure is repeated by

    python test/programs.py SEED

which runs the program in every mode, prints it, and shrinks it if the results differ. With
--count N the programs SEED to SEED + N - 1 are run; the first failure ends the run.

What is compared:
    fused with eager    Every tensor that lives at the end, every number read on the way and every
                        error, bit for bit; NaN at the same places.
    eager with the CPU  Line by line, on equal operands: after a line whose result may differ in
                        its last bits, the CPU's tensor is given the device's values. So nothing is
                        amplified, and torch's tolerances for one operation are sound. What is
                        rounded correctly has to have the CPU's bits.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

hologram = torch.hologram
DEVICE = "hologram"

# ------------------------------------------------------------------------------------------------
# The world in which a program runs.


class Worker:
    """A thread that runs what it is given, in order."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            task, done = self.tasks.get()
            task()
            del task
            done.set()

    def start(self, task: Callable[[], object]) -> threading.Event:
        done = threading.Event()
        self.tasks.put((task, done))
        return done


_worker: Worker | None = None
_streams: list = []

# Around zero, powers of two, and beyond what the dtypes can hold.
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 1e-40, -1e-7, 65520.0, -1e38, 1e39)
SPECIAL_INTEGERS = (0, 1, -1, 2, 7, -128, 2**31, -(2**63), 2**63 - 1, 3)


class World:
    """The helpers of a program, on one device. On "cpu" what flushes does nothing."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.mine = device != "cpu"
        self.seen: list[Any] = []  # what the program read on its way, and its errors
        self.events: list = []
        self.views: list[torch.Tensor] = []
        self.waiting: list[threading.Event] = []

    def names(self) -> dict[str, Any]:
        """The global variables of a program."""
        helpers = (name for name in vars(World) if not name.startswith("_"))
        return {"torch": torch, **{name: getattr(self, name) for name in helpers}}

    def data(self, seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Random numbers, a few of them special. On the CPU first: the same on every device."""
        choose = random.Random(seed)
        count = 1
        for size in shape:
            count *= size
        if dtype == torch.bool:
            values: list = [choose.random() < 0.5 for _ in range(min(count, 97))]
        elif dtype == torch.int64:
            values = [choose.randint(-9, 9) for _ in range(min(count, 97))]
        else:
            values = [choose.gauss(0, 2) for _ in range(min(count, 97))]
        if values and choose.random() < 0.5:
            special: tuple = (True, False)
            if dtype != torch.bool:
                special = SPECIAL_INTEGERS if dtype == torch.int64 else SPECIAL
            for _ in range(1 + len(values) // 8):
                values[choose.randrange(len(values))] = choose.choice(special)
            if dtype.is_floating_point and choose.random() < 0.3:
                values[0] = choose.choice([torch.nan, torch.inf, -torch.inf])
        if count > len(values):
            values = (values * (count // max(len(values), 1) + 1))[:count]
        wide = torch.float64 if dtype.is_floating_point else dtype
        return torch.tensor(values, dtype=wide).reshape(shape).to(dtype).to(self.device)

    def attempt(self, call: Callable[[], object]) -> None:
        """Calls what may be refused; an error counts as a result."""
        try:
            call()
            self.seen.append("no error")
        except (RuntimeError, NotImplementedError, TypeError) as error:
            self.seen.append(f"{type(error).__name__}: {error}".replace(DEVICE, "cpu"))

    def gradient(self, function: Callable, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """d function(x) / dx * grad, on autograd's thread of the device."""
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, grad)[0]

    # What makes a window run.

    def flush(self) -> None:
        if self.mine:
            hologram.flush()

    def synchronize(self) -> None:
        if self.mine:
            hologram.synchronize()

    def event(self) -> None:
        if self.mine:
            self.events.append(hologram.Event())
            self.events[-1].record()

    def wait_event(self) -> None:
        if self.mine and self.events:
            self.events[-1].wait()

    def read(self, x: torch.Tensor) -> None:
        """A copy on the host."""
        self.seen.append(x.cpu() if self.mine else x.clone())

    def item(self, x: torch.Tensor) -> None:
        """One number on the host."""
        self.seen.append(x.flatten()[:1].tolist())

    def delegated(self, x: torch.Tensor) -> None:
        """An operation of torch's own CPU kernels, which order their sums by addresses' alignment:
        one whose result does not depend on the order."""
        self.seen.append(torch.flip(x, [0] if x.dim() else []).cpu())

    def address(self, x: torch.Tensor) -> None:
        x.data_ptr()

    def storage_address(self, x: torch.Tensor) -> None:
        x.untyped_storage().data_ptr()

    # Others that may look at the memory at any time.

    def look(self, x: torch.Tensor) -> None:
        """A CPU tensor over the memory, until look_away()."""
        if not self.mine:
            return
        if hologram.get_device_properties(x.device).host_addressable:
            self.views.append(hologram.alias_as_cpu(x))
        else:
            x.cpu()

    def look_away(self) -> None:
        self.views.clear()

    def give_address(self, x: torch.Tensor) -> None:
        """The memory is shared for good: another storage may be made over it."""
        if self.mine:
            torch.utils.dlpack.to_dlpack(x)

    def fill_window(self, x: torch.Tensor) -> None:
        """More instructions than a window holds; together they do nothing."""
        if self.mine:
            for _ in range(4098):
                x.neg_()

    def flush_denormals(self, x: torch.Tensor) -> None:
        """Instructions in another mode of the thread; together they do nothing."""
        if self.mine:
            torch.set_flush_denormal(True)
            x.neg_()
            torch.set_flush_denormal(False)
            x.neg_()

    def run_out_of_memory(self) -> None:
        if not self.mine:
            return
        hologram.set_per_process_memory_fraction(1e-9)
        try:
            torch.empty(1 << 26, device=DEVICE)
        except torch.OutOfMemoryError:
            pass
        finally:
            hologram.set_per_process_memory_fraction(1.0)

    def fork(self) -> None:
        """A child that ends at once."""
        if self.mine:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)

    def use_stream(self, index: int) -> None:
        if self.mine:
            while len(_streams) <= index:
                _streams.append(hologram.Stream())
            hologram.set_stream(_streams[index])

    def wait_stream(self, index: int) -> None:
        if self.mine and index < len(_streams):
            hologram.current_stream().wait_stream(_streams[index])

    # Other threads.

    def elsewhere(self, task: Callable[[], object], wait: bool) -> None:
        """Runs a task on another thread; at the end of the program at the latest it is done."""
        global _worker
        if _worker is None:
            _worker = Worker()
        done = _worker.start(task)
        if wait:
            done.wait()
        else:
            self.waiting.append(done)

    def finish(self) -> None:
        for done in self.waiting:
            done.wait()
        if self.mine and _streams:
            hologram.set_stream(hologram.default_stream())


# ------------------------------------------------------------------------------------------------
# What a seed stands for.


class Line(NamedTuple):
    """A line of a program.

    `target` is the variable whose tensor it writes, None if none. Against the CPU its bits are
    compared if `check` is "bits", its numbers if "values" (zeros of either sign), else with torch's
    tolerances, relative to the greatest value on the way: the expression `scale`.
    """

    text: str
    target: str | None = None
    check: str = "bits"
    scale: str = ""


@dataclass(slots=True)
class Variable:
    """What the generator knows of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int
    numel: int | None  # of the storage, None: not known
    writable: bool = True  # no two elements share memory
    alone: bool = True  # the only variable on its storage


FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)
KIND = {torch.bool: 0, torch.int64: 1, **dict.fromkeys(FLOATS, 2)}

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

UNARY_EXACT = ("neg", "abs", "relu", "reciprocal", "floor", "ceil", "trunc", "round")
UNARY_CLOSE = "sqrt rsqrt exp exp2 expm1 log log2 log1p tanh sigmoid erf sin cos".split()
ACTIVATIONS = (
    "torch.nn.functional.silu({x})",
    "torch.nn.functional.gelu({x})",
    "torch.nn.functional.gelu({x}, approximate='tanh')",
)
DIFFERENTIABLE = (*ACTIVATIONS, "torch.tanh({x})", "torch.sigmoid({x})", "torch.relu({x})")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
NUMBERS: tuple[float, ...] = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -1.5, 1e-3, 1e30, torch.inf)
INTEGERS: tuple[int, ...] = (0, 1, -1, 2, 5, -3)


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of an operation on tensors of shapes `a` and `b`, None if they do not fit."""
    if a == b:
        return a
    shape = []
    for x, y in itertools.zip_longest(reversed(a), reversed(b), fillvalue=1):
        if x != y and x != 1 and y != 1:
            return None
        shape.append(y if x == 1 else x)
    return tuple(reversed(shape))


def numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def promote(operands: Iterable[Variable | float]) -> torch.dtype:
    """torch's dtype of a result: numbers count less than 0-dim tensors, these less than others."""
    found: list[torch.dtype | None] = [None, None, None]  # by class of operand
    for operand in operands:
        if isinstance(operand, Variable):
            place, dtype = (0 if operand.shape else 1), operand.dtype
        else:
            place = 2
            dtype = {bool: torch.bool, int: torch.int64}.get(type(operand), torch.float32)
        known = found[place]
        found[place] = dtype if known is None else torch.promote_types(known, dtype)
    result = found[2]
    for higher in (found[1], found[0]):
        if higher is not None:
            lower = result
            result = higher if lower is None or KIND[lower] <= KIND[higher] else lower
    assert result is not None
    return result


def written(number: float) -> str:
    """A number as Python text."""
    return f"float('{number}')" if number in (torch.inf, -torch.inf) else repr(number)


class Generator:
    """Makes the program of a seed."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.lines: list[Line] = []
        self.variables: list[Variable] = []
        self.made = itertools.count()
        self.storages = itertools.count()
        self.shapes = self.choose.choices(SHAPES, SHAPE_WEIGHTS)[0]
        main = self.choose.choices(
            [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int64, torch.bool],
            [10, 4, 2, 1, 2, 1],
        )[0]
        # Most operations of a program are of one dtype, so that they can meet in a pass.
        mixed = self.choose.random() < 0.4
        others = [*FLOATS, torch.int64, torch.bool] if mixed else [main]
        self.dtypes = [main] * 6 + others

    def program(self) -> list[Line]:
        """2 to 60 operations on 2 to 5 tensors."""
        for _ in range(self.choose.randint(2, 5)):
            self.make()
        operations = self.choose.choices([self.choose.randint(2, 12), self.choose.randint(2, 60)])
        for _ in range(operations[0]):
            self.choose.choices(STEPS, STEP_WEIGHTS)[0](self)
            while len(self.variables) > 12:
                self.drop(self.choose.choice(self.variables))
        return self.lines

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
            text = f"attempt(lambda: {text})"
        self.emit(text, target.name, check, scale)

    def view(self, x: Variable, shape: tuple[int, ...], expression: str, writable: bool) -> None:
        name = f"t{next(self.made)}"
        self.variables.append(
            Variable(name, shape, x.dtype, x.storage, x.numel, x.writable and writable, False)
        )
        x.alone = False
        self.emit(f"{name} = {expression}", None)

    # Operations.

    def make(self) -> None:
        shape = self.choose.choice(self.shapes)
        dtype = self.choose.choice(self.dtypes)
        seed = self.choose.randrange(10**6)
        self.new(shape, dtype, f"data({seed}, {shape}, {dtype})")

    def unary(self) -> None:
        x = self.some()
        exact = self.chance(0.5)
        name = self.choose.choice(UNARY_EXACT if exact else UNARY_CLOSE)
        if x.dtype == torch.bool and name in ("neg", "relu", "floor", "ceil", "trunc", "round"):
            return
        dtype = x.dtype
        if not dtype.is_floating_point and (not exact or name == "reciprocal"):
            dtype = torch.float32
        if x.dtype == torch.bool and name == "abs":
            return
        call = f"torch.{name}({x.name}{{out}})"
        exact_out = exact and name != "reciprocal"
        check = "bits" if exact else "close"
        self.result(
            [x], dtype, call, f"{x.name}.{name}_()", check, "", exact_out, has_out=name != "relu"
        )

    def activation(self) -> None:
        x = self.floating()
        if x is not None:
            call = self.choose.choice(ACTIVATIONS).format(x=x.name)
            self.result([x], x.dtype, call, None, "close", f"big({x.name})", has_out=False)

    def backward(self) -> None:
        x = self.floating()
        if x is None:
            return
        same = [v for v in self.variables if v.shape == x.shape and v.dtype == x.dtype]
        grad = self.choose.choice(same)
        function = self.choose.choice(DIFFERENTIABLE).format(x="x")
        call = f"gradient(lambda x: {function}, {x.name}, {grad.name})"
        scale = f"big({grad.name}) * (1 + big({x.name}))"
        self.new(x.shape, x.dtype, call, "close", scale)

    def operands(self, x: Variable) -> tuple[Variable | float, str] | None:
        """What meets `x` in a binary operation."""
        if self.chance(0.3):
            number = self.number(x.dtype)
            return number, written(number)
        y = self.partner(x)
        return None if y is None else (y, y.name)

    def binary(self) -> None:
        x = self.some()
        other = self.operands(x)
        if other is None:
            return
        y, text = other
        name = self.choose.choice(BINARY)
        dtype = promote([x, y])
        is_number = not isinstance(y, Variable)
        if name in ("maximum", "minimum") and is_number:
            return
        if name == "sub" and (
            x.dtype == torch.bool or y is True or (not is_number and y.dtype == torch.bool)
        ):
            return
        if name == "div" and not dtype.is_floating_point:
            dtype = torch.float32
        check = "values" if name in ("maximum", "minimum") else "bits"
        # A 0-dim tensor of a wider dtype is rounded to half precision by one and not by the other.
        if dtype in HALVES and not is_number and (x.dtype != y.dtype):
            check = "close"
        method = None if name in ("maximum", "minimum") else f"{x.name}.{name}_({text})"
        if is_number and self.chance(0.2) and name in ("add", "sub", "mul", "div"):
            sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[name]
            self.result([x, y], dtype, f"({text}) {sign} {x.name}", None, check, has_out=False)
            return
        call = f"torch.{name}({x.name}, {text}{{out}})"
        self.result(
            [x, y], dtype, call, method, check, f"big({x.name})" if check == "close" else ""
        )

    def scaled(self) -> None:
        """self + alpha * other and the like: the CPU's kernels round the product or not."""
        x = self.floating()
        y = None if x is None else self.partner(x)
        if x is None or y is None or y.dtype == torch.bool:
            return
        alpha = self.choose.choice([2, 0.5, -1.0, 0.1])
        name = self.choose.choice(["add", "sub"])
        scale = f"big({x.name}) + {abs(alpha)} * big({y.name})"
        call = f"torch.{name}({x.name}, {y.name}, alpha={alpha}{{out}})"
        method = f"{x.name}.{name}_({y.name}, alpha={alpha})"
        self.result([x, y], promote([x, y]), call, method, "close", scale)

    def power(self) -> None:
        x = self.floating()
        if x is None:
            return
        if self.chance(0.7):
            # Exact in every dtype: torch takes an exponent as float64 here and rounded there.
            number = self.choose.choice([2, 3, 0.5, -1, -2, -0.5, 1.75, 0, 1])
            call, method = f"torch.pow({x.name}, {number}{{out}})", f"{x.name}.pow_({number})"
            self.result([x], x.dtype, call, method, "close")
        elif (y := self.partner(x, floating=True)) is not None:
            call = f"torch.pow({x.name}, {y.name}{{out}})"
            self.result([x, y], promote([x, y]), call, f"{x.name}.pow_({y.name})", "close")

    def comparison(self) -> None:
        x = self.some()
        other = self.operands(x)
        if other is None:
            return
        y, text = other
        name = self.choose.choice(COMPARISONS)
        call, method = f"torch.{name}({x.name}, {text}{{out}})", f"{x.name}.{name}_({text})"
        self.result([x, y], torch.bool, call, method, "bits")

    def logical(self) -> None:
        x = self.some()
        if self.chance(0.3):
            call, method = f"torch.logical_not({x.name}{{out}})", f"{x.name}.logical_not_()"
            self.result([x], torch.bool, call, method, "bits")
        elif (y := self.partner(x)) is not None:
            name = self.choose.choice(LOGICAL)
            call = f"torch.{name}({x.name}, {y.name}{{out}})"
            self.result([x, y], torch.bool, call, f"{x.name}.{name}_({y.name})", "bits")

    def where(self) -> None:
        masks = [v for v in self.variables if v.dtype == torch.bool]
        if not masks:
            self.comparison()
            return
        mask = self.choose.choice(masks)
        x = self.partner(mask)
        other = None if x is None else self.operands(x)
        if x is None or other is None:
            return
        y, text = other
        shape = broadcast(mask.shape, x.shape)
        if isinstance(y, Variable) and (shape is None or broadcast(shape, y.shape) is None):
            return
        if not isinstance(y, Variable) and self.chance(0.4):
            if KIND[promote([y])] > KIND[x.dtype] or shape != x.shape:
                return
            call, method = (
                f"{x.name}.masked_fill({mask.name}, {text})",
                f"{x.name}.masked_fill_({mask.name}, {text})",
            )
            self.result([x, mask], x.dtype, call, method, "bits", has_out=False)
            return
        # promote() of the two values: the condition has no say
        dtype = promote([x, y])
        call = f"torch.where({mask.name}, {x.name}, {text}{{out}})"
        self.result([mask, x, y], dtype, call, None, "bits", has_out=False)

    def clamp(self) -> None:
        x = self.some()
        if x.dtype == torch.bool:
            return
        low, high = sorted([self.number(x.dtype), self.number(x.dtype)])
        bounds = [low, high]
        text = f"{written(low)}, {written(high)}"
        if self.chance(0.2):
            bounds, text = [high], f"max={written(high)}"
        elif self.chance(0.2):
            bounds, text = [low], f"min={written(low)}"
        call, method = f"torch.clamp({x.name}, {text}{{out}})", f"{x.name}.clamp_({text})"
        # Of two zeros either may come out.
        self.result([x], promote([x, *bounds]), call, method, "values", exact_out=True)

    def three(self) -> None:
        x = self.floating()
        y = None if x is None else self.partner(x, floating=True)
        z = None if y is None else self.partner(y, floating=True)
        if x is None or y is None or z is None or broadcast(x.shape, z.shape) is None:
            return
        names = f"{x.name}, {y.name}"
        if self.chance(0.4):
            if x.dtype != y.dtype:
                return
            weight = self.choose.choice([0.1, 0.5, 0.75, -2.0])
            scale = f"{abs(weight) + 1} * (big({x.name}) + big({y.name}))"
            call, method = (
                f"torch.lerp({names}, {weight}{{out}})",
                f"{x.name}.lerp_({y.name}, {weight})",
            )
            self.result([x, y], x.dtype, call, method, "close", scale)
            return
        name = self.choose.choice(["addcmul", "addcdiv"])
        value = self.choose.choice([1, 0.5, -3.0])
        sign = "*" if name == "addcmul" else "/"
        scale = f"big({x.name}) + {abs(value)} * big({y.name}) {sign} small({z.name})"
        if name == "addcmul":
            scale = f"big({x.name}) + {abs(value)} * big({y.name}) * big({z.name})"
        call = f"torch.{name}({names}, {z.name}, value={value}{{out}})"
        method = f"{x.name}.{name}_({y.name}, {z.name}, value={value})"
        self.result([x, y, z], promote([x, y, z]), call, method, "close", scale)

    def convert(self) -> None:
        x = self.some()
        dtype = self.choose.choice([*FLOATS, torch.int64, torch.bool])
        # A float that an integer cannot hold becomes whatever the compiler's code makes of it.
        source = x.name
        if x.dtype.is_floating_point and dtype == torch.int64:
            source = f"{x.name}.nan_to_num(0.0).clamp(-1000.0, 1000.0)"
        if self.chance(0.5):
            self.new(x.shape, dtype, f"{source}.to({dtype}, copy=True)")
            return
        targets = [
            v for v in self.variables if broadcast(v.shape, x.shape) == v.shape and v is not x
        ]
        if targets:
            target = self.choose.choice(targets)
            if target.dtype == torch.int64 and x.dtype.is_floating_point:
                return
            self.write(target, [x], f"{target.name}.copy_({x.name})", "bits", "")

    def fill(self) -> None:
        x = self.some()
        number = self.number(x.dtype)
        if x.dtype == torch.int64 and isinstance(number, float):
            return
        text = f"{x.name}.zero_()" if self.chance(0.3) else f"{x.name}.fill_({written(number)})"
        self.write(x, [], text, "bits", "")

    def several(self) -> None:
        """One operation over a list of tensors."""
        x = self.floating()
        if x is None:
            return
        same = [v for v in self.variables if v.dtype == x.dtype and v.writable and v.alone]
        if len(same) < 2:
            return
        chosen = self.choose.sample(same, min(3, len(same)))
        names = ", ".join(v.name for v in chosen)
        number = written(self.number(x.dtype))
        name = self.choose.choice(["add", "mul", "div"])
        # mul_ takes a number of a list's call rounded to half precision, that of others as it is.
        check = "close" if x.dtype in HALVES else "bits"
        self.emit(f"torch._foreach_{name}_([{names}], {number})", f"({names})", check)

    # Views.

    def slice(self) -> None:
        x = self.some()
        if not x.shape:
            return
        axis = self.choose.randrange(len(x.shape))
        size = x.shape[axis]
        kind = self.choose.randrange(4)
        before = ":, " * axis
        shape = list(x.shape)
        if kind == 0 and size > 0:
            index = self.choose.randrange(size)
            del shape[axis]
            expression = f"{x.name}.select({axis}, {index})"
        elif kind == 1:
            step = self.choose.randint(2, 3)
            shape[axis] = (size + step - 1) // step
            expression = f"{x.name}[{before}::{step}]"
        else:
            low = self.choose.randint(0, size)
            high = self.choose.randint(low, size)
            shape[axis] = high - low
            expression = f"{x.name}[{before}{low}:{high}]"
        self.view(x, tuple(shape), expression, True)

    def turn(self) -> None:
        x = self.some()
        shape = x.shape
        rank = len(shape)
        if rank >= 2 and self.chance(0.6):
            order = self.choose.sample(range(rank), rank)
            self.view(x, tuple(shape[i] for i in order), f"{x.name}.permute({order})", True)
        elif rank < 4 and self.chance(0.4):
            axis = self.choose.randint(0, rank)
            wider = (*shape[:axis], 1, *shape[axis:])
            self.view(x, wider, f"{x.name}.unsqueeze({axis})", True)
        elif rank and 1 in shape:
            self.view(x, tuple(s for s in shape if s != 1), f"{x.name}.squeeze()", True)
        elif rank == 2 and shape[0] == shape[1]:
            self.view(x, (shape[0],), f"{x.name}.diagonal()", True)
        elif rank >= 1:
            # May be a view or a copy.
            self.view(x, (numel(shape),), f"{x.name}.reshape(-1)", True)
            self.variables[-1].numel = None

    def expand(self) -> None:
        x = self.some()
        fitting = [s for s in self.shapes if broadcast(s, x.shape) == s and s != x.shape]
        if fitting:
            shape = self.choose.choice(fitting)
            self.view(x, shape, f"{x.name}.expand({shape})", False)

    def restride(self) -> None:
        """Any sizes and strides within the storage: elements may overlap."""
        x = self.some()
        if x.numel is None or x.numel == 0:
            return
        offset = self.choose.randrange(x.numel)
        shape, strides, last = [], [], offset
        for _ in range(self.choose.randint(1, 2)):
            stride = self.choose.choice([0, 1, 1, 2, 3, 5])
            most = (x.numel - 1 - last) // stride + 1 if stride else 4
            size = self.choose.randint(1, max(1, min(most, 12)))
            last += (size - 1) * stride
            shape.append(size)
            strides.append(stride)
        writable = len(shape) == 1 and (strides[0] != 0 or shape[0] == 1)
        text = f"{x.name}.as_strided({shape}, {strides}, {offset})"
        self.view(x, tuple(shape), text, writable)

    # Frees, flushes, streams.

    def drop(self, x: Variable) -> None:
        if len(self.variables) <= 2:
            return
        self.variables.remove(x)
        kind = self.choose.randrange(10)
        if kind < 8:
            self.emit(f"del {x.name}")
            return
        wait = kind == 8
        self.emit(f"held = [{x.name}]; del {x.name}; elsewhere(held.clear, wait={wait})")

    def free(self) -> None:
        self.drop(self.choose.choice(self.variables))

    def interrupt(self) -> None:
        """Something that makes the window run, rarely what takes long."""
        if self.chance(0.5):
            return
        x = self.some().name
        text = self.choose.choices(
            [
                "flush()", "synchronize()", "event()", "wait_event()", f"read({x})", f"item({x})",
                f"delegated({x})", f"address({x})", f"storage_address({x})",
                "use_stream(0)", "use_stream(1)", "wait_stream(1)", "run_out_of_memory()", "fork()",
                "fill_window", f"look({x})", "look_away()", f"give_address({x})",
            ],
            [5, 3, 3, 2, 4, 3, 4, 2, 1, 3, 3, 2, 1, 0.15, 0.4, 3, 2, 0.5],
        )[0]  # fmt: skip
        if text == "fill_window":
            whole = [v for v in self.variables if v.writable and v.dtype == torch.float32]
            if not whole:
                return
            text = f"fill_window({whole[0].name})"
        self.emit(text)


STEPS: list[Callable[[Generator], None]] = []
STEP_WEIGHTS: list[float] = []
for _step, _weight in {
    Generator.unary: 16,
    Generator.binary: 34,
    Generator.scaled: 4,
    Generator.power: 3,
    Generator.activation: 4,
    Generator.backward: 1,
    Generator.comparison: 4,
    Generator.logical: 2,
    Generator.where: 5,
    Generator.clamp: 4,
    Generator.three: 6,
    Generator.convert: 5,
    Generator.fill: 3,
    Generator.several: 1,
    Generator.slice: 7,
    Generator.turn: 4,
    Generator.expand: 2,
    Generator.restride: 2,
    Generator.make: 2,
    Generator.free: 8,
    Generator.interrupt: 4,
}.items():
    STEPS.append(_step)
    STEP_WEIGHTS.append(_weight)


def castable(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether an operation may write a result of one dtype to a tensor of another."""
    return KIND[source] <= KIND[target] and (target != torch.bool or source == torch.bool)


def program(seed: int) -> list[Line]:
    """The program of a seed."""
    return Generator(seed).program()


# ------------------------------------------------------------------------------------------------
# Running and comparing.


class Mismatch(AssertionError):
    """Two runs of a program have different results."""


def finals(names: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a program's variables, on the CPU."""
    return {
        name: value.cpu()
        for name, value in names.items()
        if name[0] == "t" and isinstance(value, torch.Tensor)
    }


INTEGER_OF = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and bits; NaN at the same places."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    whole = INTEGER_OF[a.dtype.itemsize]
    if a.numel() == 0 or torch.equal(a.contiguous().view(whole), b.contiguous().view(whole)):
        return True
    nan = a.isnan()
    if not torch.equal(nan, b.isnan()):
        return False
    a, b = a.masked_fill(nan, 0), b.masked_fill(nan, 0)
    return torch.equal(a.contiguous().view(whole), b.contiguous().view(whole))


@dataclass
class Result:
    """What is left of a program: its tensors on the CPU, and what it read on the way."""

    tensors: dict[str, torch.Tensor]
    seen: list[Any]


def run(code: Any, device: str = DEVICE) -> Result:
    """Runs a compiled program."""
    world = World(device)
    names = world.names()
    try:
        exec(code, names)
    finally:
        world.finish()
    return Result(finals(names), world.seen)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and same_bits(a, b)
    return repr(a) == repr(b)  # numbers: -0.0 is not 0.0, nan is nan


def compare(fused: Result, eager: Result) -> None:
    """Raises Mismatch unless two runs have the same results."""
    if fused.tensors.keys() != eager.tensors.keys():
        raise Mismatch(f"variables {sorted(fused.tensors)} and {sorted(eager.tensors)}")
    for name, tensor in fused.tensors.items():
        if not same_bits(tensor, eager.tensors[name]):
            raise Mismatch(f"{name} is\n{tensor}\neager\n{eager.tensors[name]}")
    if len(fused.seen) != len(eager.seen):
        raise Mismatch(f"{len(fused.seen)} and {len(eager.seen)} values read")
    for index, (one, other) in enumerate(zip(fused.seen, eager.seen, strict=True)):
        if not same(one, other):
            raise Mismatch(f"value {index} read is\n{one}\neager\n{other}")


def big(x: torch.Tensor) -> torch.Tensor:
    return x.double().abs()


def small(x: torch.Tensor) -> torch.Tensor:
    return x.double().abs().clamp_min(1e-300)


TOLERANCE = {
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}  # torch.testing.assert_close's, relative and absolute


def close_enough(
    mine: torch.Tensor, wanted: torch.Tensor, line: Line, scale: torch.Tensor | float
) -> bool:
    """Whether the device's result of a line is the CPU's, as closely as the line's check says."""
    if mine.dtype != wanted.dtype or mine.shape != wanted.shape:
        return False
    if line.check == "bits" or not wanted.dtype.is_floating_point:
        return same_bits(mine, wanted)
    if line.check == "values":
        return torch.equal(mine.nan_to_num(7.5), wanted.nan_to_num(7.5))
    relative, absolute = TOLERANCE[wanted.dtype]
    a, b = mine.double(), wanted.double()
    reach = torch.finfo(wanted.dtype).max / 8
    bound = absolute + relative * torch.maximum(b.abs(), torch.as_tensor(scale).double())
    fine = ((a - b).abs() <= bound) | (a == b) | (a.isnan() & b.isnan())
    # Where a value on the way leaves the range of the dtype, or nearly, anything may become of it.
    return bool((fine | ~(torch.as_tensor(scale).double() < reach)).all())


def compare_with_cpu(lines: list[Line]) -> Result:
    """Runs a program in eager mode and on the CPU, line by line on equal operands.

    Returns:
        the result of eager mode.

    Raises:
        Mismatch: a line gives something else on the CPU.
    """
    worlds = World(DEVICE), World("cpu")
    mine, theirs = (world.names() for world in worlds)
    theirs_seen = worlds[1].seen
    theirs_too = {"big": big, "small": small}
    with hologram.eager():
        try:
            for number, line in enumerate(lines):
                code = compile(line.text, f"line {number}", "exec")
                scale = eval(line.scale, {**theirs, **theirs_too}) if line.scale else 0.0
                exec(code, mine)
                exec(code, theirs)
                refused = line.text.startswith("attempt") and theirs_seen[-1] != "no error"
                if line.target is None or refused:
                    continue
                targets = [t.strip(" ()") for t in line.target.split(",")]
                for name in targets:
                    result, wanted = mine[name].cpu(), theirs[name]
                    layouts = mine[name].stride(), wanted.stride()
                    if layouts[0] != layouts[1]:
                        raise Mismatch(f"{line.text}\nstrides {layouts[0]}, CPU {layouts[1]}")
                    if not close_enough(result, wanted, line, scale):
                        raise Mismatch(f"{line.text}\ngives\n{result}\non the CPU\n{wanted}")
                    if line.check != "bits":
                        theirs[name].copy_(result)
        finally:
            for world in worlds:
                world.finish()
        ours = Result(finals(mine), worlds[0].seen)
    for index, (one, other) in enumerate(zip(worlds[0].seen, worlds[1].seen, strict=True)):
        if not same(one, other):
            raise Mismatch(f"value {index} read is\n{one}\non the CPU\n{other}")
    return ours


@dataclass
class Totals:
    """What programs did: programs run, and of their fused runs the instructions and the passes over
    memory; flushes of all runs by reason."""

    programs: int = 0
    executed: int = 0
    passes: int = 0
    flushes: Counter = field(default_factory=Counter)

    def add(self, fused: bool) -> None:
        counts = hologram.stream_stats()
        hologram.reset_stream_stats()
        self.programs += fused
        self.executed += fused * counts["executed"]
        self.passes += fused * counts["passes"]
        for name, count in counts.items():
            if count and name.startswith("flushes."):
                self.flushes[name.removeprefix("flushes.")] += count


def check(lines: list[Line], with_cpu: bool, totals: Totals | None = None) -> None:
    """Raises Mismatch unless the program has one result in every mode."""
    totals = Totals() if totals is None else totals
    code = compile(text_of(lines), "program", "exec")
    hologram.reset_stream_stats()
    fused = run(code)
    totals.add(True)
    eager = None
    if with_cpu:
        try:
            eager = compare_with_cpu(lines)
        except RuntimeError as error:
            # The derivative of gelu on the CPU, of a gradient whose elements overlap.
            if "could not construct a memory descriptor" not in str(error):
                raise
    if eager is None:
        with hologram.eager():
            eager = run(code)
    totals.add(False)
    compare(fused, eager)


def text_of(lines: list[Line]) -> str:
    return "\n".join(line.text for line in lines) + "\n"


def shrink(lines: list[Line], fails: Callable[[list[Line]], bool]) -> list[Line]:
    """Leaves out lines while the program fails: halves first, then ever smaller parts."""
    size = len(lines) // 2
    while size >= 1:
        start, shorter = 0, False
        while start < len(lines):
            candidate = lines[:start] + lines[start + size :]
            if candidate and fails(candidate):
                lines, shorter = candidate, True
            else:
                start += size
        size = size if shorter and size == 1 else size // 2
    return lines


def fails_alike(with_cpu: bool) -> Callable[[list[Line]], bool]:
    """Whether a program still has different results; one that does not run at all has not."""

    def fails(lines: list[Line]) -> bool:
        for _ in range(3):  # what depends on the moment at which another thread frees
            try:
                check(lines, with_cpu)
            except Mismatch:
                return True
            except Exception:
                return False
        return False

    return fails


def report(seed: int, lines: list[Line], error: str) -> str:
    """A failing program, as it can be run."""
    header = f"# seed {seed}: python test/programs.py {seed}\n" if seed >= 0 else ""
    start = 'from programs import World\n\nglobals().update(World("hologram").names())\n'
    return f"{error}\n\n{header}{start}{text_of(lines)}"


def has_cpu_run(seed: int) -> bool:
    """One program in ten is compared with the CPU too."""
    return seed % 10 == 0


def check_seed(seed: int, totals: Totals | None = None) -> None:
    """Runs the program of a seed and counts what it did.

    Raises:
        AssertionError: it fails; the message has the program, shrunk and whole.
    """
    lines = program(seed)
    with_cpu = has_cpu_run(seed)
    try:
        check(lines, with_cpu, totals)
    except Mismatch as error:
        short = shrink(lines, fails_alike(with_cpu))
        message = report(seed, short, f"{error}\n\nShrunk to {len(short)} of {len(lines)} lines:")
        raise AssertionError(f"{message}\nThe whole program:\n{text_of(lines)}") from None
    except Exception as error:
        raise AssertionError(report(seed, lines, f"{type(error).__name__}: {error}")) from error


def check_seeds(seeds: Iterable[int]) -> Totals:
    """Runs the programs of many seeds; raises AssertionError with the first that fails."""
    totals = Totals()
    hologram.flush()
    for seed in seeds:
        check_seed(seed, totals)
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=1)
    options = parser.parse_args()
    if options.count == 1:
        print(text_of(program(options.seed)))
    try:
        totals = check_seeds(range(options.seed, options.seed + options.count))
    except AssertionError as error:
        print(error)
        return 1
    print(totals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
