"""On which thread a backward pass over the device's tensors runs.

On the one that calls it, where the device computes on the processor; on a thread of each device
where ``torch.autograd.set_multithreading_enabled(True)`` asks for it. How it is done is in
``csrc/aten/autograd_threads.h``; this tells it who has asked.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.autograd.grad_mode import set_multithreading_enabled

from torch_hologram import _C


def register() -> None:
    """Has torch's switch say whether it was turned on, which is also how it stands by default."""
    init, leave = set_multithreading_enabled.__init__, set_multithreading_enabled.__exit__

    @functools.wraps(init)
    def __init__(self: Any, mode: bool) -> None:
        init(self, mode)
        self._hologram_before = _C.exchange_device_threads(mode)

    @functools.wraps(leave)
    def __exit__(self: Any, *error: Any) -> None:
        _C.exchange_device_threads(self._hologram_before)
        leave(self, *error)

    set_multithreading_enabled.__init__ = __init__  # type: ignore[method-assign]
    set_multithreading_enabled.__exit__ = __exit__  # type: ignore[method-assign]
