"""What ``torch.amp`` asks of a device."""

from __future__ import annotations

import torch

__all__ = ["get_amp_supported_dtype", "is_bf16_supported"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes ``torch.autocast("hologram", dtype=...)`` takes."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether the device computes in bfloat16; it does.

    Args:
        including_emulation: kept for torch.cuda's sake.
    """
    return True
