"""All that `make bench-cuda` measures on one NVIDIA GPU, against torch on the same GPU.

    python benchmarks/cuda_all.py                        print the tables
    python benchmarks/cuda_all.py --write                and benchmarks/results, README's table
    python benchmarks/cuda_all.py --only steps chains    these parts

Needs an NVIDIA GPU, a torch with CUDA and Triton, and matplotlib to write. The parts are programs
of their own, which say what they measure: cuda_steps.py (one round), cuda_chains.py,
cuda_products.py, cuda_host_time.py. It takes up to six minutes on an H100 with sixteen cores.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HOLOGRAM_BACKENDS", "cuda")

# After the variable, which is read when the package is loaded.
import common
import cuda_chains
import cuda_host_time
import cuda_products
import cuda_steps
import torch

from torch_hologram import _C

RESULTS = Path(__file__).resolve().parent / "results"
README = RESULTS.parent.parent / "README.md"
READINGS = 8
# What the README compares, and which of ours.
EAGER, OURS = "eager", ("hologram", "hologram-fused")

Lines = dict[str, list[cuda_steps.Line]]


def steps() -> tuple[Lines, str]:
    names = cuda_steps.MODELS
    who = [its for its in cuda_steps.COMPETITORS if its != "hologram-launched"]
    lines = {name: cuda_steps.measured(name, who, 1, READINGS) for name in names}
    return lines, "\n\n".join(f"{name}\n{cuda_steps.text(its)}" for name, its in lines.items())


def chains() -> tuple[list[cuda_chains.Cell], str]:
    cells = cuda_chains.measured()
    return cells, cuda_chains.text(cells, cuda_chains.measure_loop())


def products() -> tuple[list[cuda_products.Row], str]:
    rows = cuda_products.measured()
    return rows, cuda_products.text(rows)


def host() -> tuple[None, str]:
    return None, cuda_host_time.text(cuda_host_time.measured())


# Name: its title, the program, what measures it.
PARTS: dict[str, tuple[str, str, Callable[[], tuple[Any, str]]]] = {
    "steps": ("Training steps", "cuda_steps.py --rounds 1 --readings 8", steps),
    "chains": ("Chains of operations", "cuda_chains.py", chains),
    "products": ("Matrix products and attention", "cuda_products.py", products),
    "host": ("Host time of one operation", "cuda_host_time.py", host),
}


def best_of_torch(lines: list[cuda_steps.Line]) -> cuda_steps.Line:
    return min((its for its in lines if its.ratio and not its.who.startswith("hologram")),
               key=lambda its: its.step)  # fmt: skip


def headline(found: Lines) -> str:
    """A line for each model: microseconds of a step."""
    header = ("step", "torch's best is", "torch eager", "torch's best", "hologram",
              "GPU alone: torch eager", "torch's best", "hologram")  # fmt: skip
    rows = []
    for name, lines in found.items():
        by_name = {its.who: its for its in lines}
        ours = min((by_name[its] for its in OURS if its in by_name), key=lambda its: its.step)
        best = best_of_torch(lines)
        three = (by_name[EAGER], best, ours)
        rows.append(
            (
                name,
                cuda_steps.COMPETITORS[best.who],
                *(f"{its.step:.0f} us" for its in three),
                *(f"{its.on_gpu:.0f} us" for its in three),
            )
        )
    return common.markdown_table(header, rows)


def draw(path: Path, found: dict[str, Any], gpu: str) -> None:
    """Steps, and chains at 10^8 elements."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = ("steps", "chains")
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(9, 4.5 * len(shown)), layout="constrained", squeeze=False
    )
    for axis, part in zip(axes[:, 0], shown, strict=True):
        if part == "steps":
            names = list(found[part])
            who = [*cuda_steps.COMPETITORS]
            for i, its in enumerate(who):
                values = [
                    next((1e-3 * line.step for line in found[part][name] if line.who == its), 0)
                    for name in names
                ]
                places = [n + 0.8 * (i / len(who) - 0.5) for n in range(len(names))]
                color = "tab:blue" if its.startswith("hologram") else "0.6"
                bars = axis.bar(places, values, 0.09, color=color)
                labels = [cuda_steps.COMPETITORS[its]] * len(names)
                axis.bar_label(bars, labels, rotation=90, fontsize=6, padding=2)
            axis.set_xticks(range(len(names)), names)
            axis.set_yscale("log")
            axis.set_ylim(top=axis.get_ylim()[1] * 8)
            axis.set(ylabel="ms", title=f"A training step, {gpu}")
        else:
            cells = [its for its in found[part] if its.elements == cuda_chains.LARGE[-1]]
            labels = [its.name for its in cells]
            for i, its in enumerate((cuda_chains.EAGER, cuda_chains.INDUCTOR, cuda_chains.OURS)):
                shares = [100 * cell.copy / cell.times.get(its, float("inf")) for cell in cells]
                places = [n + 0.27 * (i - 1) for n in range(len(cells))]
                color = ("0.75", "0.5", "tab:blue")[i]
                axis.barh(places, shares, 0.25, color=color, label=its)
            axis.axvline(100, color="0.3", linewidth=1)
            axis.set_yticks(range(len(labels)), labels)
            axis.invert_yaxis()
            axis.legend(frameon=False)
            axis.set(xlabel="% of the speed of copy_ for as many bytes",
                     title=f"Chains of {cuda_chains.LARGE[-1]} elements")  # fmt: skip
    figure.savefig(path, dpi=110)
    plt.close(figure)


def commit() -> str:
    """Of the tree, as git says it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=README.parent, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def write(gpu: str, of: str, texts: dict[str, str], found: dict[str, Any]) -> None:
    """The parts that were measured, of a commit; the others stay as they are."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + "-speed"
    path = RESULTS / f"{name}.md"
    if not path.exists():
        parts = "\n\n".join(f"<!-- begin: {its} -->\n<!-- end: {its} -->" for its in PARTS)
        path.write_text(
            f"# Speed on an {gpu}\n\nWritten by `make bench-cuda` (`python benchmarks/cuda_all.py "
            "--write`): ours and torch's own CUDA on the\nsame GPU, in one run.\n\n"
            f"![steps and chains]({name}.png)\n\n{parts}\n"
        )
    versions = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    when = f"commit {of}, {datetime.date.today()}"
    for part, table in texts.items():
        title, program, _ = PARTS[part]
        content = (
            f"## {title} (`benchmarks/{program}`)\n\n{gpu}, {versions}, {when}\n\n"
            f"```\n{table}\n```\n"
        )
        common.replace_section(path, part, content)
    if {"steps", "chains"} <= found.keys():
        draw(RESULTS / f"{name}.png", found, gpu)
    if "steps" in found:
        text = f"{headline(found['steps'])}\n\n{gpu}, {versions}, {when}\n"
        common.replace_section(README, "make bench-cuda", text)
    print(f"written to benchmarks/results/{name}.md")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--write", action="store_true", help="write results and README's table")
    parser.add_argument("--commit", help="what is measured, where the tree has no history")
    options = parser.parse_args()
    if not torch.cuda.is_available() or _C.device_backend(0) != "cuda":
        print("there is no GPU that torch and the package can use", file=sys.stderr)
        return 1
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, torch {torch.__version__}")
    found: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for part in options.only:
        title, program, run = PARTS[part]
        begin = time.monotonic()
        found[part], texts[part] = run()
        print(f"\n{title} ({program}), {time.monotonic() - begin:.0f} s\n{texts[part]}", flush=True)
    if options.write:
        write(gpu, options.commit or commit(), texts, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
