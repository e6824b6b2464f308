"""What torch's Python code decides by the name of a device, decided for this one as for the CPU.

The device's matrix products are the CPU's, so what torch measured on the CPU holds here too.
"""

from __future__ import annotations

import torch

from torch_hologram._device import DEVICE_TYPE


def _accumulate_as_on_the_cpu() -> None:
    """Gives the chunked linear cross entropy (torch 2.13) the CPU's dtype and chunks."""
    try:
        from torch.nn.modules import linear_cross_entropy_options as options
    except ImportError:
        return
    for (device_type, dtype), choice in list(options._AUTO_DEFAULTS.items()):
        if device_type == "cpu":
            options._AUTO_DEFAULTS[DEVICE_TYPE, dtype] = choice
    theirs = options.LinearCrossEntropyOptions._resolve_auto_acc_dtype

    def ours(dtype: torch.dtype, device: torch.device | None) -> torch.dtype | None:
        on_device = device is not None and device.type == DEVICE_TYPE
        return theirs(dtype, torch.device("cpu") if on_device else device)

    options.LinearCrossEntropyOptions._resolve_auto_acc_dtype = staticmethod(ours)  # type: ignore[method-assign]


def register() -> None:
    """Extends torch's tables of devices."""
    _accumulate_as_on_the_cpu()
