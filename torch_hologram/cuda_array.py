"""``__cuda_array_interface__`` of tensors on CUDA devices, for CuPy, Numba and others.

torch's own property knows ``cuda`` tensors alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import has_torch_function_unary

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE
from torch_hologram.dlpack import vendor_of

_theirs: Any = torch.Tensor.__cuda_array_interface__


def _cuda_array_interface(self: torch.Tensor) -> Any:
    if has_torch_function_unary(self) or self.device.type != DEVICE_TYPE:
        return _theirs.__get__(self)
    vendor = vendor_of(self.device.index)
    if vendor is None or vendor.type != "cuda" or self.is_sparse:
        return _theirs.__get__(self)  # raises AttributeError
    if self.requires_grad:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on a tensor that requires grad, use tensor.detach()"
        )
    _C.export_tensor(self)  # whoever has the dictionary never says that he has done with it
    interface: dict[str, Any] = _theirs.__get__(_C.alias_as_vendor(self))
    stream, _, _ = _C.current_stream(self.device.index)
    handle = _C.stream_handle(self.device.index, stream)
    # 0 is ambiguous there, and 1 the default stream.
    return interface | {"version": 3, "stream": handle or 1}


def register() -> None:
    """Extends torch's property."""
    torch.Tensor.__cuda_array_interface__ = property(_cuda_array_interface)  # type: ignore[assignment]
