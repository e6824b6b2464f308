"""What the core takes, measured without torch."""

from __future__ import annotations

import subprocess
import sys

from chains.paths import ROOT

Figures = list[tuple[str, float, float | None]]  # what is measured, nanoseconds, bound


def core_figures() -> Figures:
    """Runs csrc/test/bench_window.cpp."""
    folder = ROOT / "csrc" / "test"
    subprocess.run(["make", "-s", "-C", folder, "window-build"], check=True, stdout=sys.stderr)
    program = ROOT / "build" / "core-test" / "window" / "test"
    output = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: Figures = []
    for line in output.splitlines()[2:]:
        name, nanoseconds, bound = (text.strip() for text in line.strip("|").split("|"))
        figures.append((name, float(nanoseconds), float(bound) if bound else None))
    return figures
