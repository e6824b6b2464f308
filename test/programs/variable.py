"""What is known of a program's tensors, and torch's rules for shapes and dtypes of results."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)
KIND = {torch.bool: 0, torch.int64: 1, **dict.fromkeys(FLOATS, 2)}


@dataclass(slots=True)
class Variable:
    """What the builder knows of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int
    numel: int | None  # of the storage, None: not known
    writable: bool = True  # no two elements share memory
    alone: bool = True  # the only variable on its storage


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of an operation on tensors of shapes `a` and `b`, None if they do not fit."""
    if a == b:
        return a
    shape = []
    for x, y in itertools.zip_longest(reversed(a), reversed(b), fillvalue=1):
        if x != y and x != 1 and y != 1:
            return None
        shape.append(y if x == 1 else x)
    return tuple(reversed(shape))


def numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def promote(operands: Iterable[Variable | float]) -> torch.dtype:
    """torch's dtype of a result: numbers count less than 0-dim tensors, these less than others."""
    found: list[torch.dtype | None] = [None, None, None]  # by class of operand
    for operand in operands:
        if isinstance(operand, Variable):
            place, dtype = (0 if operand.shape else 1), operand.dtype
        else:
            place = 2
            dtype = {bool: torch.bool, int: torch.int64}.get(type(operand), torch.float32)
        known = found[place]
        found[place] = dtype if known is None else torch.promote_types(known, dtype)
    result = found[2]
    for higher in (found[1], found[0]):
        if higher is not None:
            lower = result
            result = higher if lower is None or KIND[lower] <= KIND[higher] else lower
    assert result is not None
    return result


def castable(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether an operation may write a result of one dtype to a tensor of another."""
    return KIND[source] <= KIND[target] and (target != torch.bool or source == torch.bool)
