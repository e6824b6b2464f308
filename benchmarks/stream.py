"""Chains of pointwise operations: the stream against torch, Inductor and loops fused by hand.

    python benchmarks/stream.py                  measure, print, write results/
    python benchmarks/stream.py --only gelu      some chains (--only gelu,adam); prints only
    python benchmarks/stream.py --quick          fewer sizes and pairs; prints only
    python benchmarks/stream.py --check          measure, compare with the committed cpu.json
    python benchmarks/stream.py --passes         count operations and passes; prints only

Contenders, timed in turns in one process per thread count:

- device: the chain as it stands, on hologram, then torch.hologram.synchronize(). The results are
  alive until then: what nobody can read any more, the stream does not compute.
- eager: the same Python function on torch's CPU tensors.
- inductor, inductor casts: torch.compile of that function, warm, without and with
  emulate_precision_casts. A profile of a call proves that generated code runs and no operator.
- hand: benchmarks/reference/loops.cpp, on memory of the device.

Before a cell is timed, the values of every contender are compared with torch's; those of the hand
loop with the device's, bit for bit.

Exit status 1 when a bound is missed: by the whole 95 % interval of a cell, or, with --check, when
a ratio is more than 10 % (and its committed interval) above the committed one.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import time
import timeit
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from tqdm import tqdm

import torch_hologram  # noqa: F401  (autoload does the same; this line also works with it off)

hologram: Any = torch.get_device_module("hologram")

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
BUILD = ROOT / "build" / "benchmarks"
README = ROOT / "README.md"
REFERENCE = Path(__file__).parent / "reference" / "loops.cpp"

THREADS = (1, 2)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SIZES = (16, 1_000, 100_000, 1_000_000, 10_000_000)
PAIRS, LEAST_PAIRS = 31, 15
LONG_ROUND = 0.15  # seconds of a round from which fewer pairs are made
TOLERANCE = 1.1  # --check accepts a ratio up to this many times the committed one

EAGER, INDUCTOR, CASTS, HAND = "eager", "inductor", "inductor casts", "hand"
OTHERS = (EAGER, INDUCTOR, CASTS, HAND)
AS_FAST = 1.05  # "or better" means within 5 %
EAGER_MEAN, INDUCTOR_MEAN = 4.0, 1.5
SMALL_INDUCTOR = 0.5  # at N <= 1e3
HAND_BOUND = 1.25
NO_GRAD, GRAD = "no_grad", "grad"
GRAD_SIZES = (16, 100_000, 1_000_000)


# ---- the chains, as anybody would write them ----

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


# ---- how many passes ----


def ten_lines() -> Callable[[], Any]:
    """The step of README's "Ten lines": a small network, its backward pass, Adam."""
    x = torch.randn(64, 20, device="hologram")
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model.to("hologram")
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()  # makes the optimizer's state
    return step


def chain_program(chain: Chain) -> Callable[[], Any]:
    """A chain over 1,000 elements on the device, or as many as it is measured with."""
    count = 1000 if 1000 in chain.sizes else chain.sizes[0]
    operands = [[x.to("hologram") for x in group] for group in chain.operands(torch.float32, count)]
    return lambda: chain.call(chain.function, operands)


PASSES_HEADER = ("program", "operations", "passes", "fewer", "delegated", "bytes", "one by one")


def passes_of(name: str, program: Callable[[], Any]) -> tuple[str, ...]:
    """What a program records and in how many passes it runs, and the bytes without fusion.

    Operations are instructions of the stream, of which each would be one pass over memory; calls of
    operators that torch's kernels compute are counted beside them and are the same either way.
    """
    hologram.synchronize()
    hologram.reset_fallback_report()
    explained = hologram.explain(program)
    delegated = hologram.fallback_report().calls("delegated")
    with hologram.eager():
        hologram.reset_stream_stats()
        program()
        alone = hologram.stream_stats()
    fewer = 1 - explained.passes / explained.instructions
    return (
        name,
        f"{explained.instructions:,}",
        f"{explained.passes:,}",
        f"{100 * fewer:.4g} %",
        f"{delegated:,}",
        f"{explained.bytes_moved:,}",
        f"{alone['bytes_moved']:,}",
    )


def count_passes(chains: list[Chain]) -> None:
    """Prints the table of operations and passes."""
    rows = [passes_of(chain.name, chain_program(chain)) for chain in chains]
    rows.append(passes_of("README, ten lines: a step", ten_lines()))
    print(common.text_table(PASSES_HEADER, rows))


# ---- the contenders ----


def repetitions(seconds: Callable[[int], float]) -> int:
    """How often a contender has to run to last common.SAMPLE_SECONDS."""
    number = 1
    seconds(1)
    while True:
        elapsed = min(seconds(number), seconds(number))  # not that of an interruption
        if elapsed >= common.SAMPLE_SECONDS / 2:
            return max(1, round(number * common.SAMPLE_SECONDS / elapsed))
        number *= 4


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


class Reference:
    """The loops fused by hand, compiled for this machine."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(self.compile()))
        self.function = library.hologram_reference
        self.function.restype = ctypes.c_bool
        self.function.argtypes = [
            ctypes.c_char_p,
            ctypes.c_bool,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_long,
            ctypes.c_long,
            ctypes.POINTER(ctypes.c_float),
            ctypes.c_int,
            ctypes.c_long,
        ]
        self.width = int(library.hologram_reference_width())

    @staticmethod
    def compile() -> Path:
        """Returns the library, built anew where a source is newer."""
        BUILD.mkdir(parents=True, exist_ok=True)
        output = BUILD / "libreference.so"
        core = ROOT / "csrc"
        sources = [REFERENCE, *core.glob("cpu/*.h"), *core.glob("atlas/*.h")]
        if output.exists() and output.stat().st_mtime > max(s.stat().st_mtime for s in sources):
            return output
        command = [os.environ.get("CXX", "c++"), *REFERENCE_FLAGS, "-I", str(ROOT / "csrc")]
        subprocess.run([*command, str(REFERENCE), "-o", str(output)], check=True)
        return output

    def contender(
        self,
        chain: str,
        numbers: tuple[float, ...],
        operands: Sequence[Sequence[torch.Tensor]],
        threads: int,
    ) -> Callable[[int], float]:
        """seconds(number) of a loop over `operands`, which the host can read, in its order."""
        flat = [tensor for group in zip(*operands, strict=True) for tensor in group]
        pointers = (ctypes.c_void_p * len(flat))(*(tensor.data_ptr() for tensor in flat))
        scalars = (ctypes.c_float * 8)(*numbers)
        half = flat[0].dtype == torch.bfloat16
        name, tensors, count = chain.encode(), len(operands[0]), flat[0].numel()

        def seconds(number: int) -> float:
            start = time.perf_counter()
            known = self.function(name, half, pointers, tensors, count, scalars, threads, number)
            elapsed = time.perf_counter() - start
            if not known:
                raise RuntimeError(f"no reference loop for {chain}")
            return elapsed

        seconds.keep = flat  # type: ignore[attr-defined]  # the pointers' owners
        return seconds


REFERENCE_FLAGS = [
    "-std=c++20",
    "-O3",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
]


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


Tensors = list[torch.Tensor]


# ---- measuring ----


@dataclass
class Cell:
    """A chain at one size: microseconds per contender, and the ratios device / other.

    ratios: other -> median and 95 % interval [ratio, low, high].
    copy: GB/s of a copy of as many f32, read and written, on the same threads.
    """

    chain: str
    dtype: str
    count: int
    threads: int
    mode: str  # of autograd: no_grad, or grad: forward and backward
    traffic: int  # bytes of a loop that reads and writes everything once
    copy: float
    times: dict[str, float]
    ratios: dict[str, list[float]]

    @property
    def key(self) -> str:
        return f"{self.chain}/{self.dtype}/{self.count}/{self.mode}/{self.threads}"

    def bound(self, other: str) -> float | None:
        """The largest accepted ratio, None for a cell that is only reported."""
        if self.mode != NO_GRAD:
            return None
        if other == EAGER:
            return AS_FAST
        if other in (INDUCTOR, CASTS):
            if self.count >= 100_000:
                return AS_FAST
            return SMALL_INDUCTOR if self.count <= 1000 else None
        return HAND_BOUND if self.count in (1_000_000, 10_000_000) else None

    def misses(self, other: str) -> bool:
        bound = self.bound(other) if other in self.ratios else None
        return bound is not None and self.ratios[other][1] > bound

    def bandwidth(self, contender: str) -> float:
        """GB/s of the traffic that the chain cannot avoid."""
        return self.traffic / self.times[contender] / 1e3


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def race(found: dict[str, Callable[[int], float]], pairs: int) -> dict[str, list[float]]:
    """Seconds per run of each contender, `pairs` samples each, taken in turns."""
    numbers = {name: repetitions(seconds) for name, seconds in found.items()}
    names = list(found)
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    start = time.perf_counter()
    for turn in range(pairs):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else reversed(order):
            if numbers[name] > 4:
                found[name](1)  # its data back into the cache
            samples[name].append(found[name](numbers[name]) / numbers[name])
        if turn == 1 and (time.perf_counter() - start) / 2 > LONG_ROUND:
            pairs = min(pairs, LEAST_PAIRS)
        if turn + 1 >= pairs:
            break
    return samples


def measure(
    chain: Chain,
    dtype: str,
    count: int,
    threads: int,
    mode: str,
    pairs: int,
    copy: float,
    reference: Reference,
) -> Cell:
    torch._dynamo.reset()
    grad = mode == GRAD
    with torch.set_grad_enabled(grad):
        found = contenders(chain, DTYPES[dtype], count, threads, grad, reference)
        samples = race(found, pairs)
    ratios = {}
    for other in found.keys() - {"device"}:
        values = [a / b for a, b in zip(samples["device"], samples[other], strict=True)]
        low, high = common.bootstrap_interval(values)
        ratios[other] = [rounded(float(np.median(values))), rounded(low), rounded(high)]
    size = DTYPES[dtype].itemsize
    return Cell(
        chain.name,
        dtype,
        count,
        threads,
        mode,
        chain.traffic * size * count * chain.tensors,
        copy,
        {name: rounded(1e6 * float(np.median(taken))) for name, taken in samples.items()},
        ratios,
    )


def copy_bandwidth(reference: Reference, count: int, dtype: torch.dtype, threads: int) -> float:
    """GB/s of the copy of `count` elements, read and written, on memory of the device."""
    source, target = (torch.ones(count, dtype=dtype, device="hologram") for _ in range(2))
    copy = reference.contender("copy", (), [[source], [target]], threads)
    samples = race({"copy": copy}, LEAST_PAIRS)["copy"]
    return rounded(2e-9 * dtype.itemsize * count / float(np.median(samples)))


def measure_here(
    threads: int, chains: list[Chain], quick: bool, keys: set[str] | None
) -> list[Cell]:
    """Measures in this process, all cells of the chains or those with the given keys."""
    torch.set_num_threads(threads)
    reference = Reference()
    wanted = [
        (chain, dtype, count, mode)
        for chain in chains
        for mode in ((NO_GRAD,) if chain.results else (NO_GRAD, GRAD))
        for dtype in DTYPES
        for count in (chain.sizes if mode == NO_GRAD else GRAD_SIZES)
        if not (quick and count in (1_000, 10_000_000))
        and not (mode == GRAD and dtype != "f32")
        and (keys is None or f"{chain.name}/{dtype}/{count}/{mode}/{threads}" in keys)
    ]
    pairs = LEAST_PAIRS if quick else PAIRS if keys is None else 2 * PAIRS
    copies: dict[tuple[int, str], float] = {}
    cells = []
    for chain, dtype, count, mode in tqdm(wanted, desc=f"{threads} thread(s)", file=sys.stderr):
        size = count * chain.tensors, dtype
        if size not in copies:
            copies[size] = copy_bandwidth(reference, size[0], DTYPES[dtype], threads)
        cells.append(measure(chain, dtype, count, threads, mode, pairs, copies[size], reference))
    return cells


# ---- calls from Python, and the core ----

ADDITIONS = 64
ADD_BOUND = 0.65


def additions(threads: int, pairs: int) -> list[common.Row]:
    """Additions of two tensors of 16 floats.

    Either ADDITIONS of different operands, whose results all live until the device has computed
    them, or one after another, each waited for. Microseconds per addition.
    """

    def operands(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)
        values = torch.rand(2 * ADDITIONS, 16, generator=generator).unbind()
        moved = [value.clone().to(device) for value in values]
        return {"operands": list(zip(moved[::2], moved[1::2], strict=True))}

    group = "add of 16 floats"
    kept = "result = [torch.add(x, y) for x, y in operands]; finish()"
    apart = "for x, y in operands: result = torch.add(x, y); finish()"
    cases = [
        common.Case(group, f"{ADDITIONS} results alive", kept, operands, ADD_BOUND, ADDITIONS),
        common.Case(group, "one at a time", apart, operands, None, ADDITIONS),
    ]
    with torch.no_grad():
        return [common.measure(case, torch.device("hologram"), threads, pairs) for case in cases]


def core_figures() -> list[tuple[str, float, float | None]]:
    """Runs csrc/test/bench_window.cpp; returns what is measured, nanoseconds and bound."""
    folder = ROOT / "csrc" / "test"
    subprocess.run(["make", "-s", "-C", folder, "window-build"], check=True, stdout=sys.stderr)
    program = ROOT / "build" / "core-test" / "window" / "test"
    output = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    figures = []
    for line in output.splitlines()[2:]:
        name, nanoseconds, bound = (text.strip() for text in line.strip("|").split("|"))
        figures.append((name, float(nanoseconds), float(bound) if bound else None))
    return figures


# ---- the report ----


def size_name(count: int) -> str:
    power = len(str(count)) - 1
    return f"1e{power}" if count == 10**power >= 1000 else str(count)


HEADER = (
    "chain",
    "dtype",
    "N",
    "threads",
    "mode",
    "device",
    "eager",
    *(f"/ {other}" for other in OTHERS),
    "GB/s device",
    "hand",
    "copy",
)


def cells_of(cell: Cell) -> tuple[str, ...]:
    ratios = []
    for other in OTHERS:
        if other not in cell.ratios:
            ratios.append("")
            continue
        ratio, low, high = cell.ratios[other]
        text = f"{ratio:.2f} ({low:.2f}..{high:.2f})"
        ratios.append(f"{text} MISS" if cell.misses(other) else text)
    bandwidths: tuple[str, ...] = ("", "", "")
    if HAND in cell.times:  # elsewhere more is moved than the chain's operands
        figures = (cell.bandwidth("device"), cell.bandwidth(HAND), cell.copy)
        bandwidths = tuple(f"{figure:.3g}" for figure in figures)
    return (
        cell.chain,
        cell.dtype,
        size_name(cell.count),
        str(cell.threads),
        cell.mode,
        common.format_time(cell.times["device"]),
        common.format_time(cell.times[EAGER]),
        *ratios,
        *bandwidths,
    )


BOUND_HEADER = ("what", "bound", "cells", "missed", "worst, or measured", "")


def each(name: str, cells: list[Cell], other: str, bound: float) -> tuple[str, ...]:
    """The line of a bound that every cell has to keep."""
    missed = [cell for cell in cells if cell.misses(other)]
    worst = max(cells, key=lambda cell: cell.ratios[other][0])
    return (
        f"{name}, each cell",
        f"<= {bound:.2f}",
        str(len(cells)),
        str(len(missed)),
        f"{worst.ratios[other][0]:.2f} ({worst.key})",
        "MISS" if missed else "pass",
    )


def mean(name: str, cells: list[Cell], other: str, bound: float) -> tuple[str, ...]:
    """The line of a bound on a geometric mean of speed-ups."""
    speedup = math.exp(-float(np.mean([math.log(cell.ratios[other][0]) for cell in cells])))
    most = math.exp(-float(np.mean([math.log(cell.ratios[other][1]) for cell in cells])))
    return (
        f"{name}, geometric mean of speed-ups",
        f">= {bound:.1f}x",
        str(len(cells)),
        "",
        f"{speedup:.2f}x",
        "MISS" if most < bound else "pass",
    )


def with_ratio(cells: list[Cell], other: str) -> list[Cell]:
    return [cell for cell in cells if other in cell.ratios]


def bound_lines(
    cells: list[Cell],
    additions: list[common.Row],
    core: list[tuple[str, float, float | None]],
) -> list[tuple[str, ...]]:
    """A line for each bound; those without cells are left out."""
    cells = [cell for cell in cells if cell.mode == NO_GRAD]
    large = [cell for cell in cells if cell.count >= 100_000]
    small = [cell for cell in cells if cell.count <= 1000]
    by_hand = [cell for cell in cells if cell.bound(HAND) is not None]
    lines = []
    if cells:
        lines += [
            each("torch eager", cells, EAGER, AS_FAST),
            mean("torch eager", cells, EAGER, EAGER_MEAN),
        ]
    for other, name in ((INDUCTOR, "Inductor"), (CASTS, "Inductor, emulate_precision_casts")):
        compared = with_ratio(large, other)
        if compared:
            lines += [
                each(f"{name}, N >= 1e5", compared, other, AS_FAST),
                mean(f"{name}, N >= 1e5", compared, other, INDUCTOR_MEAN),
            ]
        compared = with_ratio(small, other)
        if compared:
            lines.append(each(f"{name}, N <= 1e3", compared, other, SMALL_INDUCTOR))
    if by_hand:
        lines.append(each("fused by hand, N = 1e6, 1e7", by_hand, HAND, HAND_BOUND))
    for row in additions:
        lines.append(
            (
                f"{row.group}, {row.name}, {row.threads} thread(s)",
                "" if row.bound is None else f"<= {row.bound:.2f}",
                "",
                "",
                f"{row.ratio:.2f} ({row.low:.2f}..{row.high:.2f})",
                row.verdict.replace("FAIL", "MISS"),
            )
        )
    for name, nanoseconds, limit in core:
        lines.append(
            (
                name,
                "" if limit is None else f"<= {limit:g} ns",
                "",
                "",
                f"{nanoseconds:.3g} ns",
                "" if limit is None else "MISS" if nanoseconds > limit else "pass",
            )
        )
    return lines


def plot(cells: list[Cell], names: dict[str, str], label: str, invert: bool, path: Path) -> None:
    """One panel per chain and dtype: a figure over N, a line per contender and thread count.

    names: contender -> label. invert: speed-up over the contender instead of the ratio of times.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    sizes: dict[str, set[int]] = {}
    for cell in cells:
        sizes.setdefault(cell.chain, set()).add(cell.count)
    chains = [chain for chain in sizes if len(sizes[chain]) > 1]
    cells = [cell for cell in cells if cell.mode == NO_GRAD]
    dtypes = list(DTYPES)
    colors = {EAGER: "#0072b2", INDUCTOR: "#d55e00", CASTS: "#cc79a7", HAND: "#009e73"}
    figure, grid = plt.subplots(
        len(dtypes),
        len(chains),
        figsize=(3.1 * len(chains), 2.7 * len(dtypes)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for row, dtype in enumerate(dtypes):
        for column, chain in enumerate(chains):
            axes = grid[row][column]
            axes.axhline(1.0, color="0.5", linewidth=1)
            for other, name in names.items():
                for threads in THREADS:
                    chosen = [
                        cell
                        for cell in cells
                        if (cell.chain, cell.dtype, cell.threads) == (chain, dtype, threads)
                        and (invert or cell.count >= 100_000)
                    ]
                    chosen = with_ratio(chosen, other)
                    ratios = np.array([cell.ratios[other] for cell in chosen]).T
                    if not ratios.size:
                        continue
                    middle, low, high = 1 / ratios[[0, 2, 1]] if invert else ratios
                    axes.errorbar(
                        [cell.count for cell in chosen],
                        middle,
                        yerr=[np.maximum(middle - low, 0), np.maximum(high - middle, 0)],
                        fmt="o-" if threads == 1 else "s--",
                        ms=3.5,
                        linewidth=1.2,
                        color=colors[other],
                        label=f"{name}, {threads} thread{'s' if threads > 1 else ''}",
                    )
            if not invert:
                axes.axhline(HAND_BOUND, color="#b00020", linewidth=1.2, label="bound")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
            axes.yaxis.set_minor_formatter(lambda value, _: "")
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(f"{chain}, {dtype}", fontsize=10)
            if row == len(dtypes) - 1:
                axes.set_xlabel("elements")
            if column == 0:
                axes.set_ylabel(label)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, ncols=6, loc="outside lower center")
    figure.savefig(path, dpi=110)
    plt.close(figure)


# ---- running it ----


def measure_apart(
    threads: int, arguments: argparse.Namespace, keys: set[str] | None = None
) -> Measured:
    """Measures in a fresh process, so that thread pools and caches start equal."""
    command = [sys.executable, __file__, "--worker", str(threads)]
    if arguments.quick or arguments.check:
        command.append("--quick")
    if arguments.only:
        command += ["--only", arguments.only]
    if keys is not None:
        command += ["--keys", json.dumps(sorted(keys))]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(BUILD / "inductor"),
        "KINETO_LOG_LEVEL": "99",  # the profiler announces itself otherwise
    }
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    content = json.loads(output)
    return (
        [Cell(**cell) for cell in content["cells"]],
        [common.Row(**row) for row in content["additions"]],
    )


Measured = tuple[list[Cell], list[common.Row]]


def measure_all(arguments: argparse.Namespace, keys: set[str] | None = None) -> Measured:
    cells, additions = [], []
    for threads in THREADS:
        if keys is None or any(key.endswith(f"/{threads}") for key in keys):
            more_cells, more_additions = measure_apart(threads, arguments, keys)
            cells += more_cells
            additions += more_additions
    return cells, additions


def check(cells: list[Cell]) -> dict[str, str]:
    """The cells that got slower: key -> which ratios, and the limits they break.

    A limit is TOLERANCE times the committed ratio, or the upper end of the committed interval
    where that was measured less sharply; a cell breaks it with its whole interval.
    """
    committed = {
        Cell(**cell).key: cell["ratios"]
        for cell in json.loads((RESULTS / "cpu.json").read_text())["cells"]
    }
    slower = {}
    for cell in cells:
        broken = []
        for other, (ratio, _, high) in committed.get(cell.key, {}).items():
            limit = max(TOLERANCE * ratio, high)
            if other in cell.ratios and cell.ratios[other][1] > limit:
                low, high = cell.ratios[other][1:]
                broken.append(f"/ {other} {low:.3f}..{high:.3f}, limit {limit:.3f}")
        if broken:
            slower[cell.key] = "; ".join(broken)
    return slower


INTRODUCTION = f"""\
The same Python functions, called from Python; the results are computed, and alive, at the end of
each run:

- **device**: on `hologram`, then `torch.hologram.synchronize()`.
- **eager**: on torch's CPU tensors.
- **inductor**, **inductor casts**: `torch.compile(dynamic=False)`, warm, without and with
  `emulate_precision_casts`, which rounds bf16 where eager does. For each cell a profile has shown
  that generated code ran and no operator. (Of the loop over 200 tensors, which takes Inductor a
  minute to compile, without only.)
- **hand**: [loops fused by hand](../reference/loops.cpp), rounding where eager rounds, with the
  math functions of the device, on memory of the device, timed without Python, compiled with
  `{" ".join(REFERENCE_FLAGS[:4])}`.

The contenders of a cell run in one process and take turns. A ratio `/ other` is the time of the
device over that of the other, the median of {LEAST_PAIRS} to {PAIRS} interleaved pairs with its
bootstrap 95 % interval; below 1 the device is faster. A cell misses a bound when the whole interval
lies beyond it; as fast means within 5 %. Before it is timed, the values of every contender are
compared with eager's, those of the hand loop with the device's, bit for bit.

GB/s: what the chain has to read and write, over its time; copy: a vectorised copy of as many
elements. The mode is autograd's: cells with `grad` are a forward and a backward, without a bound.
"""


def report(
    cells: list[Cell],
    additions: list[common.Row],
    core: list[tuple[str, float, float | None]],
    machine: dict[str, str],
) -> str:
    """The Markdown of a full run."""
    lines = [
        "# The stream on the CPU backend: chains of pointwise operations",
        "",
        "Written by `make bench` (`python benchmarks/stream.py`).",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
        INTRODUCTION,
        "## Bounds",
        "",
        common.markdown_table(BOUND_HEADER, bound_lines(cells, additions, core)),
        "",
        "The figures in nanoseconds are of the core alone (`make -C csrc/test bench-window`).",
        "",
        "![speed-up](cpu.png)",
        "",
        "![against loops fused by hand](cpu_hand.png)",
        "",
        "## Cells",
        "",
        common.markdown_table(HEADER, [cells_of(cell) for cell in cells]),
        "",
    ]
    return "\n".join(lines)


def readme_table(cells: list[Cell]) -> str:
    """Speed-ups over torch eager: a line per chain and dtype, a column per size."""
    lines: dict[tuple[str, str], list[str]] = {}
    for threads in THREADS:
        for cell in cells:
            if cell.mode == NO_GRAD and cell.threads == threads and cell.count in SIZES:
                texts = lines.setdefault((cell.chain, cell.dtype), [])
                texts.append(f"{1 / cell.ratios[EAGER][0]:.1f}")
    header = ("", "dtype", *(f"{size_name(n)}, {t} thr." for t in THREADS for n in SIZES))
    return common.markdown_table(header, [(*key, *texts) for key, texts in lines.items()]) + "\n"


def write_results(
    cells: list[Cell],
    additions: list[common.Row],
    core: list[tuple[str, float, float | None]],
) -> None:
    RESULTS.mkdir(exist_ok=True)
    machine = {**common.machine(), "compiler": compiler()}
    content = {
        "command": "make bench",
        "machine": machine,
        "core": core,
        "additions": [row.to_json() for row in additions],
        "cells": [asdict(cell) for cell in cells],
    }
    (RESULTS / "cpu.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "cpu.md").write_text(report(cells, additions, core, machine))
    others = {EAGER: "torch eager", INDUCTOR: "Inductor", CASTS: "Inductor with casts"}
    common.replace_section(README, "make bench, chains", readme_table(cells))
    plot(cells, others, "speed-up over", True, RESULTS / "cpu.png")
    plot(cells, {HAND: "device"}, "time / by hand", False, RESULTS / "cpu_hand.png")


def compiler() -> str:
    command = [os.environ.get("CXX", "c++"), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return output.splitlines()[0]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the committed ratios")
    parser.add_argument("--quick", action="store_true", help="N = 16, 1e5, 1e6 and fewer pairs")
    parser.add_argument("--passes", action="store_true", help="count passes, measure nothing")
    parser.add_argument("--only", default="", metavar="CHAINS", help="names, separated by commas")
    parser.add_argument("--worker", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    names = [name.strip() for name in arguments.only.split(",") if name.strip()]
    chains = [c for c in CHAINS if not names or any(c.name.startswith(name) for name in names)]
    if not chains and names != ["add"]:
        raise SystemExit(f"no chain of {names}; there are {[c.name for c in CHAINS]}")
    if arguments.passes:
        count_passes(chains)
        return 0
    if arguments.worker:
        keys = None if arguments.keys is None else set(arguments.keys)
        cells = measure_here(arguments.worker, chains, arguments.quick, keys)
        pairs = LEAST_PAIRS if arguments.quick else PAIRS
        rows = additions(arguments.worker, pairs) if keys is None else []
        print(
            json.dumps(
                {
                    "cells": [asdict(cell) for cell in cells],
                    "additions": [row.to_json() for row in rows],
                }
            )
        )
        return 0

    if arguments.check and not (RESULTS / "cpu.json").exists():
        raise SystemExit("there is no benchmarks/results/cpu.json to compare with: make bench")
    started = time.monotonic()
    Reference.compile()
    cells, rows = measure_all(arguments)
    core = [] if names or arguments.check else core_figures()
    lines = bound_lines(cells, rows, core)
    print(common.text_table(HEADER, [cells_of(cell) for cell in cells]))
    print("\n" + common.text_table(BOUND_HEADER, lines))
    print(f"\n{time.monotonic() - started:.0f} s")
    if arguments.check:
        slower = check(cells)
        if slower:  # a neighbour on the machine looks like a regression: measure those again
            slower = check(measure_all(arguments, set(slower))[0])
        for key, text in slower.items():
            print(f"slower than committed: {key}: {text}", file=sys.stderr)
        return bool(slower)
    if not names and not arguments.quick:
        write_results(cells, rows, core)
        print("wrote benchmarks/results/cpu.* and cpu_hand.png, and the table in README.md")
    return any(line[-1] == "MISS" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
