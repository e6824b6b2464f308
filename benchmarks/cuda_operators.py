"""Single operators of the CUDA backend against torch's on the same GPU.

    python benchmarks/cuda_operators.py                     with 2^20 and 10^8 elements
    python benchmarks/cuda_operators.py --elements 1000000  with so many
    python benchmarks/cuda_operators.py --worst 10          print the ten slowest cells only
    python benchmarks/cuda_operators.py --only pow softmax  of these operators

Needs an NVIDIA GPU and a torch with CUDA. A cell is the time of ours over that of torch's, each the
least of five means of ten calls that run one after the other, in turns; results are wanted, so ours
is flushed after each call. Only what needs no autograd is measured: torch's works on one
accelerator of a process (docs/installed.md). Beside it stands what has run it: kernels emitted for
it, kernels for each operation, cold ones, the CPU, kernels that move elements, or (none of these)
torch's.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

os.environ.setdefault("HOLOGRAM_BACKENDS", "cuda")

# After the variable, which is read when the package is loaded.
import common
import torch
from torch.nn import functional as F

from torch_hologram import _C

UNARY = (
    "neg abs relu sqrt rsqrt exp log tanh sigmoid erf sin cos floor reciprocal gelu silu sum mean "
    "amax clone"
).split()
BINARY = "add sub mul div maximum pow lt".split()
ROWS = 1024
FORMS = ("emitted", "pieces", "cold", "cpu", "moves")

Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def operators() -> Iterator[tuple[str, Operator]]:
    """Of two vectors of equal length, a multiple of ROWS."""
    for name in UNARY:
        function = getattr(torch, name, None) or getattr(F, name)
        yield name, lambda x, y, function=function: function(x)
    for name in BINARY:
        function = getattr(torch, name)
        yield name, lambda x, y, function=function: function(x, y)
    yield "add a number", lambda x, y: x + 1.5
    yield "where", lambda x, y: torch.where(x < y, x, y)
    yield "to float64", lambda x, y: x.double()
    yield "add a row", lambda x, y: x.view(ROWS, -1) + y.view(ROWS, -1)[0]
    yield "sum of rows", lambda x, y: x.view(ROWS, -1).sum(1)
    yield "sum of columns", lambda x, y: x.view(ROWS, -1).sum(0)
    yield "cumsum of rows", lambda x, y: x.view(ROWS, -1).cumsum(1)
    yield "softmax", lambda x, y: torch.softmax(x.view(ROWS, -1), -1)
    yield "layer norm", lambda x, y: F.layer_norm(x.view(-1, ROWS), (ROWS,))
    yield "transpose", lambda x, y: x.view(ROWS, -1).t().contiguous()
    yield "a chain of six", lambda x, y: ((x * y).sigmoid() + x).tanh() * 0.5 - y / 3
    yield "rand", lambda x, y: torch.rand_like(x)
    yield "dropout", lambda x, y: F.dropout(x, 0.1)


@dataclass(frozen=True)
class Cell:
    name: str
    ours: float  # seconds
    theirs: float
    forms: str

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def runs() -> list[int]:
    """How often groups were run in each of FORMS."""
    counts = (ctypes.c_uint64 * len(FORMS))()
    ctypes.CDLL(_C.__file__).hologram_cuda_runs(counts)
    return list(counts)


class Calls:
    """Of an operator on a device, whose last result is kept."""

    def __init__(self, operator: Operator, device: str, dtype: torch.dtype, elements: int) -> None:
        self.operator, self.device = operator, device
        self.finish = torch.get_device_module(device).synchronize
        self.operands = [torch.rand(elements, device=device).to(dtype) for _ in range(2)]
        self.kept: list[torch.Tensor] = []
        self.least = float("inf")  # seconds

    def __call__(self) -> None:
        self.kept[:] = [self.operator(*self.operands)]
        if self.device == "hologram":
            torch.hologram.flush()

    def time(self) -> None:
        self.finish()
        begin = time.perf_counter()
        for _ in range(10):
            self()
        self.finish()
        self.least = min(self.least, (time.perf_counter() - begin) / 10)


def measure(name: str, operator: Operator, dtype: torch.dtype, elements: int) -> Cell:
    ours, theirs = (Calls(operator, device, dtype, elements) for device in ("hologram", "cuda"))
    before = runs()
    ours()
    ours.finish()
    ran = [form for form, a, b in zip(FORMS, before, runs(), strict=True) if b > a]
    for calls in (ours, theirs):
        for _ in range(3):
            calls()
    for _ in range(5):
        ours.time()
        theirs.time()
    label = f"{name}, {str(dtype).removeprefix('torch.')}"
    cell = Cell(label, ours.least, theirs.least, ", ".join(ran) or "torch's")
    del ours, theirs, calls
    for device in ("hologram", "cuda"):
        torch.get_device_module(device).empty_cache()
    return cell


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 20, 100_000_000])
    parser.add_argument("--worst", type=int, help="so many cells, the slowest first")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=[name for name, _ in operators()]
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or _C.device_backend(0) != "cuda":
        print("there is no GPU that torch and the package can use", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for wanted in arguments.elements:
        elements = max(ROWS, wanted // ROWS * ROWS)
        cells = [
            measure(name, operator, dtype, elements)
            for dtype in (torch.float32, torch.bfloat16)
            for name, operator in operators()
            if arguments.only is None or name in arguments.only
        ]
        cells.sort(key=lambda cell: -cell.ratio)
        lines = [
            (cell.name, f"{cell.ratio:.2f}", f"{1e6 * cell.ours:.1f}", f"{1e6 * cell.theirs:.1f}",
             cell.forms)
            for cell in cells[: arguments.worst]
        ]  # fmt: skip
        print(f"\n{elements} elements")
        header = ("operator", "times torch's", "us", "us, torch", "run by")
        print(common.text_table(header, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
