"""Matrix products and attention of the CUDA backend against torch's on the same GPU.

    python benchmarks/cuda_products.py                  the table
    python benchmarks/cuda_products.py --check 0.99     and fail where ours has less speed

Needs an NVIDIA GPU and a torch with CUDA. Of square matrices and of shapes that models have, in
bfloat16, float32 with TF32, and float32: the speed of torch's `cuda` device and of ours, in 10^12
operations a second, and their ratio. The same of attention, and where that is small also its time
on the GPU, with and without gradients, when the host is ahead; of a linear layer with a gelu behind
it the time on the GPU, as it is and with hologram.set_float_contraction(True). Of small ones the
time that the host needs for a call, while the GPU is behind. Each number is the median of twenty
turns, of which each device comes first in ten, and a ratio that of the ratios of these turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ.setdefault("HOLOGRAM_BACKENDS", "cuda")

# After the variable, which is read when the package is loaded.
import common
import torch
from torch.nn import functional as F

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
TURNS = 21  # of which the first warms up
LAYER = (8192, 1024, 4096)  # rows, inner, columns of a linear layer
SMALL = 0.01  # 10^12 operations, for which the GPU takes less time than the host for a call
# batch, heads, length, width of a head, causal
ATTENTIONS = ((4, 16, 4096, 128, False), (4, 16, 4096, 128, True), (8, 8, 256, 64, True))

Call = Callable[[], object]
hologram: Any = torch.get_device_module("hologram")
attention = torch.ops.aten._scaled_dot_product_cudnn_attention
attention_backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward


@dataclass(frozen=True)
class Row:
    """A product, or a call: of each device in `numbers` a speed, or a time."""

    name: str
    unit: str
    numbers: tuple[float, float]
    speed: float  # ours by torch's

    @property
    def is_speed(self) -> bool:
        return self.unit == "TFLOP/s"


def typical(
    calls: tuple[Call, Call], seconds_of: Callable[[str, Call], float]
) -> tuple[tuple[float, float], float]:
    """The median time of each device's call, in seconds, and that of torch's by ours."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS):
        # A GPU that has computed for a while is slower: neither always comes first.
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            taken[i].append(seconds_of(DEVICES[i], calls[i]))
    theirs, ours = taken[0][1:], taken[1][1:]
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    return (statistics.median(theirs), statistics.median(ours)), statistics.median(ratios)


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

    count = max(3, min(500, int(0.005 / (run(2) / 2))))
    return run(count) / count


def behind(device: str, call: Call) -> float:
    """Seconds that the GPU takes for a call when the host is ahead of it."""
    module = torch.get_device_module(device)
    begin, end = (module.Event(enable_timing=True) for _ in range(2))
    size, matrices = 8192, 24  # some 40 ms
    a = torch.ones(size, size, dtype=torch.bfloat16, device=device)
    for _ in range(40):  # as often as it takes until all is known of such calls
        call()
    module.synchronize()
    kept = [a @ a for _ in range(matrices)]
    if device == "hologram":
        hologram.flush()
    begin.record()
    for _ in range(100):
        call()
    end.record()
    module.synchronize()
    del kept
    return float(begin.elapsed_time(end)) / 1e5


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

            (theirs, ours), speed = typical(two(make), on_gpu)
            work = 2e-12 * m * k * n
            yield Row(f"{name}, {m} x {k} x {n}", "TFLOP/s", (work / theirs, work / ours), speed)
            free()
    torch.backends.cuda.matmul.allow_tf32 = False


def free() -> None:
    for device in DEVICES:
        torch.get_device_module(device).empty_cache()


def layers() -> Iterator[Row]:
    """A linear layer and gelu, in bfloat16: as it is, and where ours may round once."""
    m, k, n = LAYER
    for approximate in ("none", "tanh"):
        for contraction in (False, True):

            def make(device: str, approximate: str = approximate) -> Call:
                x, weight, bias = (
                    torch.randn(*shape, device=device).to(torch.bfloat16)
                    for shape in ((m, k), (n, k), (n,))
                )
                kept = [x]

                def call() -> None:
                    hidden = F.linear(x, weight, bias)
                    kept[0] = F.gelu(hidden, approximate=approximate)
                    del hidden
                    if device == "hologram":
                        hologram.flush()

                return call

            hologram.set_float_contraction(contraction)
            try:
                seconds, speed = typical(two(make), on_gpu)
            finally:
                hologram.set_float_contraction(False)
            gelu = "gelu" if approximate == "none" else "gelu by tanh"
            name = f"linear, {gelu}{', contraction' if contraction else ''}, {m} x {k} x {n}"
            yield Row(name, "us, GPU", (1e6 * seconds[0], 1e6 * seconds[1]), speed)
            free()


def attentions() -> Iterator[Row]:
    for batch, heads, length, width, causal in ATTENTIONS:

        def make(
            device: str,
            gradients: bool = False,
            shape: tuple[int, ...] = (batch, heads, length, width),
            causal: bool = causal,
        ) -> Call:
            q, k, v, grad = (torch.randn(shape, device=device).to(torch.bfloat16) for _ in range(4))
            kept: list[object] = [q]

            def call() -> None:
                kept[0] = F.scaled_dot_product_attention(q, k, v, is_causal=causal)

            # Of `cuda` torch's autograd has none beside another accelerator.
            def with_gradients() -> None:
                out, sums, _, _, *lengths, seed, offset, _ = attention(
                    q, k, v, None, True, 0, causal
                )
                numbers = (seed, offset, None, None, None, *lengths, 0, causal)
                kept[0] = attention_backward(grad, q, k, v, out, sums, *numbers)

            return with_gradients if gradients else call

        (theirs, ours), speed = typical(two(make), on_gpu)
        work = 4e-12 * batch * heads * length**2 * width / (2 if causal else 1)
        name = f"attention, {batch} x {heads} x {length} x {width}{', causal' if causal else ''}"
        yield Row(name, "TFLOP/s", (work / theirs, work / ours), speed)
        free()
        if work > SMALL:
            continue
        for gradients in (False, True):
            seconds, speed = typical(two(partial(make, gradients=gradients)), behind)
            more = f"{name}{', and gradients' if gradients else ''}, host ahead"
            yield Row(more, "us, GPU", (1e6 * seconds[0], 1e6 * seconds[1]), speed)
            free()


def calls() -> Iterator[Row]:
    def of(name: str, *shapes: tuple[int, ...]) -> Row:
        def make(device: str) -> Call:
            tensors = [torch.randn(shape, device=device) for shape in shapes]
            function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
            return lambda: function(*tensors)

        seconds, speed = typical(two(make), on_host)
        shown = ", ".join("x".join(map(str, shape)) for shape in shapes)
        times = (1e6 * seconds[0], 1e6 * seconds[1])
        return Row(f"a call of {name}, {shown}", "us, host", times, speed)

    yield of("mm", (64, 64), (64, 64))
    yield of("addmm", (64,), (64, 64), (64, 64))
    yield of("linear", (64, 64), (64, 64), (64,))
    yield of("bmm", (8, 64, 64), (8, 64, 64))


def measured() -> list[Row]:
    with torch.no_grad():
        return [*products(), *layers(), *attentions(), *calls()]


def text(rows: list[Row]) -> str:
    lines = [
        (row.name, row.unit, *(f"{number:.1f}" for number in row.numbers), f"{row.speed:.3f}")
        for row in rows
    ]
    return common.text_table(("", "", "torch", "ours", "ours, times as fast"), lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", type=float, help="the least ratio of a product's speed")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or _C.device_backend(0) != "cuda":
        print("there is no GPU that torch and the package can use", file=sys.stderr)
        return 1
    library = hologram.get_device_properties(0).products
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {library}")
    rows = measured()
    print(text(rows))
    slow = [row for row in rows if row.is_speed and row.speed < (arguments.check or 0)]
    for row in slow:
        print(f"below {arguments.check} of torch's speed: {row.name}, {row.speed:.3f}")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
