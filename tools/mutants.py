"""Plant bugs in the stream, one at a time, and see that the tests catch each.

A mutant is one textual replacement in a copy of the source tree, build/mutants/source. Its text
has to be there exactly once: one that the code has outgrown fails the run instead of testing
nothing. First the core's unit tests run (no torch, seconds); where they pass, or where the bug is
in code that knows torch, the extension is built and a part of the Python tests runs.

The exit status is 0 if every mutant was caught and the tests pass without any.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from mirror import ROOT, mirror
from tqdm import tqdm

FOLDER = ROOT / "build" / "mutants"
SOURCE = FOLDER / "source"


class Mutant(NamedTuple):
    """A bug: what it is, where, and which text becomes which."""

    name: str
    path: str
    old: str
    new: str
    also: tuple[str, str] | None = None  # a second replacement in the same file

    @property
    def in_core(self) -> bool:
        """Whether the unit tests of the core compile the file."""
        return not self.path.startswith("csrc/aten/")


ALGEBRA = "csrc/atlas/algebra.cpp"
BATCHING = "csrc/atlas/batching.cpp"
DEAD_CODE = "csrc/atlas/dead_code.cpp"
GROUPING = "csrc/atlas/grouping.cpp"
ITERATION = "csrc/aten/iteration.cpp"
WINDOW = "csrc/atlas/window.cpp"
OPEN_PROGRAM = "csrc/atlas/open_program.cpp"
IMMEDIATES = "csrc/atlas/immediates.cpp"
RUNNER = "csrc/atlas/runner.cpp"
OVERLAP = "csrc/atlas/overlap.cpp"
PROGRAM = "csrc/atlas/program.cpp"

MUTANTS = (
    Mutant(
        "a value stays in flight when a part of its bytes is overwritten",
        GROUPING,
        "for (const uint16_t other : overlaps_[value.access]) states_[other].in_flight = false;",
        "",
    ),
    Mutant(
        "a store does not wait for loads of a part of its bytes",
        GROUPING,
        "for (const size_t group : states_[other].loaded_in) result.strict.push_back(root(group));",
        "",
    ),
    Mutant(
        "a load does not wait for stores to a part of its bytes",
        GROUPING,
        "if (states_[other].latest != kNoValue) result.push_back(states_[other].latest);",
        "static_cast<void>(other);",
    ),
    Mutant(
        "liveness off by one: the last access of a program counts as dead",
        GROUPING,
        "for (size_t access = 0; access < states_.size(); ++access) {\n      const ValueId id",
        "for (size_t access = 0; access + 1 < states_.size(); ++access) {\n      const ValueId id",
    ),
    Mutant(
        "operands of sub and div are sorted like those of add",
        ALGEBRA,
        "op_info(node.op).has(kCommutative) && node.b < node.a",
        "op_info(node.op).arity == 2 && node.b < node.a",
    ),
    Mutant(
        "all numbers of a group share one slot",
        DEAD_CODE,
        "node.a = static_cast<uint16_t>(member.immediates.size() - 1);",
        "node.a = 0;",
    ),
    Mutant(
        "of two stores of equal values the second is dropped",
        DEAD_CODE,
        "if (!values[id].wanted) continue;",
        "if (!values[id].wanted || live[values[id].node]) continue;",
    ),
    Mutant(
        "values are equal if their first operands are",
        GROUPING,
        "old.a == node.a && old.b == node.b && old.c == node.c",
        "old.a == node.a",
    ),
    Mutant(
        "float32 to bfloat16 and back is folded",
        GROUPING,
        "const bool exact = from == to ||",
        "const bool exact = from == to || to == DType::bf16 ||",
    ),
    Mutant(
        "batches merge groups with other operations",
        BATCHING,
        "const uint16_t fields[] = {static_cast<uint16_t>(node.kind),\n"
        "                               static_cast<uint16_t>(node.op),",
        "const uint16_t fields[] = {static_cast<uint16_t>(node.kind),\n"
        "                               uint16_t{0},",
    ),
    Mutant(
        "x + 0 is x, also where x is -0",
        ALGEBRA,
        "return special == (std::signbit(info.identity) ? Special::negative_zero : Special::zero);",
        "return special == Special::zero || special == Special::negative_zero;",
    ),
    Mutant(
        "a group runs beside the one whose result it loads",
        BATCHING,
        "levels[drafts.root(before)] + 1);",
        "levels[drafts.root(before)]);",
    ),
    Mutant(
        "groups merge over one that lies between them",
        GROUPING,
        "if (root(follower) <= into) return false;",
        "if (root(follower) < from) return false;",
    ),
    Mutant(
        "a value of another compute type is used without its conversion",
        GROUPING,
        "states_[access].in_flight = same_type;",
        "states_[access].in_flight = true;",
    ),
    Mutant(
        "the key leaves out which numbers are special",
        PROGRAM,
        "same_bytes(specials, other.specials)",
        "specials.size() == other.specials.size()",
        ("hash = mix(hash, specials);", ""),
    ),
    Mutant(
        "a block freed while instructions on it wait goes back at once",
        WINDOW,
        "if (open && program.program.slots[block->place.slot].inside) {",
        "if (open) {",
    ),
    Mutant(
        "an access ends an element too early for the check of overlaps",
        OVERLAP,
        "  return last + size;\n}",
        "  return last;\n}",
    ),
    Mutant(
        "views are told apart modulo a stride that one of them reaches beyond",
        OVERLAP,
        "distance + theirs <= modulus;",
        "distance + 0 * theirs < modulus;",
    ),
    Mutant(
        "an access that is written late does not wait for what has read a part of its bytes",
        OPEN_PROGRAM,
        "if (other != access && !places[other].written) compare(access, other);",
        "static_cast<void>(other);",
    ),
    Mutant(
        "numbers are equal if they are special in the same way",
        IMMEDIATES,
        "program.immediates[i] == bits && ",
        "",
    ),
    Mutant(
        "the key leaves out whether denormals are flushed",
        PROGRAM,
        "float_mode == other.float_mode;",
        "true;",
        ("+ 2 * uint64_t{float_mode}", ""),
    ),
    Mutant(
        "x * 1 is x where denormals are flushed",
        ALGEBRA,
        "if (e.program.float_mode != 0 && e.compute_type != ComputeType::i64) return false;",
        "",
    ),
    Mutant(
        "a queue does not wait for what another one was given of the same memory",
        RUNNER,
        "  if (waited_for_.covers(fence)) return;\n  queue_.wait_for(fence);\n",
        "  if (waited_for_.covers(fence)) return;\n",
    ),
    Mutant(
        "a block that waits in another window is recorded nevertheless",
        WINDOW,
        "other = pending_elsewhere(each_block);",
        "static_cast<void>(each_block);",
    ),
    Mutant(
        "operands that are broadcast in one dimension advance in it",
        ITERATION,
        "if (size != 1 || sizes[d] == 1) wide[d] = ",
        "wide[d] = ",
    ),
    Mutant(
        "dimensions are joined whatever their strides",
        ITERATION,
        "joins = joins && space.strides[i][last] == space.strides[i][d] * space.sizes[d];",
        "joins = joins && space.strides[0][last] == space.strides[0][d] * space.sizes[d];",
    ),
    Mutant(
        "what a fold of a row results in is there before the row has been folded",
        "csrc/cpu/stages.cpp",
        "if (spread == kRows) ++turn;",
        "",
    ),
    Mutant(
        "what a scan makes is read before it has been made",
        GROUPING,
        "if (is_only_stored(draft.nodes[value.node])) return false;",
        "",
    ),
    Mutant(
        "a scan goes on from what the plane before it came to",
        "csrc/cpu/row_scan.cpp",
        "scan.down ? block.first % plane_rows_ != 0",
        "scan.down ? block.first != 0",
    ),
    Mutant(
        "what is picked may be told by each element",
        ALGEBRA,
        "if (is_column && (spreads[y] & kColumns) == 0) {",
        "if (is_column) {",
    ),
    Mutant(
        "of the chunks of a unit the third is lost if it is the last",
        "csrc/cpu/row_run.cpp",
        "if (chunk == 1 || chunk == 3 || (chunk == 2 && last)) {",
        "if (chunk == 1 || chunk == 3 || (chunk == 2 && last && false)) {",
    ),
    Mutant(
        "a row that goes from registers to its fold takes the place of the rows before it",
        "csrc/cpu/row_run.cpp",
        "extent, to, continues);",
        "extent, to, continues && false);",
    ),
    Mutant(
        "from one row to the next a pointer stays where it is",
        "csrc/cpu/row_run.h",
        "static_cast<int>(frame.steps.size());",
        "static_cast<int>(frame.steps.size()) - 1;",
    ),
    Mutant(
        "the end of a row is computed twice, from what the row has been stored to",
        "csrc/cpu/row_run.cpp",
        "(frame.stage->in_place && columns.length() % least != 0);",
        "(frame.stage->in_place && false);",
    ),
    Mutant(
        "NaN is no maximum of a long row",
        "csrc/cpu/micro_ops.h",
        "if (!looking.found_nan()) continue;",
        "continue;",
    ),
    Mutant(
        "every row of a block is given the fold of the first one",
        "csrc/cpu/loops.h",
        "            elements.advance(then.extent->code_steps);\n",
        "",
    ),
    Mutant(
        "a number that was stored is read as it was before it was rounded",
        GROUPING,
        "value.dtype == source_dtype(instruction, i) &&",
        "",
    ),
    Mutant(
        "all draws of a pass have the numbers of the first one",
        GROUPING,
        "return static_cast<uint16_t>(draft.immediates.size() - kDrawImmediates);",
        "return 0;",
    ),
    Mutant(
        "every row draws the numbers of the first one",
        "csrc/cpu/row_run.cpp",
        "plane_rows_ * columns_ * size_, columns_ * size_, false});",
        "plane_rows_ * columns_ * size_, 0, false});",
    ),
    Mutant(
        "memory that a CPU tensor sees is recorded on",
        "csrc/aten/block.h",
        "return (twin != nullptr && c10::raw::intrusive_ptr::use_count(twin) != 1) ||",
        "return ",
    ),
)

# What the stages run; the first that fails has caught the mutant.
CORE_TESTS = ("window", "channels", "overlap", "group", "rows")
PYTHON_TESTS = (
    "test/test_stream.py",
    "test/test_programs.py",
)


class Outcome(NamedTuple):
    caught_by: str  # "" if nobody
    seconds: float


def run(command: list[str], folder: Path, timeout: float, **variables: str) -> str:
    """Runs a command. Returns what went wrong, "" if nothing did."""
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    if process.returncode == 0:
        return ""
    failed = [line for line in process.stdout.splitlines() if line.startswith("FAILED")]
    return failed[0][7:] if failed else f"exit status {process.returncode}"


def build_core(jobs: int) -> None:
    """Raises RuntimeError if the unit tests of the core do not compile."""
    wrong = run(
        [
            "make",
            "-C",
            "csrc/test",
            f"-j{jobs}",
            f"BUILD={FOLDER}/core",
            f"{FOLDER}/core/plain/test",
        ],
        SOURCE,
        3600,
    )
    if wrong:
        raise RuntimeError(f"the core does not compile: {wrong}")


def build_extension(jobs: int) -> None:
    """Raises RuntimeError if the extension does not compile."""
    wrong = run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        SOURCE,
        3600,
        MAX_JOBS=str(jobs),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    if wrong:
        raise RuntimeError(f"the extension does not compile: {wrong}")


def test_core() -> str:
    """The first unit test that fails, "" if all pass."""
    for tests in CORE_TESTS:
        wrong = run([f"{FOLDER}/core/plain/test", tests], SOURCE, 600)
        if wrong:
            return f"core: {wrong}"
    return ""


def test_python(jobs: int, programs: int) -> str:
    """The first Python test that fails, "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    wrong = run(
        [*command, "-n", str(jobs), "-m", "not full", *PYTHON_TESTS],
        SOURCE,
        1200,
        PYTHONPATH=str(SOURCE),
        OMP_NUM_THREADS="1",
        HOLOGRAM_TEST_PROGRAMS=str(programs),
    )
    return f"python: {wrong}" if wrong else ""


def plant(mutant: Mutant) -> None:
    """Writes a bug into the copy; raises RuntimeError unless its text is there exactly once."""
    path = SOURCE / mutant.path
    text = path.read_text()
    for old, new in ((mutant.old, mutant.new), *([mutant.also] if mutant.also else [])):
        if text.count(old) != 1:
            raise RuntimeError(
                f"{mutant.path} has {text.count(old)} times what the mutant {mutant.name!r} "
                f"replaces: {old!r}"
            )
        text = text.replace(old, new)
    path.write_text(text)


def restore(mutant: Mutant) -> None:
    """Takes the bug out again. The file is new to make, which compiles it again."""
    (SOURCE / mutant.path).write_text((ROOT / mutant.path).read_text())


def hunt(mutant: Mutant | None, options: argparse.Namespace) -> Outcome:
    """Who catches a mutant; None is the tree as it is."""
    start = time.monotonic()
    caught = ""
    if mutant is None or mutant.in_core:
        build_core(options.jobs)
        caught = test_core()
    if not caught and not options.core_only:
        build_extension(options.jobs)
        caught = test_python(options.jobs, options.programs)
    return Outcome(caught, time.monotonic() - start)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("-k", metavar="TEXT", default="", help="mutants with TEXT in their name")
    parser.add_argument(
        "--programs", type=int, default=4000, help="random programs of the Python tests (4000)"
    )
    parser.add_argument("--core-only", action="store_true", help="only bugs in the torch-free core")
    parser.add_argument(
        "--list", action="store_true", help="print the mutants and check their texts"
    )
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.k in mutant.name]
    if options.core_only:
        chosen = [mutant for mutant in chosen if mutant.in_core]
    mirror(SOURCE)
    # Before anything is built. All of them: what an earlier run left compiled may have a bug in it.
    for mutant in MUTANTS:
        restore(mutant)
    for mutant in chosen:
        plant(mutant)
        restore(mutant)
        if options.list:
            print(f"{mutant.path}: {mutant.name}")
    if options.list:
        return 0
    untouched = hunt(None, options)
    if untouched.caught_by:
        print(f"the tests fail without any mutant: {untouched.caught_by}")
        return 1
    outcomes = {}
    width = max(len(mutant.name) for mutant in chosen)
    print(f"{'mutant':{width}}  seconds  caught by")
    for mutant in (bar := tqdm(chosen, unit="mutant")):
        bar.set_postfix_str(mutant.name)
        plant(mutant)
        try:
            outcome = outcomes[mutant] = hunt(mutant, options)
        except RuntimeError as error:
            print(f"{mutant.name}: {error}")
            return 1
        finally:
            restore(mutant)
        caught = outcome.caught_by or "NOBODY"
        bar.write(f"{mutant.name:{width}}  {outcome.seconds:7.0f}  {caught}")
    survivors = sum(not outcome.caught_by for outcome in outcomes.values())
    print(f"{len(outcomes) - survivors} of {len(outcomes)} caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
