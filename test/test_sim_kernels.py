"""The simulated device of test/sim where its groups are kernels of csrc/gpu, on an emulator.

`make test-sim KERNELS=cuda` runs other tests on it; here are random programs, and what is to be
known of the device: that its kernels are what computes. `make test` runs 400 programs, 50 to a
library of emitted kernels, HOLOGRAM_TEST_FULL=1 20,000; HOLOGRAM_TEST_KERNEL_PROGRAMS sets the
number.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from common import HologramTestCase
from sim_device import run_on_sim
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

FULL = os.environ.get("HOLOGRAM_TEST_FULL") == "1"
COUNT = int(os.environ.get("HOLOGRAM_TEST_KERNEL_PROGRAMS", "20000" if FULL else "400"))
EACH = 100  # programs of a test
PRELUDES = ("cuda", "metal")

IMPORTS = f"""
import sys
import torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
import programs
from sim_device import compile_kernels, refusals, runs_of_groups, unexpected_refusals
"""

# Every program twice: on cold kernels, while those that it should have had are noted, and, once
# these are one library, on them. Fused and eager kernels can be wrong alike, so each is compared
# with the CPU.
PROGRAMS = """
for first in range({first}, {last}, 50):
    seeds = range(first, min(first + 50, {last}))
    programs.check_seeds(seeds, with_cpu=True)
    before = runs_of_groups()
    assert compile_kernels() > 0
    programs.check_seeds(seeds, with_cpu=True)
    emitted, cold, cpu = (b - a for a, b in zip(before, runs_of_groups()))
    # What is aligned in another way than before has another kernel.
    assert emitted > 5 * cold, (emitted, cold)
    assert cpu == 0 or refusals(), cpu
assert unexpected_refusals() == []
"""

NO_F64 = "cannot compute the group on the device: it has no f64"
DOUBLES = """
x = torch.arange(2000.0, device="hologram")
assert (x * 2 + 1).sum().item() == 2000 * 2000
by_f32 = runs_of_groups()
assert (x.double() * 2 + 1).sum().item() == 2000 * 2000
by_f64 = [b - a for a, b in zip(by_f32, runs_of_groups())]
emitted, cold, cpu = by_f32
assert (emitted > 0, cold > 0, cpu) == ({emitted}, not {emitted}, 0), by_f32
assert (by_f64[2] > 0) == ({prelude!r} == "metal"), by_f64
assert refusals() == ([{no_f64!r}] if {prelude!r} == "metal" else []), refusals()
"""


class TestKernels(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.assertIsNotNone(shutil.which("clang++-19"), "clang++-19 compiles the kernels")

    @parametrize("emitted", [False, True])
    @parametrize("prelude", PRELUDES)
    def test_which_code_computes(self, prelude, emitted):
        run_on_sim(
            IMPORTS + DOUBLES.format(prelude=prelude, emitted=emitted, no_f64=NO_F64),
            HOLOGRAM_TEST_SIM_KERNELS=prelude,
            HOLOGRAM_TEST_SIM_EMITTED=int(emitted),
        )

    @parametrize("part", range(-(-COUNT // (EACH * len(PRELUDES)))))
    @parametrize("prelude", PRELUDES)
    def test_random_programs(self, prelude, part):
        # Those of a prelude are no other's.
        first = PRELUDES.index(prelude) * COUNT + part * EACH
        program = PROGRAMS.format(first=first, last=first + EACH)
        run_on_sim(
            IMPORTS + program,
            HOLOGRAM_TEST_SIM_KERNELS=prelude,
            HOLOGRAM_TEST_SIM_EMITTED="later",
            HOLOGRAM_TEST_SIM_DELAY=0,
        )


instantiate_parametrized_tests(TestKernels)

if __name__ == "__main__":
    run_tests()
