"""What torch's Python code decides by the name of a device, decided for this one as for the CPU.

The device's matrix products are the CPU's, so what torch measured on the CPU holds here too.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch._tensor_str

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE


def _accumulate_as_on_the_cpu() -> None:
    """Gives the chunked linear cross entropy (torch 2.13) the CPU's dtype and chunks."""
    try:
        from torch.nn.modules import linear_cross_entropy_options as options
    except ImportError:
        return
    # Private names, of which each version of torch has others. Without one the default holds.
    defaults = getattr(options, "_AUTO_DEFAULTS", {})
    for (device_type, dtype), choice in list(defaults.items()):
        if device_type == "cpu":
            defaults[DEVICE_TYPE, dtype] = choice
    if policy := getattr(options, "_auto_acc_policy", None):
        options._auto_acc_policy = lambda device_type, dtype: policy(  # type: ignore[attr-defined]
            "cpu" if device_type == DEVICE_TYPE else device_type, dtype
        )
    chosen = getattr(options.LinearCrossEntropyOptions, "_resolve_auto_acc_dtype", None)
    if chosen is None:
        return

    def resolve(dtype: torch.dtype, device: torch.device | None) -> torch.dtype | None:
        on_device = device is not None and device.type == DEVICE_TYPE
        return chosen(dtype, torch.device("cpu") if on_device else device)  # type: ignore[no-any-return]

    options.LinearCrossEntropyOptions._resolve_auto_acc_dtype = staticmethod(resolve)  # type: ignore[method-assign]


def _print_on_the_cpu() -> None:
    """Has torch read the numbers it prints in host memory.

    As for mps and xla, of which it makes copies by their names. Otherwise it computes what it wants
    to know of them, such as their largest, on the device: counted as delegated calls of the user's,
    and refused where those are an error.
    """
    theirs = torch._tensor_str._tensor_str

    @functools.wraps(theirs)
    def ours(self: torch.Tensor, indent: int) -> Any:
        plain = type(self) in (torch.Tensor, torch.nn.Parameter) and self.layout == torch.strided
        if plain and self.device.type == DEVICE_TYPE and not self.is_quantized:
            self = _C.values_on_cpu(self)
        return theirs(self, indent)

    torch._tensor_str._tensor_str = ours


def register() -> None:
    """Extends torch's tables of devices."""
    _accumulate_as_on_the_cpu()
    _print_on_the_cpu()
