"""Broadcasts, reductions and programs over rows against torch on the CPU.

    python benchmarks/rows.py                     measure with one thread, print, write results/
    python benchmarks/rows.py --quick -k softmax  a short look at some; writes nothing
    python benchmarks/rows.py --threads 2         with two; writes nothing

A cell is a statement, a dtype and a size, followed by synchronize(); its speed is (time of torch on
the CPU) / (time on the device), above 1 is faster. Programs "from parts" are written from
primitives, on both. Backward cells compute the gradients of all operands of one forward.

Exit status 1 when a cell is below its bound: 0.97 of torch for broadcasts, 1 for the others, by the
whole 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from tqdm import tqdm

RESULTS = Path(__file__).parent / "results"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
QUICK_PAIRS = 7

BROADCASTS = {
    "[R,C] + [C]": lambda n: ((n // 1000, 1000), (1000,)),
    "[R,C] + [R,1]": lambda n: ((n // 1000, 1000), (n // 1000, 1)),
    "[R,64] + [64]": lambda n: ((n // 64, 64), (64,)),
    "[R,64] + [R,1]": lambda n: ((n // 64, 64), (n // 64, 1)),
    "[N,C,H,W] + [1,C,1,1]": lambda n: ((4, n // 1600, 20, 20), (1, n // 1600, 1, 1)),
    "[B,T,D] + [B,1,D]": lambda n: ((8, n // 512, 64), (8, 1, 64)),
    "[B,H,T,T] + [B,1,T,T]": lambda n: ((4, n // 10_000, 50, 50), (4, 1, 50, 50)),
}
REDUCTIONS = ("sum", "mean", "amax", "var", "argmax", "max.dim")
PLACES = {"all": "", "rows": "1", "columns": "0"}

# Of x, weight and bias; `parts` are primitives.
PROGRAMS = {
    "softmax": "F.softmax(x, -1)",
    "log softmax": "F.log_softmax(x, -1)",
    "layer norm": "F.layer_norm(x, x.shape[-1:], weight, bias)",
    "rms norm": "F.rms_norm(x, x.shape[-1:], weight)",
    "softmax from parts": "softmax(x)",
    "layer norm from parts": "layer_norm(x, weight, bias)",
    "bias, gelu, residual, layer norm": "block(x, weight, bias)",
}
FORWARD_ONLY = ("softmax from parts", "layer norm from parts")

# Of x, target and weight; backward is of the loss, with the softmax.
LOSSES = {
    "cross entropy": "F.cross_entropy(x, target)",
    "cross entropy weighted": "F.cross_entropy(x, target, weight)",
    "cross entropy smoothed": "F.cross_entropy(x, target, label_smoothing=0.1)",
}


def softmax(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    distance = x - x.mean(-1, keepdim=True)
    variance = (distance * distance).mean(-1, keepdim=True)
    return distance * torch.rsqrt(variance + 1e-5) * weight + bias


def block(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    hidden = torch.nn.functional.gelu(x + bias) + x
    return torch.nn.functional.layer_norm(hidden, x.shape[-1:], weight, bias)


NAMES = {"F": torch.nn.functional, "softmax": softmax, "layer_norm": layer_norm, "block": block}


def broadcast_cases() -> Iterator[common.Case]:
    for name, shapes in BROADCASTS.items():
        for size in (100_000, 1_000_000):
            sizes = shapes(size)

            def operands(device: torch.device, sizes: Any = sizes) -> dict[str, Any]:
                x, y = (torch.randn(s).to(device) for s in sizes)
                return {"x": x, "y": y, "out": torch.empty_like(x)}

            statement = "torch.add(x, y, out=out); finish()"
            yield common.Case("broadcast", f"{name} {size:.0e}", statement, operands, 1 / 0.97)


def reduction_cases() -> Iterator[common.Case]:
    for name in REDUCTIONS:
        for place, dims in PLACES.items():
            if name == "max.dim" and not dims:
                continue
            for size in (1_000, 10_000, 100_000, 1_000_000, 10_000_000):

                def operands(device: torch.device, size: int = size) -> dict[str, Any]:
                    columns = min(1000, size // 10)
                    return {"x": torch.randn(size // columns, columns).to(device)}

                call = "max" if name == "max.dim" or (name == "amax" and not dims) else name
                statement = f"r = x.{call}({dims}); finish()"
                yield common.Case(
                    "reduction", f"{name} {place} {size:.0e}", statement, operands, 1.0
                )


def program_cases() -> Iterator[common.Case]:
    for name, expression in PROGRAMS.items():
        for label, dtype in DTYPES.items():
            for columns in (64, 768, 32_768):
                for size in (100_000, 1_000_000, 10_000_000):
                    if size < 2 * columns:
                        continue

                    def operands(
                        device: torch.device,
                        shape: tuple[int, int] = (size // columns, columns),
                        dtype: torch.dtype = dtype,
                        expression: str = expression,
                        differentiates: bool = name not in FORWARD_ONLY,
                    ) -> dict[str, Any]:
                        x, weight, bias = (
                            torch.randn(s).to(dtype).to(device)
                            for s in (shape, shape[1:], shape[1:])
                        )
                        names: dict[str, Any] = {"x": x, "weight": weight, "bias": bias, **NAMES}
                        if not differentiates:
                            return names
                        leaves = {
                            k: names[k].clone().requires_grad_() for k in ("x", "weight", "bias")
                        }
                        value = eval(expression, {**NAMES, **leaves})
                        used = tuple(leaves[k] for k in leaves if k in expression)
                        return {
                            **names,
                            "value": value,
                            "leaves": used,
                            "grad": torch.randn(shape).to(dtype).to(device),
                        }

                    cell = f"{name} {label} {columns} {size:.0e}"
                    yield common.Case("forward", cell, f"r = {expression}; finish()", operands, 1.0)
                    if name not in FORWARD_ONLY:
                        call = "torch.autograd.grad(value, leaves, grad, retain_graph=True)"
                        backward = f"r = {call}; finish()"
                        yield common.Case("backward", cell, backward, operands, 1.0)


# Of images, NCHW or with the channels last, where group norm is not recorded.
CHANNEL_NORMS = {
    "batch norm": "F.batch_norm(x, mean, variance, weight, bias, True)",
    "batch norm in eval": "F.batch_norm(x, mean, variance, weight, bias, False)",
    "group norm": "F.group_norm(x, 8, weight, bias)",
}


def channel_norm_cases() -> Iterator[common.Case]:
    for name, expression in CHANNEL_NORMS.items():
        for label, dtype in DTYPES.items():
            for place in ("", " last") if "batch" in name else ("",):
                for size in (100_000, 1_000_000, 10_000_000):

                    def operands(
                        device: torch.device,
                        size: int = size,
                        dtype: torch.dtype = dtype,
                        expression: str = expression,
                        last: bool = bool(place),
                    ) -> dict[str, Any]:
                        form = torch.channels_last if last else torch.contiguous_format
                        x, grad = (
                            torch.randn(size // 50_000, 64, 28, 28, dtype=dtype)
                            .to(memory_format=form)
                            .to(device)
                            for _ in range(2)
                        )
                        names = {k: torch.ones(64).to(device) for k in ("weight", "bias")}
                        running = {k: torch.ones(64).to(device) for k in ("mean", "variance")}
                        leaves = {k: t.clone().requires_grad_() for k, t in names.items()}
                        leaves["x"] = x.clone().requires_grad_()
                        value = eval(expression, {**NAMES, **running, **leaves})
                        used = tuple(leaves.values())
                        return {
                            **names,
                            **running,
                            "F": torch.nn.functional,
                            "x": x,
                            "grad": grad,
                            "value": value,
                            "leaves": used,
                        }

                    cell = f"{name} {label}{place} {size:.0e}"
                    yield common.Case("forward", cell, f"r = {expression}; finish()", operands, 1.0)
                    call = "torch.autograd.grad(value, leaves, grad, retain_graph=True)"
                    yield common.Case("backward", cell, f"r = {call}; finish()", operands, 1.0)


def loss_cases() -> Iterator[common.Case]:
    for name, expression in LOSSES.items():
        for label, dtype in DTYPES.items():
            for columns in (10, 1000, 32_768):
                for size in (1_000, 100_000, 10_000_000):
                    if size < 2 * columns and columns != 1000:
                        continue

                    def operands(
                        device: torch.device,
                        shape: tuple[int, int] = (max(size // columns, 1), columns),
                        dtype: torch.dtype = dtype,
                    ) -> dict[str, Any]:
                        x = torch.randn(shape).to(dtype).to(device)
                        return {
                            "x": x,
                            "leaf": x.clone().requires_grad_(),
                            "target": torch.randint(0, shape[1], shape[:1]).to(device),
                            "weight": torch.rand(shape[1]).to(dtype).to(device),
                            **NAMES,
                        }

                    cell = f"{name} {label} {columns} {size:.0e}"
                    yield common.Case("loss", cell, f"r = {expression}; finish()", operands, 1.0)
                    step = expression.replace("(x", "(leaf")
                    step = f"r = torch.autograd.grad({step}, leaf); finish()"
                    yield common.Case("loss step", cell, step, operands, 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", default="", help="only cells whose group and name have this in them")
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cases = [
        *broadcast_cases(),
        *reduction_cases(),
        *program_cases(),
        *channel_norm_cases(),
        *loss_cases(),
    ]
    cases = [case for case in cases if arguments.k in f"{case.group} {case.name}"]
    if not cases:
        parser.error(f"no cell has {arguments.k!r} in its name")
    pairs = QUICK_PAIRS if arguments.quick else 15
    device = torch.device("hologram")
    rows = [
        common.measure(case, device, arguments.threads, pairs)
        for case in tqdm(cases, disable=None, unit="cell")
    ]
    print(common.text_table(common.HEADER, [common.cells(row) for row in rows]))
    for group in dict.fromkeys(row.group for row in rows):
        speeds = [1 / row.ratio for row in rows if row.group == group]
        mean = float(np.exp(np.mean(np.log(speeds))))
        print(f"{group}: geometric mean {mean:.2f} of torch's speed, least {min(speeds):.2f}")
    if not (arguments.quick or arguments.k or arguments.threads != 1):
        content = {"machine": common.machine(), "cells": [row.to_json() for row in rows]}
        (RESULTS / "rows.json").write_text(json.dumps(content, indent=1) + "\n")
    return any(row.verdict == "FAIL" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
