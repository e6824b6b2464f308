"""Steps of optimizers: for-loop, foreach and fused, against torch on the CPU and each other.

    python benchmarks/optimizers.py                  measure with one thread, print, write results/
    python benchmarks/optimizers.py --quick -k loop  a short look at some; writes nothing
    python benchmarks/optimizers.py --threads 2      with two; writes nothing

A cell is a step and synchronize(), over 200 tensors of 4,096 elements or a model of 10 million. Its
two sides are named: a form on the device against the same form of torch on the CPU, against torch's
fused one, or the for-loop against the fused form, both on the device. Ratios are of the first to
the second, below 1 is faster.

Exit status 1 when a cell is above its bound by the whole 95 % interval: fused on the device takes
at most the time of torch's fused one, and a for-loop at most 1.3 times that of fused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import torch

RESULTS = Path(__file__).parent / "results"
FORMS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.01}),
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {}),
}
# Sizes of the parameters; the model's are those of a few large layers with their biases.
MODELS = {
    "200 x 4096": [4096] * 200,
    "10M": [size for _ in range(9) for size in (1024 * 1024, 1024)] + [512 * 1024, 512],
}


def step_of(optimizer: str, form: str, sizes: list[int], device: torch.device) -> dict[str, Any]:
    """The names of a statement: a step, and what waits for it."""
    make, options = OPTIMIZERS[optimizer]
    generator = torch.Generator().manual_seed(0)
    parameters = []
    for size in sizes:
        parameters.append(torch.nn.Parameter(torch.randn(size, generator=generator).to(device)))
        parameters[-1].grad = torch.randn(size, generator=generator).to(device)
    step = make(parameters, lr=1e-4, **options, **FORMS[form]).step
    finish = common.finish_on(device)
    for _ in range(3):
        step()
        finish()
    return {"step": step, "finish": finish}


def cases(hologram: torch.device) -> Iterator[common.Case]:
    cpu = torch.device("cpu")
    for model, sizes in MODELS.items():
        for name in OPTIMIZERS:
            # (form and device of the first, of the second, bound)
            pairs: list[tuple[Any, Any, float | None]]
            pairs = [((form, hologram), (form, cpu), None) for form in ("loop", "foreach")]
            pairs += [((form, hologram), ("fused", cpu), None) for form in ("loop", "foreach")]
            pairs.append((("fused", hologram), ("fused", cpu), 1.0))
            pairs.append((("loop", hologram), ("fused", hologram), 1.3))
            for first, second, bound in pairs:

                def operands(
                    device: torch.device,
                    sides: tuple[Any, Any] = (first, second),
                    name: str = name,
                    sizes: list[int] = sizes,
                ) -> dict[str, Any]:
                    form, where = sides[1] if device.type == "cpu" else sides[0]
                    return step_of(name, form, sizes, where)

                against = f"{second[0]} on {second[1].type}"
                cell = f"{name} {first[0]} against {against}"
                yield common.Case(model, cell, "step(); finish()", operands, bound)


def main() -> int:
    arguments, rows = common.measured_cells(__doc__, list(cases(torch.device("hologram"))))
    header = ("model", "step", "threads", "second", "first", *common.HEADER[5:])
    print(common.text_table(header, [common.cells(row) for row in rows]))
    if not (arguments.quick or arguments.k or arguments.threads != 1):
        content = {"machine": common.machine(), "cells": [row.to_json() for row in rows]}
        (RESULTS / "optimizers.json").write_text(json.dumps(content, indent=1) + "\n")
    return any(row.verdict == "FAIL" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
