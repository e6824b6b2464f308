"""Which backends are there, which one "auto" takes, and how a program falls back.

Asks for each backend of `--prefer` in turn, takes the first that is there, and computes a softmax
on it, which is checked against NumPy. Exit status 1 when that is wrong, 2 when none is there.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import torch_hologram as hg


def first_available(names: list[str]) -> hg.Executor | None:
    """An executor on the first backend that is there; says why the others were not taken."""
    for name in names:
        try:
            return hg.Executor(name)
        except RuntimeError as error:
            print(f"  {error}")
    return None


def softmax_error(executor: hg.Executor, x: np.ndarray) -> float:
    """Largest difference between a softmax on the backend and NumPy's in float64."""
    a, c = executor.allocate(x.size), executor.allocate(x.size)
    a.from_numpy(x)
    hg.ops.softmax(executor, a, c)
    exact = np.exp(x.astype(np.float64) - x.max())
    return float(np.abs(c.to_numpy() - exact / exact.sum()).max())


def parse_arguments() -> argparse.Namespace:
    kinds = [*(kind.value for kind in hg.backend.PRIORITY), "auto"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--prefer",
        nargs="+",
        default=kinds,
        choices=kinds,
        help="backends in order (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    for kind in hg.backend.PRIORITY:
        there = "available" if hg.backend.is_available(kind) else "not available"
        print(f"{kind.value}: {there}")
    print(f"auto means {hg.get_default_backend().value}")

    print("asked for " + ", ".join(arguments.prefer))
    executor = first_available(arguments.prefer)
    if executor is None:
        return 2
    with executor:
        x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
        error = softmax_error(executor, x)
        print(f"softmax of 1000 on {executor.backend}: off by {error:.1e}")
    return not error < 1e-6


if __name__ == "__main__":
    sys.exit(main())
