"""Additions of 16 floats, called from Python."""

from __future__ import annotations

from typing import Any

import common
import torch

ADDITIONS = 64
ADD_BOUND = 0.65


def additions(threads: int, pairs: int) -> list[common.Row]:
    """Additions of two tensors of 16 floats.

    Either ADDITIONS of different operands, whose results all live until the device has computed
    them, or one after another, each waited for. Microseconds per addition.
    """

    def operands(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)
        values = torch.rand(2 * ADDITIONS, 16, generator=generator).unbind()
        moved = [value.clone().to(device) for value in values]
        return {"operands": list(zip(moved[::2], moved[1::2], strict=True))}

    group = "add of 16 floats"
    kept = "result = [torch.add(x, y) for x, y in operands]; finish()"
    apart = "for x, y in operands: result = torch.add(x, y); finish()"
    cases = [
        common.Case(group, f"{ADDITIONS} results alive", kept, operands, ADD_BOUND, ADDITIONS),
        common.Case(group, "one at a time", apart, operands, None, ADDITIONS),
    ]
    with torch.no_grad():
        return [common.measure(case, torch.device("hologram"), threads, pairs) for case in cases]
