"""The device against torch on the CPU: small calls, delegated calls, large operators, import time.

    python benchmarks/device.py            measure, print, write results/ and README's table
    python benchmarks/device.py --check    measure, compare with the committed device.json

Each thread count is measured in a process of its own. Exit status 1 when a row fails: its whole
95 % interval lies beyond the bound or, with --check, beyond 1.1 times the committed ratio (and
the committed interval).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from common import Case, Row
from tqdm import tqdm

import torch_hologram

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
THREADS = (1, 2)
TOLERANCE = 1.1  # --check accepts a ratio up to this many times the committed one
MANY = 64  # results that are alive at once
ADD_BOUND = 0.65
IMPORT_ROUNDS = 15
IMPORT_BOUND_MS = 150.0


def floats(
    device: torch.device, shape: tuple[int, ...], names: str = "abc"
) -> dict[str, torch.Tensor]:
    """One float32 tensor of uniform 0..1 values per name; equal values on every device."""
    generator = torch.Generator().manual_seed(0)
    return {name: torch.rand(shape, generator=generator).to(device) for name in names}


def many(device: torch.device) -> dict[str, Any]:
    """A list of MANY tensors of 16 floats, and one more."""
    values = floats(device, (MANY, 16), names="x")["x"]
    return {"many": [value.clone() for value in values], **floats(device, (16,), names="b")}


def convolution(device: torch.device) -> dict[str, torch.Tensor]:
    return {
        **floats(device, (8, 64, 56, 56), names="x"),
        **floats(device, (64, 64, 3, 3), names="w"),
    }


def recurrent(device: torch.device, kind: Callable[[int, int], torch.nn.Module]) -> dict[str, Any]:
    torch.manual_seed(0)
    network = kind(64, 128).to(device)

    def train() -> None:
        network.zero_grad()
        with torch.enable_grad():
            network(x)[0].square().mean().backward()

    x = floats(device, (32, 8, 64), names="x")["x"]
    return {"network": network, "x": x, "train": train}


def cases() -> list[Case]:
    sixteen = partial(floats, shape=(16,))
    small = [
        Case("16 floats", name, statement, sixteen, bound)
        for name, statement, bound in (
            ("empty", "torch.empty(16, device=device)", 1.05),
            ("empty_like", "torch.empty_like(a)", None),
            ("view", "a.view(4, 4)", 1.05),
            ("slice", "a[2:8]", None),
        )
    ]
    small += [
        Case("16 floats", name, f"results = [{call} for x in many]; finish()", many, bound, MANY)
        for name, call, bound in (
            ("add", "torch.add(x, b)", ADD_BOUND),
            ("add scalar", "x + 2.0", None),
            ("add_", "x.add_(b)", None),
            ("mul", "torch.mul(x, b)", 1.0),
            ("relu", "torch.relu(x)", 1.0),
            ("fill_", "x.fill_(0.5)", 1.0),
            ("copy_", "x.copy_(b)", 1.0),
        )
    ]
    # The first two take the boxed delegate, the others unboxed ones (csrc/aten/quick.h).
    delegated = [
        Case("16 floats, boxed", "special.i1", "torch.special.i1(a)", sixteen, 2.0),
        Case("16 floats, boxed", "special.i0e", "torch.special.i0e(a)", sixteen, 2.0),
    ]
    delegated += [
        Case("16 floats, unboxed", name, statement, sixteen, 1.35)
        for name, statement in (
            ("amax", "a.amax()"),
            ("flip", "torch.flip(a, (0,))"),
            ("sum", "a.sum()"),
            ("cumsum", "torch.cumsum(a, 0)"),
            ("softmax", "torch.softmax(a, 0)"),
            ("argmax", "a.argmax()"),
            ("cat", "torch.cat((a, b))"),
        )
    ]
    large = [
        Case(
            f"1e{power} floats",
            name,
            statement,
            partial(floats, shape=(10**power // 1000, 1000)),
            1.05,
        )
        for power in (6, 7)
        for name, statement in (
            ("add", "result = torch.add(a, b); finish()"),
            ("mul", "result = torch.mul(a, b); finish()"),
            ("relu", "result = torch.relu(a); finish()"),
            ("copy_", "a.copy_(b); finish()"),
            ("sum", "a.sum()"),
            ("softmax", "torch.softmax(a, 1)"),
        )
    ]
    products = [
        Case("large", "matmul 512", "a @ b", partial(floats, shape=(512, 512)), 1.05),
        Case(
            "large",
            "conv2d 8x64x56x56",
            "torch.nn.functional.conv2d(x, w, padding=1)",
            convolution,
            1.05,
        ),
    ]
    networks = [
        Case("64 to 128, b8 s32", f"{kind.__name__} {name}", statement, operands, 1.05)
        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
        for operands in [partial(recurrent, kind=kind)]
        for name, statement in (
            ("forward", "result = network(x); finish()"),
            ("backward", "train(); finish()"),
        )
    ]
    return small + delegated + large + products + networks


def assert_delegated(case: Case, device: torch.device) -> None:
    """The bounds on delegated calls must not be met by an operator that is served otherwise."""
    namespace = common.namespace(case, device)
    torch.hologram.reset_fallback_report()
    eval(case.statement, namespace)
    quick = set(torch_hologram._C.quick_operators())
    kinds = {
        f"{row.kind}, {'unboxed' if row.operator in quick else 'boxed'}"
        for row in torch.hologram.fallback_report()
    }
    wanted = f"delegated, {case.group.split()[-1]}"
    if kinds != {wanted}:
        raise RuntimeError(f"{case.name} is not {wanted} but {sorted(kinds)}: choose another")


def measure_here(threads: int, keys: set[str] | None) -> list[Row]:
    """Measure in this process, all cases or those with the given keys, with grad mode off."""
    torch.set_num_threads(threads)
    device = torch.device("hologram")
    rows = []
    with torch.no_grad():
        for case in tqdm(cases(), desc=f"{threads} thread(s)", file=sys.stderr):
            if keys is not None and f"{case.group}/{case.name}/{threads}" not in keys:
                continue
            if case.group.endswith("boxed"):
                assert_delegated(case, device)
            # A row asked for by name is one that looked too slow: look longer.
            pairs = common.PAIRS if keys is None else 3 * common.PAIRS
            rows.append(common.measure(case, device, threads, pairs))
    return rows


def measure_apart(threads: int, keys: set[str] | None = None) -> list[Row]:
    """Measure in a fresh process, so that thread pools and caches start equal."""
    command = [sys.executable, __file__, "--worker", str(threads)]
    if keys is not None:
        command += ["--keys", json.dumps(sorted(keys))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return [Row(**row) for row in json.loads(output)]


def measure_all(keys: set[str] | None = None) -> list[Row]:
    wanted = [t for t in THREADS if keys is None or any(k.endswith(f"/{t}") for k in keys)]
    return [row for threads in wanted for row in measure_apart(threads, keys)]


def import_times() -> dict[str, dict[str, float]]:
    """Milliseconds of `import torch`, and what the package adds to it explicitly and by autoload.

    Each time is taken inside a process of its own. What autoload adds is a difference between two
    processes, hence its wide interval.
    """
    clock = "import time; start = time.perf_counter(); {}; stop = time.perf_counter()\n"
    result = "print(1e3 * (stop - start))"
    variants = {
        "import torch": ("0", clock.format("import torch") + result),
        "explicit": ("0", "import torch\n" + clock.format("import torch_hologram") + result),
        "autoload": ("1", clock.format("import torch") + result),
    }
    milliseconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in tqdm(range(IMPORT_ROUNDS + 1), desc="import", file=sys.stderr):
        for name, (autoload, code) in variants.items():
            environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
            output = subprocess.run(
                [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True
            ).stdout
            if round_:  # the first round fills the page cache
                milliseconds[name].append(float(output))
    alone = np.array(milliseconds["import torch"])
    return {
        "import torch": summary(alone),
        "added by import torch_hologram": summary(np.array(milliseconds["explicit"])),
        "added by autoload": summary(np.array(milliseconds["autoload"]) - alone),
    }


def summary(values: np.ndarray) -> dict[str, float]:
    low, high = common.bootstrap_interval(values.tolist())
    return {"ms": round(float(np.median(values)), 1), "low": round(low, 1), "high": round(high, 1)}


def import_cells(imports: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name, time in imports.items():
        added = name.startswith("added")
        verdict = ("FAIL" if time["low"] > IMPORT_BOUND_MS else "pass") if added else ""
        lines.append(
            (
                "import",
                name,
                f"{time['ms']:.0f} ms",
                f"{time['low']:.0f}..{time['high']:.0f}",
                f"<= {IMPORT_BOUND_MS:.0f} ms" if added else "",
                verdict,
            )
        )
    return lines


IMPORT_HEADER = ("group", "what", "median", "95 %", "bound", "")


def write_results(rows: list[Row], imports: dict[str, dict[str, float]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    machine = common.machine()
    content: dict[str, Any] = {
        "command": "make bench",
        "machine": machine,
        "import": imports,
        "rows": [row.to_json() for row in rows],
    }
    (RESULTS / "device.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        "# The device on the CPU backend, against torch on the CPU",
        "",
        "Written by `make bench`. A ratio is the time on the device over the time of torch on the",
        f"CPU, the median of {common.PAIRS} interleaved pairs, with its bootstrap 95 % interval;",
        "below 1 the device is faster. A row fails when its whole interval lies beyond the bound.",
        "Calls are made from Python with grad mode off. What the stream records is timed with its",
        f"execution: {MANY} results of 16 floats, or a large one, then synchronize().",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
        common.markdown_table(common.HEADER, [common.cells(row) for row in rows]),
        "",
        f"Import time, {IMPORT_ROUNDS} rounds, each variant in a process of its own:",
        "",
        common.markdown_table(IMPORT_HEADER, import_cells(imports)),
        "",
        "![ratios](device.png)",
        "",
    ]
    (RESULTS / "device.md").write_text("\n".join(lines))
    common.plot(rows, "torch_hologram on the CPU backend", RESULTS / "device.png")
    common.replace_section(README, "make bench", readme_table(rows, imports))


def readme_table(rows: list[Row], imports: dict[str, dict[str, float]]) -> str:
    """The rows that have a bound: one line per operation, one column per thread count."""
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.bound is not None:
            bound = f"<= {row.bound:.2f}"
            lines.setdefault((row.group, row.name), [bound]).append(f"{row.ratio:.2f}")
    threads = [f"{count} thread{'s' if count > 1 else ''}" for count in THREADS]
    header = ("", "operation", "bound", *threads)
    added = imports["added by import torch_hologram"]["ms"]
    return (
        common.markdown_table(header, [(*key, *values) for key, values in lines.items()])
        + f"\n\n`import torch_hologram` adds {added:.0f} ms to `import torch` "
        + f"(bound: {IMPORT_BOUND_MS:.0f} ms).\n"
    )


def check(rows: list[Row]) -> list[Row]:
    """The rows that got slower, with the limit they break as their bound.

    The limit is TOLERANCE times the committed ratio, or the upper end of the committed interval
    where that was measured less sharply; a row breaks it with its whole interval.
    """
    committed = json.loads((RESULTS / "device.json").read_text())["rows"]
    limits = {Row(**row).key: max(TOLERANCE * row["ratio"], row["high"]) for row in committed}
    judged = [replace(row, bound=limits[row.key]) for row in rows if row.key in limits]
    return [row for row in judged if row.verdict == "FAIL"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the committed ratios")
    parser.add_argument("--worker", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if arguments.worker:
        keys = None if arguments.keys is None else set(arguments.keys)
        rows = measure_here(arguments.worker, keys)
        print(json.dumps([row.to_json() for row in rows]))
        return 0

    rows = measure_all()
    print(common.text_table(common.HEADER, [common.cells(row) for row in rows]))
    if arguments.check:
        slower = check(rows)
        if slower:  # a neighbour on the machine looks like a regression: measure those again
            slower = check(measure_all({row.key for row in slower}))
        if slower:
            print(f"\nmore than {TOLERANCE - 1:.0%} slower than committed (bound = limit):")
            print(common.text_table(common.HEADER, [common.cells(row) for row in slower]))
            return 1
        print("\nno ratio is more than 10 % worse than committed")
        return 0

    imports = import_times()
    lines = import_cells(imports)
    print("\n" + common.text_table(IMPORT_HEADER, lines))
    write_results(rows, imports)
    print("\nwrote benchmarks/results/device.* and the table in README.md")
    failed = [row.key for row in rows if row.verdict == "FAIL"]
    failed += [line[1] for line in lines if line[-1] == "FAIL"]
    if failed:
        print("FAILED: " + ", ".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
