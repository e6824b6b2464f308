"""The report: the table of cells, cpu.json, cpu.md and the table of the README."""

from __future__ import annotations

import json
from dataclasses import asdict

import common

from chains.bounds import BOUND_HEADER, bound_lines
from chains.cell import NO_GRAD, Cell
from chains.chain import SIZES
from chains.contenders import CASTS, EAGER, HAND, INDUCTOR, OTHERS
from chains.core import Figures
from chains.measuring import LEAST_PAIRS, PAIRS, THREADS
from chains.paths import README, RESULTS
from chains.plot import plot
from chains.reference import FLAGS, compiler


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
  `{" ".join(FLAGS[:4])}`.

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
    core: Figures,
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
    core: Figures,
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
