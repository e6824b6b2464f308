"""Expressions computed by torch: on any device, and for fake tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from torch_hologram.custom.graph import Program
from torch_hologram.custom.rows import OPERATORS, ROWS


def evaluate(program: Program, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result by operations of torch: on any device, and for fake tensors.

    Operands are converted to their common dtype; half precision is computed in float32 and rounded
    once. What is not floating is computed operation by operation, each promoting as it does.
    """
    compute, common = elementwise_dtypes(
        *operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    )
    floating = common.is_floating_point
    values: list[Any] = [*operands, *program.numbers]
    truths = [False] * len(values)
    result = operands[0]

    @functools.cache
    def as_number(i: int) -> Any:
        if i < len(operands):
            return values[i].to(compute) if floating else values[i]
        return values[i].to(compute if floating else common) if truths[i] else values[i]

    def as_tensor(i: int) -> torch.Tensor:
        value = as_number(i)
        if isinstance(value, torch.Tensor):
            return value
        dtype = compute if floating else None
        return torch.scalar_tensor(
            value, dtype=dtype or (torch.int64 if type(value) is int else None)
        )

    for row, parts in program.steps:
        if ROWS[row].logical:
            result = getattr(torch, row)(*(values[part] for part in parts))
        elif row == "where":
            result = torch.where(values[parts[0]], as_tensor(parts[1]), as_tensor(parts[2]))
        elif row in OPERATORS:
            result = OPERATORS[row](*map(as_number, parts))
        elif row == "clamp" and all(type(as_number(part)) in (int, float) for part in parts[1:]):
            result = torch.clamp(*map(as_number, parts))
        else:
            result = getattr(torch, row)(*map(as_tensor, parts))
        values.append(result)
        truths.append(ROWS[row].predicate)
    if floating and not program.predicate:
        result = result.to(common)
    return result
