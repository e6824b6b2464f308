"""What ``torch.amp`` asks of a device, and its classes for it."""

from __future__ import annotations

from typing import Any

import torch

from torch_hologram._device import DEVICE_TYPE

__all__ = ["GradScaler", "autocast", "get_amp_supported_dtype", "is_bf16_supported"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes ``torch.autocast("hologram", dtype=...)`` takes."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether the device computes in bfloat16; it does.

    Args:
        including_emulation: kept for torch.cuda's sake.
    """
    return True


class autocast(torch.amp.autocast):
    """``torch.autocast("hologram", ...)``.

    Args:
        enabled, dtype, cache_enabled: as there.
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__(DEVICE_TYPE, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("hologram", ...)``.

    Args:
        *args, **kwargs: what follows the device there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(DEVICE_TYPE, *args, **kwargs)
