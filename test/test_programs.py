"""Random programs have one result in every mode: test/programs says what is compared with what.

`make test` runs 20,000 programs, HOLOGRAM_TEST_FULL=1 100,000, `make test-programs` a million.
HOLOGRAM_TEST_PROGRAMS sets the number; the sanitizers' runs take fewer.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter

import programs
import torch
from common import HOST_MEMORY, HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_hologram import _C

hologram = torch.hologram

FULL = os.environ.get("HOLOGRAM_TEST_FULL") == "1"
COUNT = int(os.environ.get("HOLOGRAM_TEST_PROGRAMS", "100000" if FULL else "20000"))
PARTS = 40 if COUNT <= 20_000 else 1000  # tests, which the processes share
EACH = -(-COUNT // PARTS)


def reasons() -> set[str]:
    """Every reason for which a program is run on this device."""
    names = (name for name in hologram.stream_stats() if name.startswith("flushes."))
    every = {name.removeprefix("flushes.") for name in names}
    # Only a vendor's kernels are launched behind the program; others are part of it, or wait.
    kind, vendor = _C.delegate_target(0)
    if kind != "launched" or vendor.startswith("cpu"):
        every -= {"kernel"}
    if not HOST_MEMORY:
        every -= {"exported"}
    # Where all streams share a queue, none is in another one's way.
    return every if hologram.get_device_properties().asynchronous else every - {"stream"}


class TestPrograms(HologramTestCase):
    @parametrize("part", range(PARTS))
    def test_one_result_in_every_mode(self, part):
        totals = programs.check_seeds(range(part * EACH, (part + 1) * EACH))
        self.assertEqual(totals.programs, EACH)
        # Were the groups small or the flushes of one kind, little would be proved.
        # Where kernels are compiled meanwhile, few programs have theirs for good so soon.
        replayed = "replays.launched" in hologram.stream_stats()
        if EACH >= 100 and replayed and os.environ.get("HOLOGRAM_COMPILE") == "0":
            self.assertGreater(totals.replays, EACH)
        if EACH >= 500:
            self.assertGreaterEqual(totals.executed / totals.passes, 3)
            if hologram.get_device_properties().backend == "cpu":
                self.assertGreater(totals.calls, EACH / 50)
            # Forks and full windows are expensive, and therefore rare: see the test below. The
            # thread's mode is the same in all of them.
            common = reasons() - {"exit", "full", "memory", "mode"}
            self.assertEqual(common - totals.flushes.keys(), set())

    def test_programs_fold(self):
        """Passes fold along rows, down them and both; most of them compute something besides.

        So do scans, to which something is computed in the same pass.
        """
        passes = fused = 0
        folds: Counter = Counter()
        scans: Counter = Counter()
        for seed in range(640):
            code = compile(programs.text_of(programs.program(seed)), f"seed {seed}", "exec")
            explanation = hologram.explain(lambda code=code: programs.run(code))
            for part in (part for flush in explanation.flushes for part in flush.passes):
                values = [line.partition(" = ")[2] for line in part.code if " = load" not in line]
                of_pass = [re.fullmatch(r"\w+\.\w+ %\d+ by (.+)", value) for value in values]
                spreads = [fold[1] for fold in of_pass if fold]
                ways = [re.fullmatch(r"cum\w+\.\w+ %\d+ (.+ rows)", value) for value in values]
                scanned = [way[1] for way in ways if way]
                scans.update(scanned)
                scans["fused"] += bool(scanned) and len(values) > len(scanned)
                passes += 1
                folds.update(spreads)
                fused += bool(spreads) and len(values) > len(spreads)
        self.assertGreater(fused, passes / 4)
        for spread in ("row", "column", "plane and column"):
            self.assertGreater(folds[spread], 10, folds)
        for way in ("along rows", "down rows", "fused"):
            self.assertGreater(scans[way], 10, scans)

    def test_every_reason_to_run_a_program(self):
        """Those of expensive lines too, each with work that is pending."""
        lines = ["t0 = data(1, (6, 8), torch.float32)"]
        calls = (
            "flush()", "synchronize()", "event()", "read(t0)", "item(t0)", "delegated(t0)",
            "step(t0)", "use_stream(0)", "address(t0)", "storage_address(t0)", "fill_window(t0)",
            "flush_denormals(t0)",
            "run_out_of_memory()", "fork()", "look(t0)",
        )  # fmt: skip
        for call in calls:
            lines += ["t0.mul_(0.5).add_(1)", call]
        lines.append("t0.mul_(0.5)")  # of memory that is looked at
        totals = programs.Totals()
        programs.check([programs.Line(text) for text in lines], False, totals)
        self.assertEqual(totals.flushes.keys(), reasons())

    def test_a_program_is_what_its_seed_says(self):
        text = programs.text_of(programs.program(1234))
        self.assertEqual(text, programs.text_of(programs.program(1234)))
        self.assertNotEqual(text, programs.text_of(programs.program(1235)))
        lengths = [len(programs.program(seed)) for seed in range(300)]
        self.assertLess(min(lengths), 10)
        self.assertGreater(max(lengths), 60)

    def test_two_threads(self):
        """Each runs programs of its own, recording into the one window of the device."""
        seeds = [range(700_000, 700_150), range(710_000, 710_150)]
        # What stops the world or belongs to the process is left out.
        alone = ("fork", "run_out_of_memory", "use_stream", "wait_stream")

        def compiled(seed: int):
            lines = [line for line in programs.program(seed) if not line.text.startswith(alone)]
            return compile(programs.text_of(lines), f"seed {seed}", "exec")

        codes = [[compiled(seed) for seed in mine] for mine in seeds]
        with hologram.eager():
            wanted = [[programs.run(code) for code in mine] for mine in codes]
        found: list[list[programs.Result]] = [[], []]
        errors: list[BaseException] = []
        start = threading.Barrier(2)

        def work(index: int) -> None:
            try:
                start.wait(60)
                found[index].extend(programs.run(code) for code in codes[index])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            self.assertFalse(thread.is_alive())
        if errors:
            raise errors[0]
        for mine, theirs, numbers in zip(found, wanted, seeds, strict=True):
            for fused, eager, seed in zip(mine, theirs, numbers, strict=True):
                try:
                    programs.compare(fused, eager)
                except programs.Mismatch as error:
                    raise AssertionError(f"seed {seed}: {error}") from None


# A world in which the fused run goes wrong where two values are subtracted from each other.
WRONG = """
import torch, sys
sys.path.insert(0, {folder!r})
import programs

right = torch.Tensor.sub_

def wrong(self, *arguments, **keywords):
    right(self, *arguments, **keywords)
    return self if torch.hologram.is_eager() else self.add_(1)

torch.Tensor.sub_ = wrong
"""


class TestHarness(HologramTestCase):
    """The comparison sees differences, and makes a failing program short."""

    def wrong_world(self, *lines: str) -> str:
        folder = os.path.dirname(os.path.abspath(__file__))
        return WRONG.format(folder=folder) + "\n".join(lines)

    def test_a_failure_is_shown_as_a_short_program(self):
        process = run_python(
            self.wrong_world(
                "text = [line for s in range(9) for line in programs.program(s)]",
                "lines = programs.program(4) + [",
                "    programs.Line('t90 = data(1, (3,), torch.float32)', 't90'),",
                "    programs.Line('t91 = t90 * 2', 't91'),",
                "    programs.Line('t91.sub_(t90)', 't91'),",
                "]",
                "programs.seeds.program = lambda seed, of_ranks: lines",
                "programs.check_seed(4)",
            ),
            check=False,
        )
        self.assertEqual(process.returncode, 1, process.stderr)
        shrunk = process.stderr.partition("Shrunk to ")[2]
        self.assertIn('World("hologram")', shrunk)
        short = shrunk.partition("names())\n")[2].partition("\n\n")[0].splitlines()
        self.assertLessEqual(len(short), 3, shrunk)
        self.assertIn("t91.sub_(t90)", short)
        self.assertIn("seed 4", shrunk)

    def test_what_counts_as_equal(self):
        zero, nan = torch.tensor([0.0]), torch.tensor([torch.nan])
        self.assertFalse(programs.same_bits(zero, -zero))
        self.assertTrue(programs.same_bits(nan, -nan))  # a NaN's sign and payload are free
        self.assertFalse(programs.same_bits(nan, zero))
        self.assertFalse(programs.same_bits(zero, zero.double()))
        self.assertFalse(programs.same_bits(torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])))
        self.assertTrue(programs.same_bits(torch.empty(0, 3), torch.empty(0, 3)))

    def test_an_ulp_is_seen_where_the_cpu_has_to_agree(self):
        exact, close = programs.Line("", "t", "bits"), programs.Line("", "t", "close")
        one, next_one = torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])
        self.assertFalse(programs.close_enough(one, next_one, exact, 0.0))
        self.assertTrue(programs.close_enough(one, next_one, close, 0.0))
        self.assertFalse(programs.close_enough(one, one + 1e-4, close, 0.0))
        self.assertTrue(programs.close_enough(one, one + 1e-4, close, torch.tensor([1e3])))

    def test_what_torch_does_not_define(self):
        """A thread of a GPU may read what another one has written, or not."""
        x = torch.zeros(12, 10, device="hologram")
        flat = x.view(-1)
        rows = x.as_strided((9, 10), (3, 1))
        for undefined in ([rows], [x[:, 1], x], [flat[1:], x[:, :5]]):
            self.assertTrue(programs.is_undefined(*undefined))
        other = torch.zeros(12, 10, device="hologram")
        for defined in ([x, other], [x, x], [x[:, 1], other[:, 1]], [x, flat]):
            self.assertFalse(programs.is_undefined(*defined))
        # What torch refuses is to be attempted.
        expanded = other[0].expand(12, 10)
        self.assertFalse(programs.is_undefined(flat[1:], flat[:-1]))
        self.assertFalse(programs.is_undefined(expanded, x))
        for refused in (lambda: expanded.add_(1), lambda: flat[1:].add_(flat[:-1])):
            self.assertRaisesRegex(RuntimeError, "unsupported operation", refused)

    def test_shrinking(self):
        lines = [programs.Line(str(number)) for number in range(60)]

        def fails(candidate: list[programs.Line]) -> bool:
            return {"7", "31", "32"} <= {line.text for line in candidate}

        short = programs.shrink(lines, fails)
        self.assertEqual([line.text for line in short], ["7", "31", "32"])


instantiate_parametrized_tests(TestPrograms)

if __name__ == "__main__":
    run_tests()
