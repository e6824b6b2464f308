"""Whole models on the device against torch on the CPU: forward passes and training steps.

    python benchmarks/models.py               measure, print, write results/models.*
    python benchmarks/models.py --inductor    torch.compile on the CPU instead; adds columns
    python benchmarks/models.py -k REGEX      the models whose name matches; prints only
    python benchmarks/models.py --quick       few pairs and no account of the time; prints only
    python benchmarks/models.py --at-once 6   six models at a time, each on cores of its own

A forward pass runs in evaluation and inference mode. A training step is zero_grad, forward,
backward and AdamW. Each thread count is measured in a process of its own, the two devices in
interleaved pairs. First every model's predictions and losses are compared with the CPU's; exit
status 1 when they differ. The first run takes up to 15 minutes on two cores, the second up to an
hour. Needs the packages in requirements/models.txt and integrations.txt.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from account import Kind, account
from common import Case, Row
from same_draws import SameDraws
from tqdm import tqdm
from zoo import MODELS, VOCABULARY, Model, Program

import torch_hologram  # noqa: F401  (autoload does the same; this line also works with it off)

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
THREADS = (1, 2)
SECONDS = 2.5  # for the pairs of one row
MOST_PAIRS, LEAST_PAIRS, QUICK_PAIRS = 31, 7, 3
FORWARD, TRAINING = "forward", "training step"
STEPS = 3  # of training that are compared
LEARNING_RATE = 1e-4
# Rounding differs from kernel to kernel, and grows from layer to layer and from step to step.
TOLERANCE = {FORWARD: 1e-3, TRAINING: 1e-2}


@dataclass
class Result:
    """A model in one mode with one number of threads."""

    model: str
    row: Row
    # Largest, of what is compared, relative to its largest value; None where nothing is.
    difference: float | None
    accounts: dict[str, dict[str, float]] = field(default_factory=dict)  # device: kind: us

    @property
    def wrong(self) -> bool:
        if self.difference is None:
            return False
        return not self.difference <= TOLERANCE[self.row.group]  # also when it is no number

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "row": self.row.to_json()}

    @staticmethod
    def from_json(content: dict[str, Any]) -> Result:
        return Result(**{**content, "row": Row(**content["row"])})


# ---- what is run ---------------------------------------------------------------------------------


def forward(program: Program) -> Callable[[], list[torch.Tensor]]:
    def run() -> list[torch.Tensor]:
        with torch.inference_mode():
            return program.predict()

    return run


def training_step(program: Program) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.AdamW(program.module.parameters(), lr=LEARNING_RATE)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = program.loss()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run


def relative(mine: torch.Tensor, wanted: torch.Tensor) -> float:
    mine = mine.detach().cpu()
    if mine.shape != wanted.shape or not bool(torch.isfinite(wanted).all()):
        return float("nan")
    return float((mine - wanted).abs().max() / wanted.abs().max().clamp_min(1e-6))


def compare(mode: str, runs: dict[str, Callable[[], Any]]) -> float:
    """The largest difference between what the device and the CPU compute, from the same state."""
    found: dict[str, list[torch.Tensor]] = {}
    for device, run in runs.items():
        with SameDraws(2):
            found[device] = run() if mode == FORWARD else [run() for _ in range(STEPS)]
    return max(
        relative(mine, wanted.detach())
        for mine, wanted in zip(found["hologram"], found["cpu"], strict=True)
    )


# ---- measuring -----------------------------------------------------------------------------------


def in_turn(*functions: Callable[[], Any]) -> None:
    for function in functions:
        function()


def case_of(mode: str, model: Model, sides: list[Callable[[], Any]]) -> Case:
    """common.measure asks for the operands of the CPU first, then for those of the device."""
    turns = iter(sides)
    return Case(mode, model.name, "result = run(); finish()", lambda _: {"run": next(turns)}, None)


def pairs_for(sides: list[Callable[[], Any]], quick: bool) -> int:
    """How many pairs of a row fit into SECONDS."""
    if quick:
        return QUICK_PAIRS
    start = time.perf_counter()
    in_turn(*sides, common.finish_on(torch.device("hologram")))
    pair = max(time.perf_counter() - start, 4 * common.SAMPLE_SECONDS)
    return max(LEAST_PAIRS, min(MOST_PAIRS, round(SECONDS / pair)))


def measure(model: Model, threads: int, quick: bool) -> list[Result]:
    device = torch.device("hologram")
    programs = {str(d): model.make(d) for d in (torch.device("cpu"), device)}
    results = []
    for mode, prepare in ((FORWARD, forward), (TRAINING, training_step)):
        runs: dict[str, Callable[[], Any]] = {}
        for name, program in programs.items():
            program.module.train(mode == TRAINING)
            runs[name] = prepare(program)
        difference = compare(mode, runs)
        sides = [runs["cpu"], runs["hologram"]]
        row = common.measure(case_of(mode, model, sides), device, threads, pairs_for(sides, quick))
        result = Result(model.name, row, difference)
        if not quick:
            for name, microseconds in (("cpu", row.cpu), ("hologram", row.device)):
                on = torch.device(name)
                result.accounts[name] = account(
                    partial(in_turn, runs[name], common.finish_on(on)), on, microseconds
                )
        results.append(result)
    return results


def measure_compiled(model: Model, threads: int, only_compile: bool) -> list[Result]:
    """torch.compile on the CPU in the device's place; `difference` is that to eager mode.

    Training is not compared: compiled dropout draws other numbers than torch's. With
    `only_compile` the results are empty and Inductor's cache holds what is compiled.
    """
    cpu = torch.device("cpu")
    programs = {"cpu": model.make(cpu), "hologram": model.make(cpu)}
    compiled = programs["hologram"]
    compiled.module.forward = torch.compile(compiled.module.forward)
    results = []
    for mode, prepare in ((FORWARD, forward), (TRAINING, training_step)):
        torch.compiler.reset()
        runs = {}
        for name, program in programs.items():
            program.module.train(mode == TRAINING)
            runs[name] = prepare(program)
        if only_compile:
            runs["hologram"]()
            continue
        difference = compare(mode, runs) if mode == FORWARD else None
        sides = [runs["cpu"], runs["hologram"]]
        pairs = pairs_for(sides, quick=False)
        row = common.measure(case_of(mode, model, sides), cpu, threads, pairs)
        results.append(Result(model.name, row, difference))
    return results


def measure_here(threads: int, options: argparse.Namespace) -> list[Result]:
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore")  # those of the models, about their own code
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    results: list[Result] = []
    chosen = [model for model in MODELS if re.search(options.k, model.name)]
    with tqdm(chosen, file=sys.stderr) as progress:
        for model in progress:
            progress.set_description(f"{threads} thread(s), {model.name}".ljust(36))
            if options.inductor:
                results += measure_compiled(model, threads, options.only_compile)
            else:
                results += measure(model, threads, options.quick)
            gc.collect()
    return results


def measure_apart(threads: int, arguments: list[str], cores: list[int]) -> list[Result]:
    """Measure in a fresh process, so that thread pools and caches start equal; cores: [] for all"""
    command = [sys.executable, __file__, "--worker", str(threads), *arguments]
    command += ["--cores", *(str(core) for core in cores)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "KINETO_LOG_LEVEL": "10"}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return [Result.from_json(content) for content in json.loads(output.splitlines()[-1])]


def measure_all(
    threads: list[int], pattern: str, arguments: list[str], at_once: int
) -> list[Result]:
    """In one process per number of threads; `at_once` of several: in one per model too."""
    if at_once == 1:
        arguments = ["-k", pattern, *arguments]
        if "--inductor" in arguments:  # most of its time; the kernels depend on the threads
            with ThreadPoolExecutor() as pool:
                compile = partial(measure_apart, arguments=[*arguments, "--only-compile"], cores=[])
                list(pool.map(compile, threads))
        return [r for count in threads for r in measure_apart(count, arguments, [])]
    cores = sorted(os.sched_getaffinity(0))
    free = [cores[n * max(THREADS) :][: max(THREADS)] for n in range(at_once)]

    def one(name: str, count: int) -> list[Result]:
        mine = free.pop()  # there are as many sets as workers
        try:
            return measure_apart(count, ["-k", f"^{re.escape(name)}$", *arguments], mine)
        finally:
            free.append(mine)

    names = [model.name for model in MODELS if re.search(pattern, model.name)]
    with ThreadPoolExecutor(at_once) as pool:
        tasks = [pool.submit(one, name, count) for count, name in product(threads, names)]
        return [result for task in tasks for result in task.result()]


# ---- reporting -----------------------------------------------------------------------------------

Ratios = dict[tuple[str, str, int], Row]  # (model, mode, threads)


def by_row(results: list[Result]) -> Ratios:
    return {(r.model, r.row.group, r.row.threads): r.row for r in results}


def geometric_mean(ratios: list[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def ratio_table(results: list[Result], compiled: Ratios) -> tuple[list[str], list[list[str]]]:
    """One line per model: the ratio, and the time on the CPU with one thread."""
    rows = by_row(results)
    columns = [(mode, threads) for mode in (FORWARD, TRAINING) for threads in THREADS]
    columns = [column for column in columns if any(key[1:] == column for key in rows)]
    header = ["model", "size"]
    for mode, threads in columns:
        header.append(f"{mode}, {threads} thread{'s' if threads > 1 else ''}")
        header += ["compiled"] if compiled else []
    header += [f"torch cpu, {mode}" for mode in (FORWARD, TRAINING)]
    lines = []
    sums: list[list[float]] = [[] for _ in header]
    for model in MODELS:
        if not any(key[0] == model.name for key in rows):
            continue
        line = [model.name + ("*" if model.note else ""), model.size]
        for column in columns:
            for source in (rows, compiled) if compiled else (rows,):
                row = source.get((model.name, *column))
                if row is not None:
                    sums[len(line)].append(row.ratio)
                line.append("" if row is None else f"{row.ratio:.2f}")
        for mode in (FORWARD, TRAINING):
            line.append(common.format_time(rows[model.name, mode, columns[0][1]].cpu))
        lines.append(line)
    means = [f"{geometric_mean(values):.2f}" if values else "" for values in sums[2:]]
    lines.append(["geometric mean", "", *means])
    return header, lines


def account_table(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Shares of the time of torch on the CPU, with one thread."""
    header = ["model", "mode"]
    for kind in Kind:
        header += [f"{kind.value}: cpu", "device"]
    lines = []
    for result in results:
        if result.row.threads != 1 or not result.accounts:
            continue
        line = [result.model, result.row.group]
        for kind in Kind:
            for device in ("cpu", "hologram"):
                line.append(f"{100 * result.accounts[device][kind.value] / result.row.cpu:.0f} %")
        lines.append(line)
    return header, lines


def plot(results: list[Result], path: Path) -> None:
    """Two panels, forward and training: where the time goes on either device, one thread."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    names = [model.name for model in MODELS if any(r.model == model.name for r in results)]
    colors = dict(zip(Kind, ["#0072b2", "#999999", "#009e73", "#e69f00"], strict=True))
    figure, panels = plt.subplots(
        1, 2, figsize=(12, 1.4 + 0.42 * len(names)), layout="constrained", sharey=True
    )
    for axes, mode in zip(panels, (FORWARD, TRAINING), strict=True):
        for result in results:
            if result.row.group != mode or result.row.threads != 1 or not result.accounts:
                continue
            for shift, device in ((-0.2, "cpu"), (0.2, "hologram")):
                start = 0.0
                for kind in Kind:
                    share = result.accounts[device][kind.value] / result.row.cpu
                    axes.barh(
                        names.index(result.model) + shift,
                        share,
                        left=start,
                        height=0.36,
                        color=colors[kind],
                        alpha=0.55 if device == "cpu" else 1.0,
                    )
                    start += share
        axes.axvline(1.0, color="0.3", linewidth=1)
        axes.set(xlabel="time / time of torch on the CPU", title=f"{mode}, one thread")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    handles = [Patch(color=color) for color in colors.values()]
    figure.legend(
        handles,
        [*(kind.value for kind in Kind)],
        loc="outside upper center",
        ncols=4,
        frameon=False,
        title="upper bar, pale: torch on the CPU; lower bar: the device",
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def versions() -> dict[str, str]:
    return {**common.machine(), **{name: version(name) for name in ("transformers", "timm")}}


def machine_lines(content: dict[str, Any]) -> list[str]:
    """What either run was made on; once if it was the same."""
    machines = {key: content.get(f"machine of {key}") for key in ("results", "compiled")}
    if machines["compiled"] in (None, machines["results"]):
        machines = {"": machines["results"]}
    titles = {"": "", "results": "device, ", "compiled": "`compiled`, "}
    return [
        f"- {titles[key]}{name}: {value}"
        for key, machine in machines.items()
        for name, value in (machine or {}).items()
    ]


def write_results(content: dict[str, Any]) -> None:
    """models.json, and what is made of it."""
    results = [Result.from_json(one) for one in content["results"]]
    compiled = by_row([Result.from_json(one) for one in content.get("compiled", [])])
    (RESULTS / "models.json").write_text(json.dumps(content, indent=1) + "\n")
    header, lines = ratio_table(results, compiled)
    table = common.markdown_table(header, lines)
    worst = max(result.difference for result in results if result.difference is not None)
    notes = [f"\\* {model.name}: {model.note}." for model in MODELS if model.note]
    text = [
        "# Whole models on the CPU backend, against torch on the CPU",
        "",
        "Written by `make bench-models`. A ratio is the time on the device over the time of torch",
        f"on the CPU, the median of {LEAST_PAIRS} to {MOST_PAIRS} interleaved pairs; below 1 the",
        "device is faster. Forward passes are in inference mode; a training step is zero_grad,",
        "forward, backward and AdamW, with the model's own dropout. float32, random weights,",
        f"vocabulary {VOCABULARY}. Predictions, and the losses of the first {STEPS} steps, are",
        f"compared with the CPU's in the same run: the largest relative difference is {worst:.1e}.",
        *(
            ["`compiled`: torch.compile on the CPU against torch on the CPU in eager mode, from a",
             "run of its own, `make bench-models ARGS=--inductor`."]
            if compiled else []
        ),
        "",
        *machine_lines(content),
        "",
        table,
        "",
        *notes,
        "",
        "## Where the time goes",
        "",
        "Percent of the time of torch on the CPU, with one thread, on the CPU and on the device.",
        "`products`: matrix products, convolutions, attention and whole recurrent layers. `torch's",
        "others`: its other kernels. `ours`: the device's own passes. `neither`: dispatching,",
        "allocation, autograd, recording, Python. Estimates: from torch's profiler, less what it",
        "sees of a call that does nothing.",
        "",
        common.markdown_table(*account_table(results)),
        "",
        "![where the time goes](models.png)",
        "",
    ]  # fmt: skip
    (RESULTS / "models.md").write_text("\n".join(text))
    plot(results, RESULTS / "models.png")
    if "<!-- begin: make bench-models -->" in README.read_text():
        common.replace_section(README, "make bench-models", "\n\n".join([table, *notes]) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inductor", action="store_true", help="measure torch.compile on the CPU")
    parser.add_argument("--quick", action="store_true", help="few pairs, no account; prints only")
    parser.add_argument("-k", default="", metavar="REGEX", help="these models; prints only")
    parser.add_argument("--threads", type=int, choices=THREADS, help="one of the thread counts")
    parser.add_argument(
        "--at-once", type=int, default=1, metavar="N", help="models measured at a time (default 1)"
    )
    parser.add_argument("--worker", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    parser.add_argument("--only-compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, nargs="*", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    can_pin = hasattr(os, "sched_setaffinity")
    most = max(1, len(os.sched_getaffinity(0)) // max(THREADS)) if can_pin else 1
    if not 1 <= options.at_once <= most:
        parser.error(f"--at-once {options.at_once}: this machine has cores for 1 to {most}")
    return options


def main() -> int:
    options = parse_arguments()
    if options.worker:
        results = measure_here(options.worker, options)
        print(json.dumps([result.to_json() for result in results]))
        return 0
    try:
        versions()
    except ModuleNotFoundError as error:
        install = "pip install --no-deps -r requirements/models.txt"
        print(f"models.py: {error}: {install}", file=sys.stderr)
        return 2
    arguments = ["--quick"] if options.quick else []
    arguments += ["--inductor"] if options.inductor else []
    threads = [options.threads] if options.threads else list(THREADS)
    results = measure_all(threads, options.k, arguments, options.at_once)
    print(common.text_table(*ratio_table(results, {})))
    if not options.quick and not options.inductor:
        print("\n" + common.text_table(*account_table(results)))
    if not options.quick and not options.k and not options.threads:
        file = RESULTS / "models.json"
        content = json.loads(file.read_text()) if file.exists() else {"results": []}
        key = "compiled" if options.inductor else "results"
        content[key] = [result.to_json() for result in results]
        content[f"machine of {key}"] = versions() | {"models at a time": str(options.at_once)}
        if content["results"]:
            write_results(content)
            print("\nwrote benchmarks/results/models.*")
    wrong = [f"{r.model} {r.row.group} ({r.difference:.1e})" for r in results if r.wrong]
    if wrong:
        print("DIFFERENT FROM THE CPU: " + ", ".join(wrong), file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
