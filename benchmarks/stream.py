"""Chains of pointwise operations: the stream against torch, Inductor and loops fused by hand.

    python benchmarks/stream.py                  measure, print, write results/
    python benchmarks/stream.py --only gelu      some chains (--only gelu,adam); prints only
    python benchmarks/stream.py --quick          fewer sizes and pairs; prints only
    python benchmarks/stream.py --check          measure, compare with the committed cpu.json
    python benchmarks/stream.py --passes         count operations and passes; prints only

Contenders, timed in turns in one process per thread count:

- device: the chain as it stands, on hologram, then torch.hologram.synchronize(). The results are
  alive until then: what nobody can read any more, the stream does not compute.
- eager: the same Python function on torch's CPU tensors.
- inductor, inductor casts: torch.compile of that function, warm, without and with
  emulate_precision_casts. A profile of a call proves that generated code runs and no operator.
- hand: benchmarks/reference/loops.cpp, on memory of the device.

Before a cell is timed, the values of every contender are compared with torch's; those of the hand
loop with the device's, bit for bit.

Exit status 1 when a bound is missed: by the whole 95 % interval of a cell, or, with --check, when
a ratio is more than 10 % (and its committed interval) above the committed one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict

import common
from chains.additions import additions
from chains.bounds import BOUND_HEADER, bound_lines
from chains.cell import Cell
from chains.chain import CHAINS
from chains.committed import slower_than_committed
from chains.core import core_figures
from chains.measuring import LEAST_PAIRS, PAIRS, THREADS, measure_here
from chains.passes import count_passes
from chains.paths import BUILD, RESULTS
from chains.reference import Reference
from chains.report import HEADER, cells_of, write_results

Measured = tuple[list[Cell], list[common.Row]]


def measure_apart(
    threads: int, arguments: argparse.Namespace, keys: set[str] | None = None
) -> Measured:
    """Measures in a fresh process, so that thread pools and caches start equal."""
    command = [sys.executable, __file__, "--worker", str(threads)]
    if arguments.quick or arguments.check:
        command.append("--quick")
    if arguments.only:
        command += ["--only", arguments.only]
    if keys is not None:
        command += ["--keys", json.dumps(sorted(keys))]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(BUILD / "inductor"),
        "KINETO_LOG_LEVEL": "99",  # the profiler announces itself otherwise
    }
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    content = json.loads(output)
    return (
        [Cell(**cell) for cell in content["cells"]],
        [common.Row(**row) for row in content["additions"]],
    )


def measure_all(arguments: argparse.Namespace, keys: set[str] | None = None) -> Measured:
    cells, additions = [], []
    for threads in THREADS:
        if keys is None or any(key.endswith(f"/{threads}") for key in keys):
            more_cells, more_additions = measure_apart(threads, arguments, keys)
            cells += more_cells
            additions += more_additions
    return cells, additions


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the committed ratios")
    parser.add_argument("--quick", action="store_true", help="N = 16, 1e5, 1e6 and fewer pairs")
    parser.add_argument("--passes", action="store_true", help="count passes, measure nothing")
    parser.add_argument("--only", default="", metavar="CHAINS", help="names, separated by commas")
    parser.add_argument("--worker", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    names = [name.strip() for name in arguments.only.split(",") if name.strip()]
    chains = [c for c in CHAINS if not names or any(c.name.startswith(name) for name in names)]
    if not chains and names != ["add"]:
        raise SystemExit(f"no chain of {names}; there are {[c.name for c in CHAINS]}")
    if arguments.passes:
        count_passes(chains)
        return 0
    if arguments.worker:
        keys = None if arguments.keys is None else set(arguments.keys)
        cells = measure_here(arguments.worker, chains, arguments.quick, keys)
        pairs = LEAST_PAIRS if arguments.quick else PAIRS
        rows = additions(arguments.worker, pairs) if keys is None else []
        print(
            json.dumps(
                {
                    "cells": [asdict(cell) for cell in cells],
                    "additions": [row.to_json() for row in rows],
                }
            )
        )
        return 0

    if arguments.check and not (RESULTS / "cpu.json").exists():
        raise SystemExit("there is no benchmarks/results/cpu.json to compare with: make bench")
    started = time.monotonic()
    Reference.compile()
    cells, rows = measure_all(arguments)
    core = [] if names or arguments.check else core_figures()
    lines = bound_lines(cells, rows, core)
    print(common.text_table(HEADER, [cells_of(cell) for cell in cells]))
    print("\n" + common.text_table(BOUND_HEADER, lines))
    print(f"\n{time.monotonic() - started:.0f} s")
    if arguments.check:
        slower = slower_than_committed(cells)
        if slower:  # a neighbour on the machine looks like a regression: measure those again
            slower = slower_than_committed(measure_all(arguments, set(slower))[0])
        for key, text in slower.items():
            print(f"slower than committed: {key}: {text}", file=sys.stderr)
        return bool(slower)
    if not names and not arguments.quick:
        write_results(cells, rows, core)
        print("wrote benchmarks/results/cpu.* and cpu_hand.png, and the table in README.md")
    return any(line[-1] == "MISS" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
