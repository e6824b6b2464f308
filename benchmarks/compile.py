"""What torch.compile costs or saves on the device, per training step of a small network.

usage: python benchmarks/compile.py

Prints microseconds of processor time for one step of SGD, run by itself and compiled with
backend="hologram": medians of 9 pairs, measured in turn on one thread. Writes nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

PAIRS = 9
STEPS = 50


def training_step(width: int, batch: int, compiled: bool) -> Callable[[], None]:
    """A step of a network with one hidden layer of `width`, over a batch of that size."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, 10)
    ).to("hologram")
    run = torch.compile(model, backend="hologram") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(batch, width, device="hologram")
    y = torch.randint(0, 10, (batch,), device="hologram")

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run(x), y).backward()
        optimizer.step()

    return step


def microseconds(step: Callable[[], None]) -> float:
    """Of one step, with its results computed."""
    start = time.thread_time_ns()
    for _ in range(STEPS):
        step()
    torch.accelerator.synchronize()
    return (time.thread_time_ns() - start) / STEPS / 1000


def main() -> None:
    torch.set_num_threads(1)
    print("| hidden layer | batch | eager us | compiled us | compiled / eager |")
    print("|---:|---:|---:|---:|---:|")
    for width, batch in ((16, 8), (64, 32), (512, 128)):
        plain, compiled = (training_step(width, batch, way) for way in (False, True))
        for step in (plain, compiled):
            microseconds(step)  # compiles, and fills caches
        pairs = [(microseconds(plain), microseconds(compiled)) for _ in range(PAIRS)]
        eager, traced = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(traced / eager for eager, traced in pairs)
        print(f"| {width} | {batch} | {eager:.0f} | {traced:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
