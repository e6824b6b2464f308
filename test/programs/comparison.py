"""Comparing two runs of a program, bit for bit."""

from __future__ import annotations

from typing import Any

import torch

from programs.world import Result


class Mismatch(AssertionError):
    """Two runs of a program have different results."""


INTEGER_OF = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and bits; NaN at the same places."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    whole = INTEGER_OF[a.dtype.itemsize]
    if a.numel() == 0 or torch.equal(a.contiguous().view(whole), b.contiguous().view(whole)):
        return True
    nan = a.isnan()
    if not torch.equal(nan, b.isnan()):
        return False
    a, b = a.masked_fill(nan, 0), b.masked_fill(nan, 0)
    return torch.equal(a.contiguous().view(whole), b.contiguous().view(whole))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and same_bits(a, b)
    return repr(a) == repr(b)  # numbers: -0.0 is not 0.0, nan is nan


def compare(fused: Result, eager: Result) -> None:
    """Raises Mismatch unless two runs have the same results."""
    if fused.tensors.keys() != eager.tensors.keys():
        raise Mismatch(f"variables {sorted(fused.tensors)} and {sorted(eager.tensors)}")
    for name, tensor in fused.tensors.items():
        if not same_bits(tensor, eager.tensors[name]):
            raise Mismatch(f"{name} is\n{tensor}\neager\n{eager.tensors[name]}")
    if len(fused.seen) != len(eager.seen):
        raise Mismatch(f"{len(fused.seen)} and {len(eager.seen)} values read")
    for index, (one, other) in enumerate(zip(fused.seen, eager.seen, strict=True)):
        if not same(one, other):
            raise Mismatch(f"value {index} read is\n{one}\neager\n{other}")
