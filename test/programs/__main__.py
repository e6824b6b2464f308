"""The command: runs the programs of seeds, and shows the first that fails."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import programs

CHUNK = 5000  # programs that a process is started for


def part(seeds: range) -> programs.Totals:
    """Runs the programs of some seeds in a process of their own."""
    process = subprocess.run(
        [
            sys.executable,
            Path(__file__).parent,
            f"{seeds.start}",
            f"--count={len(seeds)}",
            "--json",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if process.returncode != 0:
        text = process.stdout + process.stderr
        raise AssertionError(f"seeds from {seeds.start}, exit {process.returncode}:\n{text}")
    return programs.Totals(**json.loads(process.stdout))


def run_all(seeds: range, jobs: int) -> programs.Totals:
    from tqdm import tqdm

    parts = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    totals = programs.Totals()
    with tqdm(total=len(seeds), disable=None, unit=" programs") as bar:
        with ThreadPoolExecutor(jobs) as pool:
            for result in pool.map(part, parts):
                totals += result
                bar.update(result.programs)
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(
        description=programs.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int, help="of the first program")
    parser.add_argument("--count", type=int, default=1, help="programs (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--json", action="store_true", help="print the totals as JSON")
    options = parser.parse_args()
    if options.count == 1:
        print(programs.text_of(programs.program(options.seed)))
    seeds = range(options.seed, options.seed + options.count)
    start = time.monotonic()
    try:
        if options.jobs == 1:
            result = programs.check_seeds(seeds)
        else:
            result = run_all(seeds, options.jobs)
    except AssertionError as error:
        print(error)
        return 1
    if options.json:
        print(json.dumps(vars(result)))
        return 0
    print(
        f"Seeds {seeds.start} to {seeds.stop - 1}: {result.programs:,} programs have one result in "
        f"every mode, {sum(map(programs.has_cpu_run, seeds)):,} of them the CPU's too.\n"
        f"{result.executed:,} instructions in {result.passes:,} passes and {result.calls:,} calls; "
        "flushes of all runs: "
        + ", ".join(f"{count:,} {name}" for name, count in sorted(result.flushes.items()))
        + f".\ntorch {torch.__version__}, kernels for "
        f"{torch.hologram.get_device_properties(0).isa}, {os.cpu_count()} cores, "
        f"{time.monotonic() - start:.0f} s."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
