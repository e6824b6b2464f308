"""DLPack: a hologram tensor is exchanged as a tensor of the device whose memory it is in.

On the CPU backend that is the CPU, on a CUDA device, of a torch with CUDA, that of CUDA. NumPy,
CuPy, JAX and others share a hologram tensor's memory through ``from_dlpack``; between torch tensors
the device is kept. torch's own ``Tensor.__dlpack_device__`` does not know a renamed device,
so the two methods and ``torch.from_dlpack`` are extended here. What is not hologram goes to torch's
own functions unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack
from torch.overrides import has_torch_function_unary
from torch.utils.dlpack import DLDeviceType

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE, device_index

if TYPE_CHECKING:
    from torch_hologram._device import Device

_tensor_dlpack = torch.Tensor.__dlpack__
_tensor_dlpack_device = torch.Tensor.__dlpack_device__
# By the name in torch._C, which others import from there.
_torch_to_dlpack: dict[str, Callable[..., Any]] = {
    name: getattr(torch._C, name) for name in ("_to_dlpack", "_to_dlpack_versioned")
}
_torch_from_dlpack = torch.utils.dlpack.from_dlpack

_CPU = (int(DLDeviceType.kDLCPU), 0)


def _is_hologram(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == DEVICE_TYPE


def vendor_of(index: int) -> torch.device | None:
    """The device of torch's whose kernels work on a device's memory in the order of its stream."""
    return torch.device(_C.delegate_target(index)[1]) if _C.is_in_stream_order(index) else None


@functools.wraps(_tensor_dlpack_device)
def _dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
    # A subclass with __torch_function__ comes back here from torch's method, unwrapped.
    if has_torch_function_unary(self) or not _is_hologram(self):
        return _tensor_dlpack_device(self)
    if _C.is_host_addressable(self.device.index):
        return DLDeviceType.kDLCPU, 0
    if (vendor := vendor_of(self.device.index)) is not None and vendor.type == "cuda":
        return DLDeviceType.kDLCUDA, vendor.index
    return DLDeviceType.kDLExtDev, self.device.index


@functools.wraps(_tensor_dlpack)
def _dlpack(
    self: torch.Tensor,
    *,
    stream: Any = -1,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
    **read_only: Any,  # from torch 2.14 on: read_only=True exports for reading alone
) -> Any:
    if has_torch_function_unary(self) or not _is_hologram(self):
        return _tensor_dlpack(
            self,
            stream=stream,
            max_version=max_version,
            dl_device=dl_device,
            copy=copy,
            **read_only,
        )
    # A capsule holds neither autograd history nor lazy bits, so torch refuses these too.
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if self.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if self.is_neg():
        raise BufferError("Can't export tensors with the negative bit set")
    if self.layout != torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")
    extension = (int(DLDeviceType.kDLExtDev), self.device.index)
    target = None if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    vendor = vendor_of(self.device.index)
    places = [_CPU, extension]
    if vendor is not None and vendor.type == "cuda":
        places.insert(0, (int(DLDeviceType.kDLCUDA), vendor.index))
    if target is not None and target not in places:
        raise BufferError(
            f"Can't export a {self.device} tensor to DLPack device {_name(target)}, only to "
            f"{' and '.join(map(_name, places))}"
        )
    if target != extension and vendor is not None:
        alias = _C.alias_as_vendor(self)
        # torch puts the consumer's stream behind the current one of the tensor's device, which has
        # to be the current device.
        with torch.cuda.device(alias.device) if alias.is_cuda else nullcontext():
            return _tensor_dlpack(
                alias,
                stream=stream,
                max_version=max_version,
                dl_device=dl_device,
                copy=copy,
                **read_only,
            )
    if stream is not None and stream != -1:
        raise BufferError(
            f"Can't export a {DEVICE_TYPE} tensor to stream {stream!r}: it is exported as host "
            "memory, for which the stream is None or -1"
        )

    on_host = _C.is_host_addressable(self.device.index)
    home = _CPU if on_host else extension
    target = target or home
    if target == _CPU and on_host:
        exported = _C.alias_as_cpu(self)
    elif target == _CPU:
        if copy is False:
            raise BufferError(
                f"Can't export a {self.device} tensor to the CPU without copying: the device's "
                "memory is not the host's"
            )
        exported, copy = self.detach().cpu(), None
    else:
        _C.export_tensor(self)
        exported = self
    old = max_version is None or max_version[0] < 1
    if old and read_only.get("read_only"):
        raise BufferError(
            "Can't export for reading alone without a flag that says so: pass "
            "max_version=(1, 0) or higher"
        )
    export = _torch_to_dlpack["_to_dlpack" if old else "_to_dlpack_versioned"]
    return export(exported, dl_device=None, copy=copy, **({} if old else read_only))


def _exporting(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def ours(data: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if _is_hologram(data):
            _C.export_tensor(data)
        return theirs(data, *arguments, **options)

    return ours


@functools.wraps(_torch_from_dlpack)
def _from_dlpack(
    ext_tensor: Any, *, device: Device = None, copy: bool | None = None
) -> torch.Tensor:
    target = None if device is None else torch.device(device)
    if _is_hologram(ext_tensor) and target is None:
        target = ext_tensor.device
    if target is None or target.type != DEVICE_TYPE or not hasattr(ext_tensor, "__dlpack__"):
        return _torch_from_dlpack(ext_tensor, device=device, copy=copy)

    index = device_index(target)
    if _is_hologram(ext_tensor) and not _C.is_host_addressable(ext_tensor.device.index):
        return _of_a_device(ext_tensor, torch.device(DEVICE_TYPE, index), copy)
    if _is_hologram(ext_tensor) and ext_tensor.device.index != index:
        return _torch_from_dlpack(ext_tensor, device=torch.device(DEVICE_TYPE, index), copy=copy)
    # The producer's host memory is device memory as it is.
    shared = _torch_from_dlpack(ext_tensor, copy=copy)
    if shared.device.type == "cpu" and _C.is_host_addressable(index):
        return _C.alias_from_cpu(shared, index)
    if shared.device == vendor_of(index):
        return _C.alias_from_vendor(shared, index)
    if copy is False:
        raise ValueError(
            f"cannot move DLPack tensor from device {shared.device} to {DEVICE_TYPE}:{index} "
            "without copying. Set copy=None or copy=True."
        )
    return shared.to(torch.device(DEVICE_TYPE, index))


def _of_a_device(tensor: torch.Tensor, target: torch.device, copy: bool | None) -> torch.Tensor:
    """What torch.from_dlpack() makes of a tensor in memory of a device's own, which it refuses."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    _C.export_tensor(tensor)  # raises where there is no memory
    if tensor.device == target:
        return tensor.clone() if copy else tensor.detach()
    if copy is False:
        raise ValueError(
            f"cannot move DLPack tensor from device {tensor.device} to {target} "
            "without copying. Set copy=None or copy=True."
        )
    return tensor.to(target)


def _name(device: tuple[int, int]) -> str:
    try:
        return f"({DLDeviceType(device[0]).name}, {device[1]})"
    except ValueError:
        return str(device)


def register() -> None:
    """Extends torch's ways to export and import through DLPack, the C interface included."""
    torch.Tensor.__dlpack__ = _dlpack  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign]
    exchange_api = _C.dlpack_exchange_api()
    if exchange_api is not None:  # None where torch has no C interface
        torch.Tensor.__dlpack_c_exchange_api__ = exchange_api
    for name, theirs in _torch_to_dlpack.items():
        setattr(torch._C, name, _exporting(theirs))
    for module in (torch, torch.utils.dlpack):
        setattr(module, "to_dlpack", torch._C._to_dlpack)  # noqa: B010
    torch.utils.dlpack.from_dlpack = _from_dlpack
    torch.from_dlpack = _from_dlpack  # type: ignore[attr-defined]
