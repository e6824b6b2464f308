"""Checking the programs of seeds, and showing the one that fails."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from programs.comparison import Mismatch
from programs.generator import program
from programs.line import Line, text_of
from programs.modes import Totals, check
from programs.shrinking import fails_alike, shrink


def report(seed: int, lines: list[Line], error: str) -> str:
    """A failing program, as it can be run."""
    header = f"# seed {seed}: python test/programs {seed}\n" if seed >= 0 else ""
    start = 'from programs import World\n\nglobals().update(World("hologram").names())\n'
    return f"{error}\n\n{header}{start}{text_of(lines)}"


def has_cpu_run(seed: int) -> bool:
    """One program in ten is compared with the CPU too, unless all are to be."""
    return seed % 10 == 0


def check_seed(
    seed: int,
    totals: Totals | None = None,
    with_cpu: bool | None = None,
    of_ranks: bool = False,
) -> None:
    """Runs the program of a seed and counts what it did.

    Args:
        with_cpu: whether it is compared with the CPU too; has_cpu_run(seed) where it is None.
        of_ranks: whether it is one of two ranks, of which this process is one. A program that fails
            is not shrunk then, for the other rank would not take part.

    Raises:
        AssertionError: it fails; the message has the program, shrunk and whole.
    """
    lines = program(seed, of_ranks)
    with_cpu = has_cpu_run(seed) if with_cpu is None else with_cpu
    try:
        check(lines, with_cpu, totals)
    except Mismatch as error:
        if of_ranks:
            raise AssertionError(report(-1, lines, f"seed {seed}: {error}")) from error
        short = shrink(lines, fails_alike(with_cpu))
        message = report(seed, short, f"{error}\n\nShrunk to {len(short)} of {len(lines)} lines:")
        raise AssertionError(f"{message}\nThe whole program:\n{text_of(lines)}") from None
    except Exception as error:
        raise AssertionError(report(seed, lines, f"{type(error).__name__}: {error}")) from error


def check_seeds(
    seeds: Iterable[int], with_cpu: bool | None = None, of_ranks: bool = False
) -> Totals:
    """As check_seed() of many; raises AssertionError with the first that fails."""
    totals = Totals()
    torch.hologram.flush()
    for seed in seeds:
        check_seed(seed, totals, with_cpu, of_ranks)
    return totals
