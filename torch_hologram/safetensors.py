"""safetensors: ``load_file(path, device="hologram")`` and ``safe_open(..., device="hologram")``.

safetensors knows devices by a fixed list of names, and passes an integer on to torch, for which it
is an index of the current accelerator. So the name is turned into the index. Saving needs nothing.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch

from torch_hologram._device import DEVICE_TYPE, device_index
from torch_hologram._import_hook import when_imported


def _translate(device: Any) -> Any:
    if isinstance(device, str) and device.split(":")[0] == DEVICE_TYPE:
        return device_index(device)
    if isinstance(device, torch.device) and device.type == DEVICE_TYPE:
        return device_index(device)
    return device


def _extend(safetensors: ModuleType) -> None:
    original = safetensors.safe_open

    @functools.wraps(original, updated=())
    def safe_open(filename: Any, framework: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        return original(filename, framework, device=_translate(device), **kwargs)

    for module in (safetensors, sys.modules.get("safetensors.torch")):
        if module is not None:
            module.safe_open = safe_open  # type: ignore[attr-defined]


def register() -> None:
    """Extends safetensors, now if it has been imported, or else when it is."""
    when_imported("safetensors", _extend)
