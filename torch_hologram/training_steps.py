"""Where a training step ends, its program ends."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_hologram import _C


def _end(*_: Any) -> None:
    _C.end_step()


def register() -> None:
    """Ends the programs of all devices behind every optimizer's ``step()``.

    A loop that never reads a result would otherwise record step upon step, up to the bounds of a
    program, whose memory all these steps hold, and which is another one each time.
    """
    register_optimizer_step_post_hook(_end)
