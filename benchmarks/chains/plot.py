"""The pictures: a panel per chain and dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chains.cell import HAND_BOUND, NO_GRAD, Cell, with_ratio
from chains.contenders import CASTS, EAGER, HAND, INDUCTOR
from chains.measuring import DTYPES, THREADS


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
