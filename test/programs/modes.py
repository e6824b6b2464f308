"""Running a program in every mode."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import CodeType

import torch

from programs.comparison import compare
from programs.cpu import compare_with_cpu
from programs.line import Line, text_of
from programs.world import Result, run

hologram = torch.hologram


@dataclass
class Totals:
    """What programs did: programs run, and of their fused runs the instructions, the passes over
    memory and the calls of torch's kernels; programs of the device that were replayed; flushes of
    all runs by reason."""

    programs: int = 0
    executed: int = 0
    passes: int = 0
    calls: int = 0
    replays: int = 0
    flushes: Counter = field(default_factory=Counter)

    def __iadd__(self, other: Totals) -> Totals:
        self.programs += other.programs
        self.executed += other.executed
        self.passes += other.passes
        self.calls += other.calls
        self.replays += other.replays
        self.flushes.update(other.flushes)
        return self

    def add(self, fused: bool) -> None:
        counts = hologram.stream_stats()
        hologram.reset_stream_stats()
        self.programs += fused
        self.executed += fused * counts["executed"]
        self.passes += fused * counts["passes"]
        self.calls += fused * counts["calls"]
        for name, count in counts.items():
            if count and name.startswith("flushes."):
                self.flushes[name.removeprefix("flushes.")] += count


# Runs of a program of which the last ones are replays.
REPEATS = 8


def check_repeats(code: CodeType, expected: Result, totals: Totals) -> None:
    """Runs a program again and again, which a device may replay then, now and then among other
    memory."""
    before = hologram.stream_stats().get("replays.launched")
    if before is None:  # it does not
        return
    held = []
    for number in range(REPEATS):
        if number % 3 == 2:
            held.append(torch.empty(100 << number, device="hologram"))
        compare(run(code), expected)
    totals.replays += hologram.stream_stats()["replays.launched"] - before


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
    check_repeats(code, eager, totals)
