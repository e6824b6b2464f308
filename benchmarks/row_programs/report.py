"""The tables of cells and bounds, and the files of a full run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import common
import numpy as np
from chains.contenders import EAGER, HAND, INDUCTOR
from chains.paths import RESULTS
from chains.reference import FLAGS, compiler

from row_programs.case import BROADCAST, REDUCTION
from row_programs.cell import EAGER_MEAN, HAND_BOUND, INDUCTOR_MEAN, Cell
from row_programs.contenders import DEVICE

OTHERS = {EAGER: "torch eager", INDUCTOR: "Inductor", HAND: "the loop by hand"}
HEADER = ("group", "cell", "device", "eager", *(f"speed / {other}" for other in OTHERS))
BOUND_HEADER = ("what", "bound", "cells", "missed", "least, or measured", "")


def cells_of(cell: Cell) -> tuple[str, ...]:
    speeds = []
    for other in OTHERS:
        if other not in cell.ratios:
            speeds.append("")
            continue
        middle, low, high = (1 / ratio for ratio in cell.ratios[other])
        text = f"{middle:.2f} ({high:.2f}..{low:.2f})"
        speeds.append(f"{text} MISS" if cell.misses(other) else text)
    times = (common.format_time(cell.times[name]) for name in (DEVICE, EAGER))
    return (cell.group, cell.name, *times, *speeds)


def speedup(cells: list[Cell], other: str, place: int = 0) -> float:
    """The geometric mean; at place 1 the upper end of the intervals."""
    return math.exp(-float(np.mean([math.log(cell.ratios[other][place]) for cell in cells])))


def each(what: str, cells: list[Cell], other: str, bound: str) -> tuple[str, ...]:
    missed = [cell for cell in cells if cell.misses(other)]
    worst = max(cells, key=lambda cell: cell.ratios[other][0])
    return (
        f"{what}, each cell",
        bound,
        str(len(cells)),
        str(len(missed)),
        f"{1 / worst.ratios[other][0]:.2f} ({worst.name}, {worst.group})",
        "MISS" if missed else "pass",
    )


def mean(what: str, cells: list[Cell], other: str, bound: float | None) -> tuple[str, ...]:
    verdict = ""
    if bound is not None:
        verdict = "MISS" if speedup(cells, other, 1) < bound else "pass"
    text = "" if bound is None else f">= {bound:.1f}"
    measured = f"{speedup(cells, other):.2f}"
    return (f"{what}, geometric mean", text, str(len(cells)), "", measured, verdict)


def bound_lines(cells: list[Cell]) -> list[tuple[str, ...]]:
    """A line for each bound, of speeds; then the means of the groups."""
    simple = (BROADCAST, REDUCTION)
    programs = [cell for cell in cells if cell.group not in simple]
    lines = []
    for what, chosen, text in (
        ("broadcasts / eager", [c for c in cells if c.group == BROADCAST], ">= 0.97"),
        ("reductions / eager", [c for c in cells if c.group == REDUCTION], ">= 1.00"),
        ("programs over rows / eager", programs, ">= 1.00"),
    ):
        if chosen:
            lines.append(each(what, chosen, EAGER, text))
    if programs:
        lines.append(mean("programs over rows / eager", programs, EAGER, EAGER_MEAN))
    compiled = [cell for cell in programs if INDUCTOR in cell.ratios]
    if compiled:
        lines.append(mean("programs over rows / Inductor", compiled, INDUCTOR, INDUCTOR_MEAN))
    by_hand = [cell for cell in cells if HAND in cell.ratios and cell.bound(HAND) is not None]
    if by_hand:
        bound = f">= {1 / HAND_BOUND:.2f}"
        lines.append(each("programs over rows / by hand, N >= 1e6", by_hand, HAND, bound))
    for group in dict.fromkeys(cell.group for cell in cells):
        for other, name in OTHERS.items():
            chosen = [c for c in cells if c.group == group and other in c.ratios]
            if chosen:
                lines.append(mean(f"{group} / {name}", chosen, other, None))
    return lines


def plot(cells: list[Cell]) -> None:
    """A panel per group: the speeds of its cells against each contender, in order."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator

    groups = list(dict.fromkeys(cell.group for cell in cells))
    colors = {EAGER: "#0072b2", INDUCTOR: "#d55e00", HAND: "#009e73"}
    figure, panels = plt.subplots(
        2, 3, figsize=(11, 6.2), sharey=True, squeeze=False, layout="constrained"
    )
    for group, axes in zip(groups, panels.flat, strict=True):
        axes.axhline(1.0, color="0.5", linewidth=1)
        for other, name in OTHERS.items():
            chosen = [c for c in cells if c.group == group and other in c.ratios]
            speeds = sorted(1 / cell.ratios[other][0] for cell in chosen)
            if speeds:
                places = (np.arange(len(speeds)) + 0.5) / len(speeds) * 100
                label = f"against {name}"
                axes.plot(places, speeds, "o-", ms=2.5, color=colors[other], label=label)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(group, fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("cells in order of speed, %")
    for axes in panels[:, 0]:
        axes.set_ylabel("speed of the device")
    handles, labels = panels[0][-1].get_legend_handles_labels()
    for axes in panels.flat:
        if len(axes.get_legend_handles_labels()[0]) > len(handles):
            handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, ncols=3, loc="outside lower center")
    figure.savefig(RESULTS / "rows.png", dpi=110)
    plt.close(figure)


def write_results(cells: list[Cell], command: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    machine = {**common.machine(), "compiler": compiler()}
    content = {"command": command, "machine": machine, "cells": [asdict(cell) for cell in cells]}
    (RESULTS / "rows.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        "# Broadcasts, reductions and programs over rows",
        "",
        f"Written by `{command}`, with one thread.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
        "A speed is the time of the other over that of the device, the median of interleaved",
        "samples with its bootstrap 95 % interval; above 1 the device is faster. Eager is torch on",
        "the CPU, Inductor the same function through `torch.compile(dynamic=False)`, warm; by hand",
        "are [loops](../reference/rows.cpp) with the math functions of the device, on its memory,",
        f"timed without Python, compiled with `{' '.join(FLAGS[:4])}`. The values of all but eager",
        "have been compared with torch's in f32. A cell misses a bound by its whole interval.",
        "",
        "## Bounds",
        "",
        common.markdown_table(BOUND_HEADER, bound_lines(cells)),
        "",
        "![speeds](rows.png)",
        "",
        "## Cells",
        "",
        common.markdown_table(HEADER, [cells_of(cell) for cell in cells]),
        "",
    ]
    (RESULTS / "rows.md").write_text("\n".join(lines))
    plot(cells)
