"""Matrix products of the CUDA backend against torch's on the same GPU.

    python benchmarks/cuda_products.py                  the table
    python benchmarks/cuda_products.py --check 0.99     and fail where ours has less speed

Needs an NVIDIA GPU and a torch with CUDA. Of square matrices and of shapes that models have, in
bfloat16, float32 with TF32, and float32: the speed of torch's `cuda` device and of ours, in 10^12
operations a second, and their ratio. Of small ones the time that the host needs for a call, while
the GPU is behind. Each number is the median of six turns, of which each device comes first in
three.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

os.environ.setdefault("HOLOGRAM_BACKENDS", "cuda")

# After the variable, which is read when the package is loaded.
import common
import torch

from torch_hologram import _C

DEVICES = ("cuda", "hologram")
SQUARES = (512, 1024, 2048, 4096, 8192)
# rows, inner, columns: of a language model's layers, of one token, of a tall and of a wide matrix.
OTHERS = (
    (4096, 1024, 4096),
    (4096, 4096, 1024),
    (1, 4096, 4096),
    (16, 4096, 4096),
    (65536, 64, 64),
)
PRECISIONS = (
    ("bf16", torch.bfloat16, False),
    ("tf32", torch.float32, True),
    ("f32", torch.float32, False),
)
TURNS = 7  # of which the first warms up

Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """A product, or a call: of each device in `numbers` a speed, or a time."""

    name: str
    unit: str
    numbers: tuple[float, float]

    @property
    def speed(self) -> float:
        """Ours by torch's."""
        theirs, ours = self.numbers
        return theirs / ours if self.unit == "us" else ours / theirs


def typical(
    calls: tuple[Call, Call], seconds_of: Callable[[str, Call], float]
) -> tuple[float, float]:
    """The median time of each device's call, in seconds."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS):
        # A GPU that has computed for a while is slower: neither always comes first.
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            taken[i].append(seconds_of(DEVICES[i], calls[i]))
    return statistics.median(taken[0][1:]), statistics.median(taken[1][1:])


def on_gpu(device: str, call: Call) -> float:
    """Seconds that the GPU takes for a call, of as many as take some milliseconds."""
    module = torch.get_device_module(device)
    begin, end = (module.Event(enable_timing=True) for _ in range(2))

    def run(count: int) -> float:
        begin.record()
        for _ in range(count):
            call()
        end.record()
        module.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    run(3)
    count = max(5, min(1000, int(0.01 / (run(5) / 5))))
    return run(count) / count


def on_host(device: str, call: Call) -> float:
    """Seconds until a call returns."""
    module = torch.get_device_module(device)
    for _ in range(50):
        call()
    module.synchronize()
    begin = time.perf_counter()
    for _ in range(300):
        call()
    taken = (time.perf_counter() - begin) / 300
    module.synchronize()
    return taken


def two(make: Callable[[str], Call]) -> tuple[Call, Call]:
    return make(DEVICES[0]), make(DEVICES[1])


def products() -> Iterator[Row]:
    for name, dtype, tf32 in PRECISIONS:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for m, k, n in (*((n, n, n) for n in SQUARES), *OTHERS):

            def make(
                device: str, m: int = m, k: int = k, n: int = n, dtype: torch.dtype = dtype
            ) -> Call:
                a = torch.randn(m, k, device=device).to(dtype)
                b = torch.randn(n, k, device=device).to(dtype).t()
                kept = [a @ b]
                return lambda: kept.__setitem__(0, a @ b)

            seconds = typical(two(make), on_gpu)
            work = 2e-12 * m * k * n
            yield Row(f"{name}, {m} x {k} x {n}", "TFLOP/s", (work / seconds[0], work / seconds[1]))
            for device in DEVICES:
                torch.get_device_module(device).empty_cache()
    torch.backends.cuda.matmul.allow_tf32 = False


def calls() -> Iterator[Row]:
    def of(name: str, *shapes: tuple[int, ...]) -> Row:
        def make(device: str) -> Call:
            tensors = [torch.randn(shape, device=device) for shape in shapes]
            function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
            return lambda: function(*tensors)

        seconds = typical(two(make), on_host)
        shown = ", ".join("x".join(map(str, shape)) for shape in shapes)
        return Row(f"a call of {name}, {shown}", "us", (1e6 * seconds[0], 1e6 * seconds[1]))

    with torch.no_grad():
        yield of("mm", (64, 64), (64, 64))
        yield of("addmm", (64,), (64, 64), (64, 64))
        yield of("linear", (64, 64), (64, 64), (64,))
        yield of("bmm", (8, 64, 64), (8, 64, 64))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", type=float, help="the least ratio of a product's speed")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or _C.device_backend(0) != "cuda":
        print("there is no GPU that torch and the package can use", file=sys.stderr)
        return 1
    library = torch.get_device_module("hologram").get_device_properties(0).products
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {library}")
    rows = [*products(), *calls()]
    lines = [
        (row.name, row.unit, *(f"{number:.1f}" for number in row.numbers), f"{row.speed:.3f}")
        for row in rows
    ]
    print(common.text_table(("", "", "torch", "ours", "ours, times as fast"), lines))
    slow = [row for row in rows if row.unit != "us" and row.speed < (arguments.check or 0)]
    for row in slow:
        print(f"below {arguments.check} of torch's speed: {row.name}, {row.speed:.3f}")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
