"""A chain at one size: what is measured, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from chains.contenders import CASTS, EAGER, INDUCTOR

NO_GRAD, GRAD = "no_grad", "grad"

# Of ratios; the means are of speed-ups.
AS_FAST = 1.05  # "or better" means within 5 %
EAGER_MEAN, INDUCTOR_MEAN = 4.0, 1.5
SMALL_INDUCTOR = 0.5  # at N <= 1e3
HAND_BOUND = 1.25


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


def with_ratio(cells: list[Cell], other: str) -> list[Cell]:
    return [cell for cell in cells if other in cell.ratios]
