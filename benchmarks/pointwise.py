"""Every recorded pointwise operator alone against torch on the CPU: one thread, N = 1e3, 1e5, 1e6.

    python benchmarks/pointwise.py                   measure, print the worst ten, write results/
    python benchmarks/pointwise.py --quick -k gelu   a short look at some; writes nothing

A cell is an overload, a dtype and a size. Its speed is (time of torch on the CPU) / (time on the
device), above 1 is faster: the ratio of two medians of interleaved samples, each call followed by
synchronize(). A cell below 0.95 is measured again in a fresh process, and the better figure counts.
Exit status 1 when fewer than nine cells of ten reach 0.97, or one is below 0.90.

The overloads are those of the dispatcher that have a kernel of the device and, called with tensors
of one size, record instructions. In-place ones work on copies that are made anew, untimed.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from tqdm import tqdm

from torch_hologram import _C

RESULTS = Path(__file__).parent / "results"
SIZES = (1_000, 100_000, 1_000_000)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
PAIRS, QUICK_PAIRS = 9, 5
GOAL, LEAST, SHARE = 0.97, 0.90, 0.9
AGAIN = 0.95  # a slower cell is measured in a fresh process too
WORST = 10
NUMBERS = (0.3, 0.7)  # for the numbers of a call; of one only the last
MORE_NUMBERS = {"pow": ("2",)}  # where a number chooses what is computed


@dataclass(frozen=True)
class Call:
    """An overload and how it is called. `arguments` is Python source over the operands' names."""

    overload: str
    label: str
    function: str
    operands: tuple[str, ...]
    arguments: str
    written: str  # the operand it writes, or ""
    conditions: tuple[str, ...]  # the operands that have to be bool


@dataclass
class Cell:
    """The speed of one call; `again` is that of the second process, 0 where there was none."""

    label: str
    dtype: str
    size: int
    cpu: float  # microseconds
    device: float
    speed: float
    again: float = 0.0

    @property
    def best(self) -> float:
        return max(self.speed, self.again)

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.label, self.dtype, self.size)


def python_function(schema: Any) -> str:
    """Where Python has the operator: as people call it, which is quicker than torch.ops."""
    name = schema.name.removeprefix("aten::")
    for module in ("torch", "torch._C._nn"):
        if hasattr(eval(module), name):
            return f"{module}.{name}"
    if hasattr(torch.Tensor, name):
        return f"torch.Tensor.{name}"
    return f"torch.ops.aten.{name}.{schema.overload_name or 'default'}"


def choices(name: str, argument: Any, number: float) -> list[str | None]:
    """The values to call an argument with, as source; None leaves it out."""
    kind = str(argument.type)
    if kind == "Optional[number]":  # the bounds of clamp
        return [repr(number)]
    if kind in ("number", "float"):
        more = MORE_NUMBERS.get(name.strip("_"), ())
        return [None, repr(number)] if argument.has_default_value() else [repr(number), *more]
    if argument.name == "approximate":
        return ["'none'", "'tanh'"]
    return [None] if argument.has_default_value() else []


def calls_of(schema: Any) -> Iterator[Call]:
    """The calls of an overload that might be pointwise, with every choice of its numbers."""
    operands: list[str] = []
    conditions: list[str] = []
    written = ""
    parts: list[list[str | None]] = [[]]
    name = schema.name.removeprefix("aten::")
    count = sum("number" in str(a.type) for a in schema.arguments)
    numbers = list(NUMBERS[-count:]) if 0 < count <= len(NUMBERS) else []
    for argument in schema.arguments:
        prefix = f"{argument.name}=" if argument.kwarg_only else ""
        if str(argument.type) == "Tensor":
            operand = f"x{len(operands)}"
            operands.append(operand)
            if argument.name == "condition":
                conditions.append(operand)
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = operand
            values: list[str | None] = [operand]
        else:
            is_number = "number" in str(argument.type)
            number = numbers.pop(0) if is_number and numbers else NUMBERS[-1]
            values = choices(name, argument, number)
        parts = [
            [*part, None if value is None else prefix + value] for part in parts for value in values
        ]
    if not operands or len(operands) > 5:
        return
    function = python_function(schema)
    overload = name + (f".{schema.overload_name}" if schema.overload_name else "")
    for part in parts:
        given = [value for value in part if value is not None]
        extra = [value for value in given if value.split("=")[-1] not in operands]
        label = f"{overload}({', '.join(extra)})" if extra and len(parts) > 1 else overload
        yield Call(
            overload,
            label,
            function,
            tuple(operands),
            ", ".join(given),
            written,
            tuple(conditions),
        )


def tensors_of(
    call: Call, dtype: torch.dtype, size: int, device: torch.device, signed: bool = True
) -> dict[str, torch.Tensor]:
    """Operands of uniform 0.1..0.9, `signed` with both signs, or truth values; equal everywhere."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name in call.operands:
        value = torch.rand(size, generator=generator) * 0.8 + 0.1
        coin = torch.rand(size, generator=generator) > 0.5
        if dtype == torch.bool or name in call.conditions:
            made[name] = coin.to(device)
        else:
            made[name] = (torch.where(coin & signed, -value, value)).to(dtype).to(device)
    return made


def is_defined(call: Call, dtype: torch.dtype) -> bool:
    """Whether operands of both signs have finite results."""
    operands = tensors_of(call, dtype, 1000, torch.device("cpu"))
    result = eval(f"{call.function}({call.arguments})", {**operands, "torch": torch})
    return bool(result.isfinite().all())


def compile_loop(call: Call, finish: Callable[[], None]) -> Callable[[list[Any]], None]:
    source = (
        f"def loop(calls):\n"
        f"    for {', '.join(call.operands)}, in calls:\n"
        f"        result = function({call.arguments})\n"
        f"        finish()\n"
    )
    names: dict[str, Any] = {"function": eval(call.function), "finish": finish}
    exec(source, names)
    loop: Callable[[list[Any]], None] = names["loop"]
    return loop


def is_recorded(call: Call, dtype: torch.dtype) -> bool:
    """Whether the call records instructions, as this overload, and gives a tensor of its size."""
    device = torch.device("hologram")
    operands = tensors_of(call, dtype, 100, device)
    names = {**operands, "torch": torch}
    torch.hologram.reset_fallback_report()
    _C.reset_stream_stats(0)
    try:
        result = eval(f"{call.function}({call.arguments})", names)
        torch.hologram.synchronize()
    except Exception:  # not an operator of tensors of one size and dtype
        return False
    report = torch.hologram.fallback_report()
    served = [row for row in report if row.operator == f"aten::{call.overload}"]
    return (
        isinstance(result, torch.Tensor)
        and result.numel() == 100
        and dict(_C.stream_stats(0))["recorded"] > 0
        and [row.kind for row in served] == ["native"]
        and report.calls("delegated") == 0
    )


def cells_to_measure(wanted: str) -> list[tuple[Call, str, int]]:
    """Every call that records, with its dtypes: those of DTYPES, or bool where there are none."""
    cells = []
    for name, kind in sorted(_C.operator_table()):
        base, _, overload = name.removeprefix("aten::").partition(".")
        if kind != "native" or not name.startswith("aten::") or wanted not in name:
            continue
        schema = getattr(getattr(torch.ops.aten, base), overload or "default")._schema
        for call in calls_of(schema):
            dtypes = [d for d, dtype in DTYPES.items() if is_recorded(call, dtype)]
            if not dtypes and is_recorded(call, torch.bool):
                dtypes = ["bool"]
            cells += [(call, dtype, size) for dtype in dtypes for size in SIZES]
    return cells


class Side:
    """One device's half of a cell: samples of its time per call."""

    def __init__(
        self, call: Call, dtype: torch.dtype, size: int, device: torch.device, signed: bool
    ):
        self.operands = tensors_of(call, dtype, size, device, signed)
        self.written = call.written
        count = max(1, min(64, 400_000 // size))
        self.fresh = (
            [self.operands[call.written].clone() for _ in range(count)] if call.written else []
        )
        self.calls = []
        for i in range(count):
            named = dict(self.operands)
            if call.written:
                named[call.written] = self.fresh[i]
            self.calls.append(tuple(named[name] for name in call.operands))
        self.loop = compile_loop(call, common.finish_on(device))
        self.finish = common.finish_on(device)

    def seconds(self, rounds: int, clock: Callable[[], float]) -> float:
        """Per call."""
        total = 0.0
        for _ in range(rounds):
            for tensor in self.fresh:
                tensor.copy_(self.operands[self.written])
            self.finish()
            begin = clock()
            self.loop(self.calls)
            total += clock() - begin
        return total / (rounds * len(self.calls))


def measure(call: Call, dtype: str, size: int, quick: bool, clock: Callable[[], float]) -> Cell:
    kind = DTYPES.get(dtype, torch.bool)
    signed = is_defined(call, kind)
    sides = [Side(call, kind, size, torch.device(d), signed) for d in ("cpu", "hologram")]
    least = common.SAMPLE_SECONDS / (4 if quick else 1)
    once = [min(side.seconds(1, clock) for _ in range(3)) for side in sides]
    rounds = max(1, round(least / (max(min(once), 1e-7) * len(sides[0].calls))))
    samples: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    for pair in range(QUICK_PAIRS if quick else PAIRS):
        for i in (0, 1) if pair % 2 else (1, 0):
            samples[i].append(sides[i].seconds(rounds, clock))
    cpu, device = (1e6 * float(np.median(values)) for values in samples)
    speed = float(np.median(np.array(samples[0]) / np.array(samples[1])))
    return Cell(call.label, dtype, size, cpu, device, speed)


def measure_all(arguments: argparse.Namespace) -> list[Cell]:
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    torch.set_num_threads(1)
    wanted = cells_to_measure(arguments.k)
    if arguments.cells:
        keys = {tuple(key) for key in arguments.cells}
        wanted = [cell for cell in wanted if (cell[0].label, cell[1], cell[2]) in keys]
    with torch.no_grad():
        return [
            measure(call, dtype, size, arguments.quick, clock)
            for call, dtype, size in tqdm(wanted, desc="operators", file=sys.stderr)
        ]


def measure_again(cells: list[Cell], arguments: argparse.Namespace) -> None:
    """Cells below AGAIN, in a fresh process."""
    slow = [cell for cell in cells if cell.speed < AGAIN]
    if not slow:
        return
    command = [sys.executable, __file__, "--worker", json.dumps([cell.key for cell in slow])]
    command += ["-k", arguments.k]
    command += ["--cpu-time"] if arguments.cpu_time else []
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    speeds = {Cell(**cell).key: Cell(**cell).speed for cell in json.loads(output)}
    for cell in slow:
        cell.again = speeds.get(cell.key, 0.0)


HEADER = ("overload", "dtype", "N", "torch cpu", "device", "speed", "again", "")


def lines_of(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    return [
        (
            cell.label,
            cell.dtype,
            f"{cell.size:.0e}".replace("e+0", "e"),
            common.format_time(cell.cpu),
            common.format_time(cell.device),
            f"{cell.speed:.2f}",
            f"{cell.again:.2f}" if cell.again else "",
            "FAIL" if cell.best < LEAST else "",
        )
        for cell in cells
    ]


def summary(cells: Sequence[Cell]) -> tuple[str, bool]:
    """A sentence on all cells, and whether the bounds hold."""
    best = np.array([cell.best for cell in cells])
    share, worst = float((best >= GOAL).mean()), float(best.min())
    holds = share >= SHARE and worst >= LEAST
    text = (
        f"{len(cells)} cells: {share:.1%} at {GOAL} or more (bound: {SHARE:.0%}), "
        f"slowest {worst:.2f} (bound: {LEAST:.2f}), "
        f"geometric mean {np.exp(np.log(best).mean()):.2f}: {'pass' if holds else 'FAIL'}"
    )
    return text, holds


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Per size and dtype, the cells' speeds in order."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator, NullLocator

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    colors = {1_000: "#0072b2", 100_000: "#d55e00", 1_000_000: "#009e73"}
    for size in SIZES:
        for dtype, style in (("f32", "-"), ("bf16", "--")):
            speeds = sorted(c.best for c in cells if c.size == size and c.dtype == dtype)
            if speeds:
                places = (np.arange(len(speeds)) + 0.5) / len(speeds) * 100
                label = f"{dtype}, N = {size:.0e}".replace("e+0", "e")
                axes.plot(places, speeds, style, color=colors[size], label=label)
    axes.axhline(1.0, color="0.5", linewidth=1)
    axes.axhline(LEAST, color="#b00020", linewidth=1.5, label=f"bound: {LEAST}")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator([0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.5, 2, 3, 5, 10]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(
        xlabel="cells in order of speed, %",
        ylabel="time of torch on the CPU / time on the device",
        title="Recorded operators alone, one thread",
    )
    axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_results(cells: Sequence[Cell], text: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    slowest = sorted(cells, key=lambda cell: cell.best)[:WORST]
    measured = {cell.key: cell for cell in cells}
    columns = [(dtype, size) for dtype in (*DTYPES, "bool") for size in SIZES]
    header = ("overload", "", *(f"{d} {n:.0e}".replace("e+0", "e") for d, n in columns))
    table = [
        (
            label,
            "",
            *(
                f"{measured[label, d, n].best:.2f}" if (label, d, n) in measured else ""
                for d, n in columns
            ),
        )
        for label in dict.fromkeys(cell.label for cell in cells)
    ]
    lines = [
        "# Recorded operators alone, against torch on the CPU",
        "",
        "Written by `python benchmarks/pointwise.py`. A speed is the time of torch on the CPU over",
        f"that on the device, the median of {PAIRS} interleaved pairs on one thread, every call",
        "followed by `synchronize()`; above 1 the device is faster. A cell below",
        f"{AGAIN} was measured again in a fresh process, and the better figure counts.",
        "",
        *(f"- {name}: {value}" for name, value in common.machine().items()),
        "",
        text,
        "",
        f"## The slowest {WORST}",
        "",
        common.markdown_table(HEADER, lines_of(slowest)),
        "",
        "![speeds](pointwise.png)",
        "",
        "## All",
        "",
        common.markdown_table(header, table),
        "",
    ]
    (RESULTS / "pointwise.md").write_text("\n".join(lines))
    plot(cells, RESULTS / "pointwise.png")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples, once")
    parser.add_argument("-k", default="", metavar="TEXT", help="overloads with TEXT in their name")
    parser.add_argument(
        "--cpu-time", action="store_true", help="time of the thread, not of the wall"
    )
    parser.add_argument("--all", action="store_true", help="print every cell, not the worst ten")
    parser.add_argument("--worker", dest="cells", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    cells = measure_all(arguments)
    if arguments.cells:
        print(json.dumps([asdict(cell) for cell in cells]))
        return 0
    if not arguments.quick:
        measure_again(cells, arguments)
    slowest = sorted(cells, key=lambda cell: cell.best)
    print(common.text_table(HEADER, lines_of(slowest if arguments.all else slowest[:WORST])))
    text, holds = summary(cells)
    print("\n" + text)
    if arguments.quick or arguments.k:
        return 0
    write_results(cells, text)
    print("\nwrote benchmarks/results/pointwise.md and pointwise.png")
    return not holds


if __name__ == "__main__":
    sys.exit(main())
