"""Add two vectors on a backend: buffers in, one operation, the result back, and checked.

The same addition is made three times: through copies, through the buffers' own memory without a
copy where that is the host's, and on a piece of the buffers. Exit status 1 when a result is not
NumPy's.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

import torch_hologram as hg


def add_by_copies(executor: hg.Executor, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y of float32 arrays of one length."""
    with executor.allocate(x.size) as a, executor.allocate(x.size) as b:
        with executor.allocate(x.size) as c:
            a.from_numpy(x)
            b.from_numpy(y)
            hg.ops.vector_add(executor, a, b, c)
            result: np.ndarray = c.to_numpy()
            return result


def add_in_place(executor: hg.Executor, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same; the arrays are written to, and the result lies in, the buffers' memory."""
    a, b, c = (executor.allocate(x.size) for _ in range(3))
    np.asarray(a)[:] = x
    np.asarray(b)[:] = y
    hg.ops.vector_add(executor, a, b, c)
    return np.asarray(c)  # keeps the memory


def add_first(executor: hg.Executor, x: np.ndarray, y: np.ndarray, n: int) -> np.ndarray:
    """x + y of the first n elements; the others are 0."""
    a, b, c = (executor.allocate(x.size) for _ in range(3))
    a.from_numpy(x)
    b.from_numpy(y)
    hg.ops.vector_add(executor, a, b, c, n=n)
    result: np.ndarray = c.to_numpy()
    return result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=100_000, help="elements (default: %(default)s)")
    parser.add_argument("--backend", default="auto", help="auto, cpu, cuda or metal")
    arguments = parser.parse_args()
    if arguments.size < 0:
        parser.error(f"--size must be 0 or more, not {arguments.size}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    random = np.random.default_rng(0)
    x, y = random.random((2, arguments.size), np.float32)
    expected = x + y
    with hg.Executor(arguments.backend) as executor:
        half = arguments.size // 2
        results = {
            "by copies": np.array_equal(add_by_copies(executor, x, y), expected),
            f"the first {half}": np.array_equal(
                add_first(executor, x, y, half), np.where(np.arange(x.size) < half, expected, 0)
            ),
        }
        properties = torch.get_device_module("hologram").get_device_properties(executor.device)
        if properties.host_addressable:
            results["in place"] = np.array_equal(add_in_place(executor, x, y), expected)
        print(f"{arguments.size} elements on {executor.backend} ({executor.device})")
    for name, right in results.items():
        print(f"  {name}: {'as NumPy' if right else 'WRONG'}")
    return not all(results.values())


if __name__ == "__main__":
    sys.exit(main())
