"""Convolutions that are computed without torch's library for them, against torch on the CPU.

    python benchmarks/convolutions.py                  measure with one thread, print
    python benchmarks/convolutions.py --quick -k 7x7   a short look at some
    python benchmarks/convolutions.py --threads 2      with two

The shapes are those of networks for images: of mobilenetv3, efficientnet, densenet and convnext at
64 x 64, batch 4, and larger ones. Nothing is judged: how a convolution compares depends on its
shape, see bench-models for whole models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import common
import torch

F = "torch.nn.functional"
# batch, channels, channels of the result, height and width
POINTWISE = [
    (4, 24, 1, 96),
    (4, 48, 2, 288),
    (4, 1152, 2, 192),
    (4, 512, 4, 128),
    (4, 48, 8, 24),
    (4, 256, 8, 128),
    (4, 16, 16, 72),
    (4, 144, 16, 24),
    (8, 256, 28, 64),
]
# batch, channels, height and width, kernel, stride
DEPTHWISE = [
    (4, 16, 32, 3, 2),
    (4, 72, 16, 5, 2),
    (4, 48, 8, 5, 1),
    (4, 672, 4, 5, 1),
    (4, 288, 2, 5, 1),
    (4, 40, 16, 7, 1),
    (4, 320, 2, 7, 1),
    (16, 384, 14, 3, 1),
    (8, 96, 56, 3, 1),
]
FORWARD = f"result = {F}.conv2d(x, w, stride=stride, padding=padding, groups=groups); finish()"
BACKWARD = (
    "result = torch.ops.aten.convolution_backward(g, x, w, None, [stride] * 2, [padding] * 2,"
    " [1, 1], False, [0, 0], groups, [True, True, False]); finish()"
)


@dataclass(frozen=True)
class Shape:
    name: str
    image: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1
    groups: int = 1

    def operands(self, device: torch.device) -> dict[str, Any]:
        x, w = torch.randn(self.image, device=device), torch.randn(self.weight, device=device)
        padding = self.weight[2] // 2
        out = torch.conv2d(x, w, stride=self.stride, padding=padding, groups=self.groups)
        numbers = {"stride": self.stride, "padding": padding, "groups": self.groups}
        return {"x": x, "w": w, "g": torch.ones_like(out), **numbers}


def shapes() -> Iterator[Shape]:
    for n, c, size, out in POINTWISE:
        name = f"1x1 {n}x{c}x{size}x{size} to {out}"
        yield Shape(name, (n, c, size, size), (out, c, 1, 1))
    for n, c, size, k, stride in DEPTHWISE:
        name = f"{k}x{k} {n}x{c}x{size}x{size} /{stride}"
        yield Shape(name, (n, c, size, size), (c, 1, k, k), stride, c)


def cases() -> Iterator[common.Case]:
    for mode, statement in (("forward", FORWARD), ("backward", BACKWARD)):
        for shape in shapes():
            yield common.Case(mode, shape.name, statement, shape.operands, None)


def main() -> int:
    _, rows = common.measured_cells(__doc__, list(cases()))
    print(common.text_table(common.HEADER, [common.cells(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
