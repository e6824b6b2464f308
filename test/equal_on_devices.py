"""Programs that are common, on two devices of a process: the results are the same, bit for bit.

usage: HOLOGRAM_BACKENDS=cuda,cpu PYTHONPATH=.:tools python test/equal_on_devices.py [--every N]
           [--sizes 24x48 ...]

The programs are those whose kernels a package brings (tools/common_groups.py): every row of the
operation table, casts, reductions, scans, norms, losses, random numbers, optimizers, forward and
backward. A program for which a device calls kernels of others, torch's for example, is run on both
and not compared. Prints how many were compared, and how the first device has run their groups.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import common_groups
import torch
from programs.comparison import same_bits
from torch.utils._pytree import tree_leaves

from torch_hologram import _C

DEVICES = ("hologram:0", "hologram:1")
SIZES = ("24x48", "3x1031")


class Observed(NamedTuple):
    """What a program did on a device."""

    tensors: list[torch.Tensor]
    error: type | None
    own: bool  # without kernels of others


def observed(program: Callable[[], object]) -> Observed:
    torch.hologram.manual_seed_all(7)
    torch.hologram.reset_fallback_report()
    results: list[Any] = []
    error = None
    try:
        results = [x for x in tree_leaves(program()) if isinstance(x, torch.Tensor)]
    except (RuntimeError, TypeError, NotImplementedError, IndexError) as raised:
        error = type(raised)
    torch.hologram.synchronize()
    own = all(row.kind == "native" for row in torch.hologram.fallback_report())
    return Observed([x.detach().cpu() for x in results], error, own)


def on_each(
    family: Callable[[], Iterator[Any]], every: int
) -> Iterator[tuple[int, list[Observed]]]:
    """What every so many programs of a family do on each of DEVICES, with their numbers."""
    generators = [family() for _ in DEVICES]
    for number in itertools.count():
        found = []
        for device, generator in zip(DEVICES, generators, strict=True):
            common_groups.DEVICE = device  # what programs make is there
            torch.hologram.set_device(device)
            program = next(generator, None)
            if program is None:
                return
            if number % every == 0:
                found.append(observed(program))
        if found:
            yield number, found


def equal(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """The same bits; of float64 within rounding, whose functions are those of each device's library
    (csrc/gpu/dialect/functions.h: within 2 ulp)."""
    if same_bits(mine, theirs):
        return True
    if mine.dtype != torch.float64 or mine.shape != theirs.shape:
        return False
    return torch.allclose(mine, theirs, rtol=1e-13, atol=1e-15, equal_nan=True)


def runs() -> dict[str, int]:
    """How often a GPU ran groups by which kernels, and moves."""
    counts = (ctypes.c_uint64 * 5)()
    ctypes.CDLL(_C.__file__).hologram_cuda_runs(counts)
    return dict(zip(("emitted", "pieces", "cold", "on the CPU", "moves"), counts, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--every", type=int, default=1, help="leave out all but every N-th program")
    arguments = parser.parse_args()
    compared = others = refused = 0
    wrong: list[str] = []
    for sizes in arguments.sizes:
        common_groups.ROWS, common_groups.COLUMNS = map(int, sizes.split("x"))
        for family in common_groups.FAMILIES:
            for number, (mine, theirs) in on_each(family, arguments.every):
                if not (mine.own and theirs.own):
                    others += 1
                elif mine.error is not theirs.error:
                    wrong.append(
                        f"{family.__name__} {number}, {sizes}: {mine.error} and {theirs.error}"
                    )
                elif mine.error is not None:
                    refused += 1
                else:
                    compared += 1
                    pairs = zip(mine.tensors, theirs.tensors, strict=False)
                    if len(mine.tensors) != len(theirs.tensors) or not all(
                        equal(a, b) for a, b in pairs
                    ):
                        wrong.append(f"{family.__name__} {number}, {sizes}")
    print(f"{compared} programs compared, {others} with kernels of others, {refused} refused")
    print(", ".join(f"{name} {count}" for name, count in runs().items()))
    for text in wrong[:40]:
        print(f"differs: {text}")
    return 1 if wrong or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
