"""Random programs: what a seed stands for, running them, comparing, shrinking what fails.

A program is a list of Python lines that use the public API and the helpers of `World`. It depends
on its seed alone, so a failure is repeated by

    python test/programs SEED

which runs the program in every mode, prints it, and shrinks it if the results differ. With
--count N the programs SEED to SEED + N - 1 are run, in as many processes as --jobs says; the first
failure ends the run.

What is compared:
    fused with eager    Every tensor that lives at the end, every number read on the way and every
                        error, bit for bit; NaN at the same places.
    eager with the CPU  Line by line, on equal operands: after a line whose result may differ in
                        its last bits, the CPU's tensor is given the device's values. So nothing is
                        amplified, and torch's tolerances for one operation are sound. What is
                        rounded correctly has to have the CPU's bits.
"""

from programs.comparison import Mismatch, compare, same_bits
from programs.cpu import close_enough
from programs.generator import program
from programs.line import Line, text_of
from programs.modes import Totals, check
from programs.seeds import check_seed, check_seeds, has_cpu_run
from programs.sharing import is_undefined
from programs.shrinking import shrink
from programs.world import Result, World, run

__all__ = [
    "Line",
    "Mismatch",
    "Result",
    "Totals",
    "World",
    "check",
    "check_seed",
    "check_seeds",
    "close_enough",
    "compare",
    "has_cpu_run",
    "is_undefined",
    "program",
    "run",
    "same_bits",
    "shrink",
    "text_of",
]
