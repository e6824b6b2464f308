"""The host's time for a few operations of the CUDA backend against torch's on the same GPU.

    python benchmarks/cuda_host_time.py
    python benchmarks/cuda_host_time.py --repeats 50

Needs an NVIDIA GPU and a torch with CUDA. Of ours a call records, flushes and launches; nothing
waits for the GPU while it is measured, and there are too few launches at a time to fill its queue.
Loops of ours and of torch's take turns. Printed are microseconds for a call, the least of so many
loops, ours over torch's, and what has run ours: kernels emitted for it, kernels for each operation,
cold ones, the CPU, kernels that move elements, or torch's. "recording" is an addition of a window
of 32 that is not launched yet, over one that torch launches; "a window of 32" is its launch.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HOLOGRAM_BACKENDS", "cuda")

# After the variable, which is read when the package is loaded.
import common
import torch

from torch_hologram import _C

# Fewer than a stream takes before a launch waits.
LAUNCHES = 1000
ELEMENTS = 1024
WINDOW = 32  # additions
hologram: Any = torch.get_device_module("hologram")
FORMS = ("emitted", "pieces", "cold", "cpu", "moves")


def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def additions(x: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    """So many operations: one launch where they are recorded."""
    z = x
    for _ in range(count):
        z = z + y
    return z


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return additions(x, y, 10)


def row_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.add_(y)


# What is called, and how many launches of torch's that is.
CALLS = {"x + y": (one, 1), "ten additions": (chain, 10), "sum of rows": (row_sums, 1),
         "in place": (in_place, 1)}  # fmt: skip


@dataclass
class Loop:
    """Calls, and the least mean of a loop of n of them, in microseconds."""

    call: Callable[[], None]
    finish: Callable[[], None]
    n: int
    least: float = float("inf")

    def run(self) -> None:
        self.finish()
        begin = time.perf_counter()
        for _ in range(self.n):
            self.call()
        self.least = min(self.least, 1e6 * (time.perf_counter() - begin) / self.n)
        self.finish()


@dataclass
class Windows:
    """Windows of WINDOW additions: least mean microseconds of recording one, and of a launch."""

    x: torch.Tensor
    y: torch.Tensor
    recording: float = float("inf")
    launching: float = float("inf")

    def run(self, count: int = LAUNCHES // WINDOW) -> None:
        hologram.synchronize()
        recording = launching = 0.0
        for _ in range(count):
            begin = time.perf_counter()
            z = additions(self.x, self.y, WINDOW)
            middle = time.perf_counter()
            _C.flush_current()
            launching += time.perf_counter() - middle
            recording += middle - begin
            del z
        hologram.synchronize()
        self.recording = min(self.recording, 1e6 * recording / count / WINDOW)
        self.launching = min(self.launching, 1e6 * launching / count)


def runs() -> list[int]:
    """How often groups were run by each of FORMS."""
    counts = (ctypes.c_uint64 * len(FORMS))()
    ctypes.CDLL(_C.__file__).hologram_cuda_runs(counts)
    return list(counts)


def loop_of(function: Callable, launches: int, device: str) -> Loop:
    module = torch.get_device_module(device)
    x, y = (torch.rand(32, ELEMENTS // 32, device=device) for _ in range(2))

    def flushed() -> None:
        result = function(x, y)  # held, or it would not be computed
        _C.flush_current()
        del result

    def plain() -> None:
        function(x, y)

    call = flushed if device == "hologram" else plain
    for _ in range(20):
        call()
    return Loop(call, module.synchronize, LAUNCHES // launches)


def measured(repeats: int = 20) -> list[tuple[str, ...]]:
    """The lines of the table."""
    lines = []
    for name, (function, launches) in CALLS.items():
        theirs = loop_of(function, launches, "cuda")
        before = runs()
        ours = loop_of(function, launches, "hologram")
        # In turns, so that both see the machine as it is at the time.
        for _ in range(repeats):
            theirs.run()
            ours.run()
        ran = [form for form, a, b in zip(FORMS, before, runs(), strict=True) if b > a]
        values = (ours.least / theirs.least, ours.least, theirs.least)
        times = [f"{value:.2f}" for value in values]
        lines.append((name, *times, ", ".join(ran) or "torch's"))
    x, y = (torch.rand(32, ELEMENTS // 32, device="hologram") for _ in range(2))
    windows = Windows(x, y)
    # Of as many elements, the loop's 32 and what makes it a loop.
    theirs = loop_of(lambda x, y: additions(x, y, WINDOW), WINDOW, "cuda")
    for _ in range(repeats + 1):
        theirs.run()
        windows.run()
    each = theirs.least / WINDOW
    times = [f"{value:.2f}" for value in (windows.recording / each, windows.recording, each)]
    lines.append(("recording", *times, ""))
    lines.append(("a window of 32", "", f"{windows.launching:.2f}", "", ""))
    return lines


def text(lines: list[tuple[str, ...]]) -> str:
    return common.text_table(("call", "times torch's", "us", "us, torch", "run by"), lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or _C.device_backend(0) != "cuda":
        print("there is no GPU that torch and the package can use", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(text(measured(arguments.repeats)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
