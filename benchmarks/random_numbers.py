"""Random numbers against torch on the CPU: nanoseconds per element of 1e6, one thread.

    python benchmarks/random_numbers.py                  measure with one thread, print
    python benchmarks/random_numbers.py --quick -k drop  a short look at some
    python benchmarks/random_numbers.py --threads 2      with two

Exit status 1 when a cell takes longer than its bound by the whole 95 % interval: no longer than
torch, dropout a third of its time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import common
import torch

ELEMENTS = 1_000_000
F = "torch.nn.functional"
# (name, dtype, statement, bound)
CELLS = [
    ("rand", torch.float32, "torch.rand(n, device=device)", 1.0),
    ("uniform_", torch.float64, "x.uniform_()", 1.0),
    ("uniform_", torch.bfloat16, "x.uniform_()", 1.0),
    ("uniform_(-1, 3)", torch.float32, "x.uniform_(-1, 3)", 1.0),
    ("randn", torch.float32, "torch.randn(n, device=device)", 1.0),
    ("normal_", torch.float64, "x.normal_()", None),  # by the C library, one by one
    ("randint", torch.int64, "torch.randint(1000, (n,), device=device)", 1.0),
    ("random_", torch.int64, "x.random_()", 1.0),
    ("bernoulli_(0.3)", torch.float32, "x.bernoulli_(0.3)", 1.0),
    ("bernoulli of a tensor", torch.float32, "torch.bernoulli(x)", 1.0),
    ("dropout", torch.float32, f"{F}.dropout(x, 0.1)", 0.33),
    ("dropout", torch.bfloat16, f"{F}.dropout(x, 0.1)", 0.33),
    ("dropout and what is around it", torch.float32, f"torch.relu({F}.dropout(x * 2) + x)", 0.33),
    ("exponential_", torch.float32, "x.exponential_()", 1.0),
    ("geometric_", torch.float32, "x.geometric_(0.3)", 1.0),
    ("cauchy_", torch.float32, "x.cauchy_()", 1.0),
    ("log_normal_", torch.float32, "x.log_normal_()", 1.0),
]


def cases() -> Iterator[common.Case]:
    for name, dtype, statement, bound in CELLS:

        def operands(device: torch.device, dtype: torch.dtype = dtype) -> dict[str, Any]:
            return {"n": ELEMENTS, "x": torch.full((ELEMENTS,), 0.5, device=device).to(dtype)}

        group = str(dtype).removeprefix("torch.")
        yield common.Case(group, name, f"result = {statement}; finish()", operands, bound)


def main() -> int:
    _, rows = common.measured_cells(__doc__, list(cases()))
    header = ("dtype", "numbers", "torch cpu", "device", "ratio", "95 %", "bound", "")
    nanoseconds = [(f"{1e3 * t / ELEMENTS:.2f} ns" for t in (row.cpu, row.device)) for row in rows]
    lines = [
        (*common.cells(row)[:2], *times, *common.cells(row)[5:])
        for row, times in zip(rows, nanoseconds, strict=True)
    ]
    print(common.text_table(header, lines))
    return any(row.verdict == "FAIL" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
