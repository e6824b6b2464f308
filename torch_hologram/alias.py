"""The same memory seen as a CPU tensor and as a hologram tensor, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE, device_index, lazy_init

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = ["alias_as_cpu", "alias_from_cpu"]


def alias_as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor over the memory of a hologram tensor.

    It has the tensor's shape, strides and dtype, keeps its memory alive and is detached: writes to
    either are seen by both, and neither autograd nor version counters know of them.

    Raises:
        TypeError: ``tensor`` is no tensor.
        ValueError: the tensor is not on a hologram device.
    """
    _check(tensor)
    if tensor.device.type != DEVICE_TYPE:
        raise ValueError(f"Expected a tensor on a {DEVICE_TYPE} device, but got: {tensor.device}")
    return _C.alias_as_cpu(tensor)


def alias_from_cpu(tensor: torch.Tensor, device: Device = None) -> torch.Tensor:
    """Returns a hologram tensor over the memory of a CPU tensor; see :func:`alias_as_cpu`.

    Args:
        tensor: a strided CPU tensor.
        device: where the result is, by default the current device.

    Raises:
        TypeError: ``tensor`` is no tensor.
        ValueError: the tensor is not on the CPU.
    """
    _check(tensor)
    if tensor.device.type != "cpu":
        raise ValueError(f"Expected a tensor on the cpu, but got: {tensor.device}")
    lazy_init()
    return _C.alias_from_cpu(tensor, device_index(device))


def _check(tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
