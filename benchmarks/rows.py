"""Broadcasts, reductions and programs over rows: the device against torch, Inductor and by hand.

    python benchmarks/rows.py --inductor            measure with one thread, print, write results/
    python benchmarks/rows.py                       without Inductor; prints only
    python benchmarks/rows.py --quick               one size of each, fewer samples; prints only
    python benchmarks/rows.py --inductor -k softmax some cells; prints only
    python benchmarks/rows.py --threads 2           with two, by hand one; prints only
    python benchmarks/rows.py --cpu-time            on a busy machine; prints only
    python benchmarks/rows.py --inductor --at-once 8    eight cells at a time, on a core each
    python benchmarks/rows.py --inductor --resume       goes on with such a run that was cut off

A cell is an expression, a dtype and a size, then torch.hologram.synchronize(). Programs "from
parts" are written from primitives. Backward cells compute the gradients of all operands of one
forward, loss steps those of x with the forward. Contenders, timed in turns in one process:

- eager: the same function on torch's CPU tensors.
- inductor (--inductor): torch.compile of that function, warm; of programs only. A cell takes some
  seconds to compile the first time; what is compiled stays in build/benchmarks.
- hand: benchmarks/reference/rows.cpp, on memory of the device, for the most frequent programs.

Before a cell is timed, the others' values are compared with those of torch in f32.

Exit status 1 when a bound is missed: torch's speed in every cell (0.97 of it for broadcasts), 1.4
times the time of the loop by hand from N = 1e6, both by the whole 95 % interval; over all programs,
a geometric mean of 2.5 times torch's speed and 1.2 times Inductor's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import common
from chains.paths import BUILD

QUICK_PAIRS, PAIRS = 7, 15


def measure_in_parts(parts: int) -> None:
    """Lets a process of its own measure every `parts`-th cell."""
    started = [
        subprocess.Popen([sys.executable, *sys.argv, "--part", str(part)]) for part in range(parts)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"rows.py: a part ended with status {max(codes, key=abs)}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", default="", help="only cells whose group and name have this in them")
    parser.add_argument("--quick", action="store_true", help="one size of each, fewer samples")
    parser.add_argument("--inductor", action="store_true", help="against torch.compile too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--cpu-time", action="store_true", help="time of the thread, not of the wall"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="processes")
    parser.add_argument(
        "--resume", action="store_true", help="keep what a run that was cut off has measured"
    )
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is not None:  # far from the others, which may share what a core is part of
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[arguments.part * len(cores) // arguments.at_once]})
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(BUILD / "inductor"))
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself otherwise

    import torch
    import torch._functorch.config as functorch
    from chains.reference import Reference
    from row_programs.cases import cases
    from row_programs.cell import measure
    from row_programs.journal import Journal
    from row_programs.report import BOUND_HEADER, HEADER, bound_lines, cells_of, write_results
    from tqdm import tqdm

    torch.set_num_threads(arguments.threads)
    # The backward of one forward is timed again and again.
    functorch.donated_buffer = False
    chosen = cases(arguments.quick, arguments.k)
    if not chosen:
        parser.error(f"no cell has {arguments.k!r} in its name")
    if arguments.cpu_time and arguments.threads != 1:
        parser.error("--cpu-time is of one thread")
    most = min(len(chosen), len(os.sched_getaffinity(0)))
    if arguments.part is None and not 1 <= arguments.at_once <= most:
        parser.error(f"--at-once is from 1 to {most}, a core and a cell each")
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    reference = Reference()
    pairs = QUICK_PAIRS if arguments.quick else PAIRS
    # What is measured in another way is kept apart.
    way = f"{pairs}-{arguments.threads}-{arguments.inductor:d}-{arguments.cpu_time:d}"
    journal = Journal(BUILD / "rows" / way, arguments.part or 0)
    if arguments.part is None and not arguments.resume:
        journal.clear()
    if arguments.at_once > 1 and arguments.part is None:
        measure_in_parts(arguments.at_once)
    else:
        mine = chosen if arguments.part is None else chosen[arguments.part :: arguments.at_once]
        measured = journal.cells()
        quiet = True if arguments.part else None  # the first part stands for all
        for case in tqdm(mine, disable=quiet, unit="cell"):
            if (case.group, case.name) not in measured:
                journal.add(measure(case, reference, pairs, arguments.inductor, clock))
    if arguments.part is not None:
        return 0
    measured = journal.cells()
    cells = [measured[case.group, case.name] for case in chosen]
    lines = bound_lines(cells)
    print(common.text_table(HEADER, [cells_of(cell) for cell in cells]))
    print("\n" + common.text_table(BOUND_HEADER, lines))
    partial = arguments.quick or arguments.k or arguments.threads != 1 or arguments.cpu_time
    if arguments.inductor and not partial:
        at_once = f" --at-once {arguments.at_once}" if arguments.at_once > 1 else ""
        write_results(cells, f"python benchmarks/rows.py --inductor{at_once}")
        print("\nwrote benchmarks/results/rows.*")
    return any(line[-1] == "MISS" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
