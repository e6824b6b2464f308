"""The bounds: a line for each, with the cells that miss it."""

from __future__ import annotations

import math

import common
import numpy as np

from chains.cell import (
    AS_FAST,
    EAGER_MEAN,
    HAND_BOUND,
    INDUCTOR_MEAN,
    NO_GRAD,
    SMALL_INDUCTOR,
    Cell,
    with_ratio,
)
from chains.contenders import CASTS, EAGER, HAND, INDUCTOR
from chains.core import Figures

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


def bound_lines(
    cells: list[Cell],
    additions: list[common.Row],
    core: Figures,
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
