"""Which tensors share memory, and whether what is written there is defined."""

from __future__ import annotations

import torch

# What at::has_internal_overlap() finds: No is the answer for what is dense.
NO, TOO_HARD = 0, 2


def overlaps_itself(x: torch.Tensor) -> bool:
    """Whether elements share memory."""
    places = torch.zeros(x.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        steps = torch.arange(size) * stride
        places += steps.reshape(-1, *[1] * (x.dim() - dim - 1))
    return places.unique().numel() < x.numel()


def is_undefined(target: torch.Tensor, *operands: torch.Tensor) -> bool:
    """Whether torch may write memory twice, or write what it reads through another tensor.

    It refuses that where at::has_internal_overlap() and at::get_overlap_status() are sure, and goes
    on where they find it too hard to say.
    """
    found = torch._debug_has_internal_overlap
    if found(target) == TOO_HARD and overlaps_itself(target):
        return True
    return any(
        x is not target
        and torch._C._is_alias_of(x, target)
        and (found(target), found(x)) != (NO, NO)
        for x in operands
    )
