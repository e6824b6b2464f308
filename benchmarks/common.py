"""Measuring: interleaved pairs, medians, bootstrap intervals, and the tables made of them.

A ratio is always (time on the device) / (time of torch on the CPU), below 1 is faster. The two are
measured in one process in alternation, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import timeit
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

PAIRS = 31  # at least 15: fewer give no useful interval of a median
SAMPLE_SECONDS = 4e-3  # a sample repeats its statement until it lasts this long


@dataclass(frozen=True)
class Case:
    """One statement, run over operands on the CPU and over operands on the device.

    operands: device -> the names the statement uses (the device itself is there as `device`).
    bound: largest accepted ratio, or None for a row that is only reported.
    calls: of the operation in one run of the statement; times are per call.

    What nobody can read any more, the device does not compute: a statement keeps its results until
    `finish()`, see finish_on.
    """

    group: str
    name: str
    statement: str
    operands: Callable[[torch.device], dict[str, Any]]
    bound: float | None
    calls: int = 1


def finish_on(device: torch.device) -> Callable[[], None]:
    """What waits until the results of a statement have been computed."""
    if device.type == "cpu":
        return lambda: None
    synchronize: Callable[[], None] = torch.get_device_module(device).synchronize
    return synchronize


@dataclass
class Row:
    """A measured case: median times in microseconds, `ratio` with its 95 % interval [low, high]."""

    group: str
    name: str
    threads: int
    bound: float | None
    cpu: float
    device: float
    ratio: float
    low: float
    high: float

    @property
    def key(self) -> str:
        return f"{self.group}/{self.name}/{self.threads}"

    @property
    def verdict(self) -> str:
        """A row fails only when its whole interval lies beyond the bound."""
        if self.bound is None:
            return ""
        return "FAIL" if self.low > self.bound else "pass"

    def to_json(self) -> dict[str, Any]:
        return {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[..., Any] = np.median, resamples: int = 4000
) -> tuple[float, float]:
    """95 % percentile-bootstrap interval of a statistic of `values` (deterministic)."""
    samples = np.asarray(values)
    picks = np.random.default_rng(0).integers(len(samples), size=(resamples, len(samples)))
    low, high = np.percentile(statistic(samples[picks], axis=1), [2.5, 97.5])
    return float(low), float(high)


def repetitions(timer: timeit.Timer, least: float = SAMPLE_SECONDS) -> int:
    """How often a statement has to run to last `least` seconds."""
    number = 1
    while True:
        seconds = timer.timeit(number)
        if seconds >= least / 2:
            return max(1, round(number * least / seconds))
        number *= 4


def namespace(case: Case, device: torch.device) -> dict[str, Any]:
    """The names that a case's statement uses."""
    return {"torch": torch, "device": device, "finish": finish_on(device), **case.operands(device)}


def measure(case: Case, device: torch.device, threads: int, pairs: int = PAIRS) -> Row:
    """Time a case in `pairs` interleaved pairs; which side goes first alternates."""
    cpu = torch.device("cpu")
    cpu_timer, device_timer = (
        timeit.Timer(case.statement, globals=namespace(case, d)) for d in (cpu, device)
    )
    number = max(repetitions(cpu_timer), repetitions(device_timer))
    cpu_seconds, device_seconds = [], []
    gc.collect()
    for pair in range(pairs):
        if pair % 2:
            device_seconds.append(device_timer.timeit(number) / number)
            cpu_seconds.append(cpu_timer.timeit(number) / number)
        else:
            cpu_seconds.append(cpu_timer.timeit(number) / number)
            device_seconds.append(device_timer.timeit(number) / number)
    ratios = [d / c for d, c in zip(device_seconds, cpu_seconds, strict=True)]
    low, high = bootstrap_interval(ratios)
    return Row(
        case.group,
        case.name,
        threads,
        case.bound,
        cpu=1e6 * float(np.median(cpu_seconds)) / case.calls,
        device=1e6 * float(np.median(device_seconds)) / case.calls,
        ratio=float(np.median(ratios)),
        low=low,
        high=high,
    )


def measured_cells(
    description: str | None, cases: Sequence[Case]
) -> tuple[argparse.Namespace, list[Row]]:
    """The command of a benchmark that is a list of cells: its options, and their rows."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", default="", help="only cells whose group and name have this in them")
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = [case for case in cases if options.k in f"{case.group} {case.name}"]
    if not chosen:
        parser.error(f"no cell has {options.k!r} in its name")
    pairs = 7 if options.quick else 15
    bar = tqdm(chosen, disable=None, unit="cell")
    return options, [
        measure(case, torch.device("hologram"), options.threads, pairs) for case in bar
    ]


def machine() -> dict[str, str]:
    """What the figures depend on, without naming the machine."""
    properties = torch.hologram.get_device_properties(0)
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor() or "unknown",
    )
    return {
        "processor": f"{model}, {os.cpu_count()} cores, kernels for {properties.isa}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def format_time(microseconds: float) -> str:
    for unit, scale in (("ns", 1e-3), ("us", 1.0), ("ms", 1e3)):
        if microseconds < 1e3 * scale:
            return f"{microseconds / scale:.3g} {unit}"
    return f"{microseconds / 1e6:.3g} s"


HEADER = ("group", "operation", "threads", "torch cpu", "device", "ratio", "95 %", "bound", "")


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.group,
        row.name,
        str(row.threads),
        format_time(row.cpu),
        format_time(row.device),
        f"{row.ratio:.2f}",
        f"{row.low:.2f}..{row.high:.2f}",
        "" if row.bound is None else f"<= {row.bound:.2f}",
        row.verdict,
    )


def text_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first two to the left, figures to the right."""
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i < 2 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, *lines)
    )


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * 2 + ["---:"] * (len(header) - 2)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def replace_section(path: Path, name: str, content: str) -> None:
    """Puts `content` between the comments `begin: name` and `end: name` of a Markdown file."""
    begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
    before, rest = path.read_text().split(begin)
    after = rest.split(end)[1]
    path.write_text(before + begin + content + end + after)


def plot(rows: Sequence[Row], title: str, path: Path) -> None:
    """One line per operation: the ratio with its interval per thread count, and its bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator, NullLocator

    names = list(dict.fromkeys((row.group, row.name) for row in rows))
    threads = sorted({row.threads for row in rows})
    colors = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.34 * len(names)), layout="constrained")
    axes.axvline(1.0, color="0.5", linewidth=1)
    for index, count in enumerate(threads):
        shift = 0.22 * (index - (len(threads) - 1) / 2)
        chosen = [row for row in rows if row.threads == count]
        places = [names.index((row.group, row.name)) + shift for row in chosen]
        ratios = np.array([row.ratio for row in chosen])
        spread = [
            ratios - [min(row.low, row.ratio) for row in chosen],
            [max(row.high, row.ratio) for row in chosen] - ratios,
        ]
        label = f"{count} thread{'s' if count > 1 else ''}"
        axes.errorbar(ratios, places, xerr=spread, fmt="o", ms=4, color=colors[index], label=label)
    bounded = {(row.group, row.name): row.bound for row in rows if row.bound is not None}
    for place, name in enumerate(names):
        if name in bounded:
            axes.plot([bounded[name]] * 2, [place - 0.4, place + 0.4], color="#b00020", linewidth=2)
    axes.plot([], [], color="#b00020", linewidth=2, label="bound")
    axes.set_xscale("log")
    ticks = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    low = min(row.low for row in rows)
    high = max([row.high for row in rows] + [bound for bound in bounded.values() if bound])
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.set_yticks(range(len(names)), [f"{group}: {name}" for group, name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="time on the device / time of torch on the CPU", title=title)
    axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=110)
    plt.close(figure)
