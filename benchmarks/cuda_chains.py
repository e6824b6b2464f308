"""Chains of operations on one NVIDIA GPU, unmodified: ours against torch eager, Inductor and copy_.

    python benchmarks/cuda_chains.py                     the tables
    python benchmarks/cuda_chains.py --only gelu adam    of these chains
    python benchmarks/cuda_chains.py --no-inductor       without torch.compile

Needs an NVIDIA GPU and a torch with CUDA and, for Inductor, Triton. Each chain is written with
primitives (the last one with torch's gelu and layer norm); rows have 1,024 elements. At 10^6 and
10^8 elements the time is between two events of the GPU, which at 10^6 may wait for the host; "of
copy_" is the time that copy_ needs to move as many bytes as the chain has to, over that of ours.
With fewer elements it is the time from the first call until the last result is there, of calls one
after the other, the results of each kept until it has been launched. The last table is a loop in
Python over 200 tensors of 4,096 elements, Adam's arithmetic for each, against torch's fused Adam.

Values are compared with torch eager's first, within what Inductor needs, which contracts products
and sums and keeps float32 between operations. A number is the median of nine turns, in which
everybody comes once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HOLOGRAM_BACKENDS", "cuda")

# After the variable, which is read when the package is loaded.
import common
import torch
from chains.chain import adam, adam_loop, gelu, swiglu
from row_programs.cases import block, layer_norm, softmax
from tqdm import tqdm

from torch_hologram import _C

ROW = 1024
SMALL, LARGE = (1 << 10, 1 << 16), (1 << 20, 100_000_000 // ROW * ROW)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TURNS = 9
# Kernels of ours are compiled beside what runs: none for so long, and at most so long.
WARM_SECONDS, MOST_WARM_SECONDS = 0.25, 10
GPU_SECONDS = 5e-3  # how long calls between two events take together
EAGER, INDUCTOR, OURS = "torch eager", "Inductor", "ours"

Call = Callable[[], Any]
hologram: Any = torch.get_device_module("hologram")


@dataclass(frozen=True)
class Chain:
    """A function of tensors (rows, 1024), or (1024,) where `rows` says False.

    traffic: elements that it has to read and to write for each element of the first operand.
    states: how many of its operands, from the last, are 0 or more, as Adam's squares.
    """

    name: str
    function: Callable[..., Any]
    rows: tuple[bool, ...]
    traffic: int
    states: int = 0

    def operands(self, device: str, dtype: torch.dtype, elements: int) -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        made = []
        for i, rows in enumerate(self.rows):
            shape = (elements // ROW, ROW) if rows else (ROW,)
            values = torch.rand(shape, generator=generator, device="cuda")
            if len(self.rows) - i > self.states:
                values = values * 6 - 3
            # A copy of its own for each device: their memory is apart.
            made.append(values.to(dtype).to(device))
            del values
        return made


CHAINS = [
    Chain("gelu", gelu, (True,), 2),
    Chain("swiglu", swiglu, (True, True), 3),
    Chain("softmax", softmax, (True,), 2),
    Chain("layer norm", layer_norm, (True, False, False), 2),
    Chain("adam", adam, (True, True, True, True), 7, 2),
    Chain("bias, gelu, residual, layer norm", block, (True, False, False), 2),
]


@dataclass(frozen=True)
class Cell:
    """Median times of a chain at one size, in seconds; `copy` is that of copy_ for its bytes."""

    name: str
    elements: int
    times: dict[str, float]
    copy: float | None

    def ratio(self, other: str) -> float | None:
        return self.times[OURS] / self.times[other] if other in self.times else None

    @property
    def share(self) -> float | None:
        """Of copy_'s speed."""
        return self.copy / self.times[OURS] if self.copy else None


def flushed(function: Callable[..., Any], operands: list[Any]) -> Call:
    """Ours, launched; its results live until then, or they would not be computed."""

    def call() -> None:
        result = function(*operands)
        _C.flush_current()
        del result

    return call


def warm(call: Call) -> None:
    """Until no kernel has been compiled for a while, and none of those for any program runs."""

    def state() -> tuple[int, ...]:
        stats = hologram.stream_stats()
        names = ("kernels.compiled", "kernels.found", "groups.cold", "groups.cpu")
        return tuple(stats[name] for name in names)

    begin = since = time.monotonic()
    before = state()
    while time.monotonic() - since < WARM_SECONDS and time.monotonic() - begin < MOST_WARM_SECONDS:
        call()
        torch.cuda.synchronize()
        if (now := state()) != before:
            before, since = now, time.monotonic()


def on_gpu(call: Call) -> Call:
    """What gives seconds of the GPU for a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run(count: int) -> float:
        torch.cuda.synchronize()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / count

    count = max(3, min(200, int(GPU_SECONDS / run(3))))
    return lambda: run(count)


def in_all(call: Call) -> Call:
    """What gives seconds for a call, of many and the wait for the last one."""

    def run(count: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count

    return lambda: run(50)


def medians(timers: dict[str, Call]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in timers}
    names = list(timers)
    for turn in range(TURNS):
        for name in names if turn % 2 == 0 else reversed(names):
            taken[name].append(timers[name]())
    return {name: statistics.median(times) for name, times in taken.items()}


def tensors_of(result: Any, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a chain computed: what it returned, or the operands it may have overwritten."""
    return operands if result is None else [result]


def compare(chain: Chain, dtype: torch.dtype, name: str, got: Any, want: Any) -> None:
    """Raises AssertionError, naming the chain and who computes something else."""
    # Inductor keeps float32 between operations: in bfloat16 a chain's roundings are missing.
    loose = 0.1 if dtype == torch.bfloat16 else 1e-5
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(
            one.cpu(),
            other.cpu(),
            rtol=loose,
            atol=loose,
            msg=lambda text: f"{chain.name}, {name}: {text}",
        )


def measure(chain: Chain, label: str, elements: int, inductor: bool) -> Cell:
    dtype = DTYPES[label]
    compiled = None
    if inductor and elements in LARGE:
        compiled = torch.compile(chain.function, dynamic=False, fullgraph=True)

    def values(function: Callable[..., Any], device: str) -> list[torch.Tensor]:
        operands = chain.operands(device, dtype, min(elements, LARGE[0]))
        return tensors_of(function(*operands), operands)

    want = values(chain.function, "cuda")
    compare(chain, dtype, OURS, values(chain.function, "hologram"), want)
    if compiled is not None and elements == LARGE[0]:
        compare(chain, dtype, INDUCTOR, values(compiled, "cuda"), want)
    del want

    theirs = chain.operands("cuda", dtype, elements)
    calls: dict[str, Call] = {
        EAGER: lambda: chain.function(*theirs),
        OURS: flushed(chain.function, chain.operands("hologram", dtype, elements)),
    }
    if compiled is not None:
        calls[INDUCTOR] = lambda: compiled(*theirs)
        calls[INDUCTOR]()
    calls[EAGER]()
    warm(calls[OURS])
    if elements in LARGE:
        # Reads as many bytes as it writes.
        source = torch.empty(chain.traffic * elements // 2, dtype=dtype, device="cuda").uniform_()
        target = torch.empty_like(source)
        calls["copy"] = lambda: target.copy_(source)
    times = medians({k: (on_gpu if elements in LARGE else in_all)(v) for k, v in calls.items()})
    copy = times.pop("copy", None)
    return Cell(f"{chain.name}, {label}", elements, times, copy)


@torch.no_grad()
def measure_loop() -> dict[str, float]:
    """Adam of 200 tensors of 4,096 elements: seconds of a step."""
    names = ("p", "g", "m", "v")

    def lists(device: str) -> list[list[torch.Tensor]]:
        return [[torch.rand(4096, device=device) for _ in range(200)] for _ in names]

    ours = flushed(adam_loop, lists("hologram"))
    theirs = lists("cuda")
    for p, g in zip(*theirs[:2], strict=True):
        p.grad = g
    optimizer = torch.optim.Adam(theirs[0], lr=1e-3, fused=True)
    eager = lists("cuda")
    calls: dict[str, Call] = {
        "torch's fused Adam": optimizer.step,
        EAGER: lambda: adam_loop(*eager),
        OURS: ours,
    }
    for call in calls.values():
        call()
    warm(ours)
    return medians({name: in_all(call) for name, call in calls.items()})


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def table(cells: list[Cell], gpu: bool) -> str:
    us = [f"us, {name}" for name in (OURS, EAGER, INDUCTOR)]
    header = ("chain", "elements", *us, "times eager's", "times Inductor's", "of copy_")
    lines = [
        (
            cell.name,
            str(cell.elements),
            *(number(1e6 * t if (t := cell.times.get(k)) else None, ".1f")
              for k in (OURS, EAGER, INDUCTOR)),
            number(cell.ratio(EAGER), ".2f"),
            number(cell.ratio(INDUCTOR), ".2f"),
            number(cell.share, ".1%"),
        )
        for cell in cells
        if (cell.elements in LARGE) == gpu
    ]  # fmt: skip
    drop = [i for i in range(len(header)) if not any(line[i] for line in lines)]
    kept = [i for i in range(len(header)) if i not in drop]
    return common.text_table([header[i] for i in kept], [[line[i] for i in kept] for line in lines])


def loop_table(times: dict[str, float]) -> str:
    lines = [(name, f"{1e6 * t:.0f}", f"{times[OURS] / t:.2f}") for name, t in times.items()]
    return common.text_table(("Adam, 200 tensors", "us", "ours, times that"), lines)


def measured(only: list[str] | None = None, inductor: bool = True) -> list[Cell]:
    chosen = [
        (chain, label, elements)
        for elements in (*SMALL, *LARGE)
        for chain in CHAINS
        for label in DTYPES
        if only is None or chain.name in only
    ]
    cells: list[Cell] = []
    with torch.no_grad():
        for chain, label, elements in tqdm(chosen, disable=None, unit="cell"):
            cells.append(measure(chain, label, elements, inductor))
            torch._dynamo.reset()  # which holds what it compiled, and that its operands
            for device in ("hologram", "cuda"):
                torch.get_device_module(device).empty_cache()
    return cells


def text(cells: list[Cell], loop: dict[str, float]) -> str:
    return "\n\n".join((table(cells, True), table(cells, False), loop_table(loop)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [chain.name for chain in CHAINS]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names)
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available() or _C.device_backend(0) != "cuda":
        print("there is no GPU that torch and the package can use", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(text(measured(options.only, not options.no_inductor), measure_loop()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
