"""A measured cell, and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import common
import numpy as np
import torch
from chains.contenders import EAGER, HAND
from chains.measuring import race, rounded
from chains.reference import Reference

from row_programs.case import BROADCAST, Case
from row_programs.contenders import DEVICE, contenders

# Of ratios; the means are of speed-ups.
EAGER_BOUND, BROADCAST_BOUND, HAND_BOUND = 1.0, 1 / 0.97, 1.4
EAGER_MEAN, INDUCTOR_MEAN = 2.5, 1.2


@dataclass
class Cell:
    """Microseconds per contender, and ratios device / other: [median, low, high] of 95 %."""

    group: str
    name: str
    count: int
    times: dict[str, float]
    ratios: dict[str, list[float]]

    def bound(self, other: str) -> float | None:
        """The largest accepted ratio, None where it is only reported."""
        if other == EAGER:
            return BROADCAST_BOUND if self.group == BROADCAST else EAGER_BOUND
        if other == HAND:
            return HAND_BOUND if self.count >= 1_000_000 else None
        return None

    def misses(self, other: str) -> bool:
        """By the whole interval."""
        bound = self.bound(other) if other in self.ratios else None
        return bound is not None and self.ratios[other][1] > bound


def measure(
    case: Case, reference: Reference, pairs: int, inductor: bool, clock: Callable[[], float]
) -> Cell:
    """The contenders of a case in turns, by a clock."""
    torch._dynamo.reset()
    found = contenders(case, reference, inductor, clock)
    samples = race(found, pairs)
    ratios = {}
    for other in found.keys() - {DEVICE}:
        values = [a / b for a, b in zip(samples[DEVICE], samples[other], strict=True)]
        low, high = common.bootstrap_interval(values)
        ratios[other] = [rounded(float(np.median(values))), rounded(low), rounded(high)]
    times = {name: rounded(1e6 * float(np.median(taken))) for name, taken in samples.items()}
    return Cell(case.group, case.name, case.count, times, ratios)
