"""Comparing with the committed results."""

from __future__ import annotations

import json

from chains.cell import Cell
from chains.paths import RESULTS

TOLERANCE = 1.1  # --check accepts a ratio up to this many times the committed one


def slower_than_committed(cells: list[Cell]) -> dict[str, str]:
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
