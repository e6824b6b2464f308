"""``hologram_torch.utils``: what tensors and executors have to do with each other."""

from __future__ import annotations

import torch

from torch_hologram import devices
from torch_hologram._device import DEVICE_TYPE
from torch_hologram.executor import Executor, numpy_dtype
from torch_hologram.functional import buffer_to_tensor, tensor_to_buffer

__all__ = [
    "buffer_to_tensor",
    "create_executor_for_tensor",
    "match_device",
    "tensor_to_buffer",
    "validate_tensor_compatible",
]


def validate_tensor_compatible(tensor: torch.Tensor) -> None:
    """Returns if :func:`tensor_to_buffer` takes a tensor.

    Raises:
        TypeError: ``tensor`` is no strided tensor, or NumPy has no such dtype.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"expected a strided tensor, got {tensor.layout}")
    numpy_dtype(tensor.dtype)


def match_device(tensor: torch.Tensor, backend: str | None = None) -> str:
    """Returns ``backend`` or, where it is None, the backend that computes where a tensor is."""
    if backend is not None:
        return backend
    if tensor.device.type == DEVICE_TYPE:
        return devices.get_device_properties(tensor.device).backend
    return {"cuda": "cuda", "mps": "metal"}.get(tensor.device.type, "cpu")


def create_executor_for_tensor(tensor: torch.Tensor, backend: str | None = None) -> Executor:
    """Returns an executor where a tensor is: on its hologram device, or on the matching backend.

    Raises:
        ValueError: there is no backend of that name at all.
        RuntimeError: the backend is not there.
    """
    if backend is None and tensor.device.type == DEVICE_TYPE:
        return Executor(device=tensor.device)
    return Executor(match_device(tensor, backend))
