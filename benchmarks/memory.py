"""The device's memory: what an allocation costs, and whether what is held grows.

    python benchmarks/memory.py            measure, print, write results/memory.md and memory.png
    python benchmarks/memory.py --quick    a twentieth of the long runs; prints only

Four parts: the allocator without torch (csrc/test/bench_memory.cpp, built by `make -C csrc/test
bench`), tensors from Python beside torch's CPU allocator, reserved bytes over a million random
tensors, and resident memory over ten thousand training steps of varying shapes, in a process of its
own on each device. Exit status 1 when a figure with a bound is beyond it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from common import Case
from tqdm import tqdm

import torch_hologram  # noqa: F401  (autoload does the same; this line also works with it off)

hologram: Any = torch.get_device_module("hologram")

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
MIB = 1 << 20
RANDOM_TENSORS = 1_000_000
LIVE_TENSORS = 200
TRAINING_STEPS = 10_000
SAMPLES = 100  # of a long run
PAIR_BOUND = 20.0  # ns, of the pool alone
STORAGE_BOUND = 60.0  # ns, of a storage with its twin
GROWTH_BOUND = 2048  # KiB of resident memory, from the first half of the steps to the second

SIZES = {
    "64 B": 64,
    "1 KiB": 1 << 10,
    "12 KiB": 12 << 10,
    "64 KiB": 64 << 10,
    "1 MiB": 1 << 20,
    "16 MiB": 16 << 20,
}


@dataclass
class Growth:
    """A long run in SAMPLES samples; sizes in MiB."""

    steps: list[int]
    reserved: list[float]
    allocated: list[float]


def core_tables() -> dict[str, str]:
    """Run the benchmark of the torch-free core; returns its Markdown tables by name."""
    folder = ROOT / "csrc" / "test"
    subprocess.run(["make", "-s", "-C", folder, "bench-build"], check=True, stdout=sys.stderr)
    names = ("pairs", "touch", "threads", "aliasing")
    program = ROOT / "build" / "core-test" / "bench" / "test"
    return {
        name: subprocess.run(
            [program, name], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        for name in tqdm(names, desc="core", file=sys.stderr)
    }


def worst_pair(pairs: str, *, mixed: bool) -> float:
    """The largest figure of the device in the table `pairs`, in ns: of one size, or of mixed."""
    lines = (line for line in pairs.splitlines()[2:] if ("mixed" in line) == mixed)
    return max(float(line.split("|")[2]) for line in lines)


def tensor_operands(device: torch.device) -> dict[str, Any]:
    return {"uint8": torch.uint8}


def tensor_pairs() -> tuple[list[tuple[str, ...]], float]:
    """torch.empty and its end from Python, with and without writing; and a storage from C++.

    Returns:
        a line per size, and the nanoseconds of the slowest storage.
    """
    device = torch.device("hologram")
    lines: list[tuple[str, ...]] = []
    storages: list[float] = []
    for name, size in tqdm(SIZES.items(), desc="tensors", file=sys.stderr):
        cells = [name]
        for suffix in ("", ".zero_()"):
            statement = f"torch.empty({size}, dtype=uint8, device=device){suffix}"
            row = common.measure(Case("", name, statement, tensor_operands, None), device, 1)
            cells += [
                common.format_time(row.cpu),
                common.format_time(row.device),
                f"{row.ratio:.2f}",
            ]
        storages.append(storage_pair(size))
        lines.append((*cells, f"{storages[-1]:.1f} ns"))
    return lines, max(storages)


def storage_pair(size: int) -> float:
    """Nanoseconds of making and dropping a device storage with its twin, in the best of windows."""
    from torch_hologram import _C

    return min(_C.storage_pair_nanoseconds(0, size, 10_000) for _ in range(common.PAIRS))


def random_tensors(count: int) -> Growth:
    """Replace one of LIVE_TENSORS tensors of 1 B to 2 MiB at a time, every octave as often."""
    generator = random.Random(0)
    growth = Growth([], [], [])
    live: list[torch.Tensor | None] = [None] * LIVE_TENSORS
    hologram.empty_cache()
    hologram.reset_peak_memory_stats()
    empty = partial(torch.empty, dtype=torch.uint8, device="hologram")
    every = max(1, count // SAMPLES)
    for step in tqdm(range(1, count + 1), desc="random tensors", file=sys.stderr, miniters=every):
        size = 1 << generator.randrange(21)
        slot = generator.randrange(LIVE_TENSORS)
        live[slot] = None
        live[slot] = empty(size + generator.randrange(size))
        if step % every == 0:
            growth.steps.append(step)
            growth.reserved.append(hologram.max_memory_reserved() / MIB)
            growth.allocated.append(hologram.max_memory_allocated() / MIB)
    return growth


def train(device: str, steps: int, period: int | None = None) -> list[int]:
    """Train a small transformer on batches of random shapes.

    Args:
        device: where.
        steps: how many, each of up to 16 sequences of up to 64 words.
        period: after so many steps the same shapes come again, in the same order; None: never.

    Returns:
        resident memory of the process in KiB, at each hundredth of the steps.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = random.Random(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(100, 64),
        torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True),
        torch.nn.Linear(64, 100),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    resident = []
    for step in tqdm(range(1, steps + 1), desc=f"training on {device}", file=sys.stderr):
        if period is not None and (step - 1) % period == 0:
            generator.seed(0)
        shape = (generator.randint(1, 16), generator.randint(2, 64))
        words = torch.randint(100, shape, device=device)
        output = model(words)[:, :-1].flatten(0, 1)
        torch.nn.functional.cross_entropy(output, words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // SAMPLES) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident.append(pages * os.sysconf("SC_PAGE_SIZE") // 1024)
    return resident


def train_apart(device: str, steps: int) -> list[int]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--train", device, "--steps", str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    resident: list[int] = json.loads(output)
    return resident


def added(resident: list[int]) -> int:
    """By how many KiB the second half of a run exceeds the first at most."""
    half = len(resident) // 2
    return max(resident[half:]) - max(resident[:half])


TENSOR_HEADER = (
    "size",
    "",
    "cpu",
    "device",
    "ratio",
    "written, cpu",
    "device",
    "ratio",
    "storage + twin",
)


def growth_lines(growth: Growth) -> list[tuple[str, ...]]:
    count = len(growth.steps)
    rows = sorted({0, count // 10 - 1, count // 2 - 1, count - 1} - {-1})
    return [
        (
            f"{growth.steps[i]:,}",
            "",
            f"{growth.reserved[i]:.1f} MiB",
            f"{growth.allocated[i]:.1f} MiB",
        )
        for i in rows
    ]


def training_lines(resident: dict[str, list[int]], steps: int) -> list[tuple[str, ...]]:
    return [
        (
            device,
            f"{steps:,}",
            *(f"{values[i] / 1024:.1f} MiB" for i in (0, len(values) // 2 - 1, -1)),
            f"{added(values)} KiB",
        )
        for device, values in resident.items()
    ]


def bound_lines(
    pairs: str, storage: float, growth: Growth, resident: dict[str, list[int]]
) -> list[tuple[str, str, str, str, str]]:
    pair, mixed = worst_pair(pairs, mixed=False), worst_pair(pairs, mixed=True)
    ratio = growth.reserved[-1] / growth.allocated[-1]
    grown = added(resident["hologram"])

    def verdict(good: bool) -> str:
        return "pass" if good else "FAIL"

    return [
        (
            "a free and an allocation in the pool, slowest size",
            "ns",
            f"{pair:.1f}",
            f"<= {PAIR_BOUND:.0f}",
            verdict(pair <= PAIR_BOUND),
        ),
        (
            "the same with sizes at random, slower of two mixtures",
            "ns",
            f"{mixed:.1f}",
            f"<= {PAIR_BOUND:.0f}",
            verdict(mixed <= PAIR_BOUND),
        ),
        (
            "a storage with its twin, slowest size",
            "ns",
            f"{storage:.1f}",
            f"<= {STORAGE_BOUND:.0f}",
            verdict(storage <= STORAGE_BOUND),
        ),
        (
            f"most reserved of most allocated, {growth.steps[-1]:,} random tensors",
            "",
            f"{ratio:.2f}",
            "<= 2",
            verdict(ratio <= 2),
        ),
        (
            "resident memory added in the second half of training",
            "KiB",
            f"{grown}",
            f"<= {GROWTH_BOUND}",
            verdict(grown <= GROWTH_BOUND),
        ),
    ]


BOUND_HEADER = ("figure", "unit", "measured", "bound", "")
GROWTH_HEADER = ("tensors made", "", "most reserved", "most allocated")
TRAINING_HEADER = ("device", "steps", "after 1 %", "after half", "at the end", "second half adds")


def plot(
    pairs: str, growth: Growth, resident: dict[str, list[int]], steps: int, path: Path
) -> None:
    """Three panels: pairs by size, reserved over random tensors, resident memory of training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    blue, orange, green = "#0072b2", "#d55e00", "#009e73"
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in pairs.splitlines()[2:]]
    rows = [row for row in rows if row[0].endswith(" 64 live")]
    places = np.arange(len(rows))
    for column, label, color in ((1, "device", blue), (3, "posix_memalign", orange)):
        left.plot(places, [float(row[column]) for row in rows], "o-", color=color, label=label)
    left.axhline(PAIR_BOUND, color="#b00020", linewidth=1, label="bound")
    left.set_yscale("log")
    left.set_xticks(places, [row[0].split(",")[0] for row in rows], rotation=30, ha="right")
    left.set(ylabel="ns", title="a free and an allocation, 64 blocks live")

    middle.plot(growth.steps, growth.reserved, color=blue, label="most reserved")
    middle.plot(growth.steps, growth.allocated, color=green, label="most allocated")
    middle.set(xlabel="random tensors made", ylabel="MiB", title="reserved bytes", ylim=(0, None))

    for (device, values), color in zip(resident.items(), (blue, orange), strict=True):
        axis = np.linspace(steps / len(values), steps, len(values))
        right.plot(axis, np.array(values) / 1024, color=color, label=device)
    right.set(xlabel="training steps", ylabel="MiB", title="resident memory", ylim=(0, None))

    for axes in (left, middle, right):
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


CORE_TITLES = {
    "pairs": "The pool alone: nanoseconds of a free and an allocation (quickest of 31 windows)",
    "touch": "Small blocks in either pool, used: which sizes belong to the boundary pool",
    "threads": "Threads that use one pool at once: median nanoseconds of a pair in each",
    "aliasing": "Distance of blocks modulo 4096 bytes (4K aliasing)",
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter runs; writes no files")
    parser.add_argument("--train", metavar="DEVICE", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if arguments.train:
        print(json.dumps(train(arguments.train, arguments.steps)))
        return 0

    part = 20 if arguments.quick else 1
    steps = TRAINING_STEPS // part
    core = core_tables()
    tensors, storage = tensor_pairs()
    growth = random_tensors(RANDOM_TENSORS // part)
    resident = {device: train_apart(device, steps) for device in ("hologram", "cpu")}
    bounds = bound_lines(core["pairs"], storage, growth, resident)

    tables: dict[str, tuple[Sequence[str], Sequence[Sequence[str]]]] = {
        "Bounds": (BOUND_HEADER, bounds),
        "From Python: torch.empty and its end, bare and written once": (
            TENSOR_HEADER,
            [(line[0], "", *line[1:]) for line in tensors],
        ),
        f"Random tensors of 1 B to 2 MiB, {LIVE_TENSORS} live": (
            GROWTH_HEADER,
            growth_lines(growth),
        ),
        "Resident memory of training on random shapes": (
            TRAINING_HEADER,
            training_lines(resident, steps),
        ),
    }
    machine = common.machine()
    text = [
        "# The device's memory",
        "",
        "Written by `python benchmarks/memory.py`.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
        "![pairs, reserved bytes and resident memory](memory.png)",
        "",
    ]
    for title, (header, lines) in tables.items():
        print(f"\n{title}\n\n{common.text_table(header, lines)}")
        text += [f"## {title}", "", common.markdown_table(header, lines), ""]
    for name, table in core.items():
        print(f"\n{CORE_TITLES[name]}\n\n{table}")
        text += [f"## {CORE_TITLES[name]}", "", table, ""]
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "memory.md").write_text("\n".join(text))
        plot(core["pairs"], growth, resident, steps, RESULTS / "memory.png")
        print("\nwrote benchmarks/results/memory.md and memory.png")
    failed = [line[0] for line in bounds if line[-1] == "FAIL"]
    if failed:
        print("FAILED: " + "; ".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
