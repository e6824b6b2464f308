"""Memory shared with other libraries: NumPy arrays by address, everything else through DLPack.

What is shared has one copy of the data: a write by either side is seen by the other. Operations
that are still recorded are finished before another library gets to see memory, and operations on
memory that another library sees run at once, so there is never anything to wait for. On a CUDA
device both are so in the order of the current stream.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.dlpack import DLDeviceType

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE, device_index, lazy_init
from torch_hologram.dlpack import vendor_of
from torch_hologram.executor import Buffer

if TYPE_CHECKING:
    import numpy.typing as npt

    from torch_hologram._device import Device

__all__ = ["from_dlpack", "from_numpy", "to_dlpack"]

_READ_ONLY = (
    "{what} is read-only, and a tensor that shares its memory could write it. Set copy=True for a "
    "tensor with memory of its own."
)


def from_numpy(
    array: npt.NDArray[Any], *, copy: bool | None = None, device: Device = None
) -> torch.Tensor:
    """Returns a tensor over the memory of an array, whatever the size of the array.

    The tensor has the array's shape, strides and dtype, and keeps the array's memory alive as long
    as the tensor, a view of it or a result that shares its memory lives; the array may be deleted.
    NumPy refuses to resize the array meanwhile. Both see each other's writes.

    Args:
        array: of any shape, of a dtype that torch has too.
        copy: ``False`` demands shared memory, ``True`` memory of the tensor's own, and ``None``
            shares it wherever the device can, which is always so on the CPU backend.
        device: where the tensor is, by default the current device.

    Raises:
        TypeError: ``array`` is no array, or torch has no such dtype.
        ValueError: the array is read-only, or has negative strides, strides that are no multiple
            of the element's size, or the other byte order, all of which ``copy=True`` allows; or
            with ``copy=False`` the device cannot use the host's memory.
        RuntimeError: there is no such device.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    target = _target(device)
    if copy is True:
        # What torch would refuse to look at, or warn of, NumPy copies.
        if not (array.flags.writeable and array.dtype.isnative and _regular(array)):
            array = np.array(array, array.dtype.newbyteorder("="), order="C")
        return torch.from_numpy(array).to(target)
    if not array.flags.writeable:
        raise ValueError(_READ_ONLY.format(what="the array"))
    return _share(torch.from_numpy(array), target, copy)


def to_dlpack(data: Buffer | torch.Tensor) -> Any:
    """Returns a DLPack capsule over the memory of a tensor or buffer, for one consumer.

    The capsule says that the memory is on the CPU, which any library on the host understands. What
    is recorded of the memory has run when the capsule is there. The memory lives until the consumer
    drops what it made of the capsule, or the capsule is dropped unused. Consumers that call
    ``__dlpack__`` themselves, as ``numpy.from_dlpack`` does, get the tensor or the buffer instead.

    Raises:
        TypeError: ``data`` is neither a tensor nor a buffer.
        ValueError: the tensor is not on a hologram device.
        BufferError: DLPack cannot express the tensor, or it requires grad.
        RuntimeError: the buffer is closed.
    """
    if isinstance(data, torch.Tensor):
        if data.device.type != DEVICE_TYPE:
            raise ValueError(f"Expected a tensor on a {DEVICE_TYPE} device, but got: {data.device}")
    elif not isinstance(data, Buffer):
        raise TypeError(f"expected a Tensor or a Buffer, got {type(data).__name__}")
    return data.__dlpack__()


def from_dlpack(data: Any, *, copy: bool | None = None, device: Device = None) -> torch.Tensor:
    """Returns a tensor over the memory of another library's array or tensor.

    Args:
        data: anything with ``__dlpack__`` and ``__dlpack_device__`` (a NumPy or JAX array, a tensor
            on the CPU or on the device, a buffer), or a DLPack capsule, which is used up.
        copy: ``False`` demands shared memory, ``True`` memory of the tensor's own, and ``None``
            shares it where ``data`` is on the host and the device can use the host's memory.
        device: where the tensor is, by default the device of ``data`` if that is a tensor or a
            buffer of hologram, otherwise the current device.

    Raises:
        TypeError: ``data`` has no ``__dlpack__`` and is no capsule.
        ValueError: ``data`` is read-only and is to be shared, has negative strides, or with
            ``copy=False`` is where the device cannot use it.
        BufferError: the producer cannot export ``data``, for instance because it requires grad.
        RuntimeError: a capsule has been used up before, torch has no such dtype, or there is no
            such device.
    """
    if isinstance(data, Buffer):
        data = data._data()
    if isinstance(data, torch.Tensor) and data.device.type == DEVICE_TYPE:
        target = data.device if device is None else _target(device)
        if copy is True:  # not through DLPack, after which the source would not be recorded
            if data.requires_grad:
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
            return data.clone() if target == data.device else data.to(target)
        return torch.from_dlpack(data, device=target, copy=copy)  # type: ignore[attr-defined]

    target = _target(device)
    if type(data).__name__ == "PyCapsule":
        capsule = data
    elif not hasattr(data, "__dlpack__"):
        raise TypeError(
            f"expected a DLPack capsule or an object with __dlpack__, got {type(data).__name__}"
        )
    elif not _on_host(data):
        # torch hands its stream to the producer.
        return _share(torch.from_dlpack(data), target, copy)  # type: ignore[attr-defined]
    else:
        capsule = _export(data, copy)
    _check(capsule, type(data).__name__, copy)
    shared = torch._C._from_dlpack(capsule)
    if copy is True and shared.device == target:
        return shared.clone()
    return shared.to(target) if copy is True else _share(shared, target, copy)


def _target(device: Device) -> torch.device:
    lazy_init()
    return torch.device(DEVICE_TYPE, device_index(device))


def _share(tensor: torch.Tensor, target: torch.device, copy: bool | None) -> torch.Tensor:
    """A tensor of another device or of the target, as a tensor of the target."""
    if tensor.device == target:
        return tensor
    assert target.index is not None
    if tensor.device.type == "cpu" and _C.is_host_addressable(target.index):
        return _C.alias_from_cpu(tensor, target.index)
    if tensor.device == vendor_of(target.index):
        shared = _C.alias_from_vendor(tensor, target.index)
        return shared.clone() if copy else shared
    if copy is False:
        raise ValueError(
            f"{target} cannot share memory on {tensor.device}. Set copy=None or copy=True."
        )
    return tensor.to(target)


def _regular(array: npt.NDArray[Any]) -> bool:
    """Whether torch can express the strides."""
    return all(
        stride >= 0 and (array.itemsize == 0 or stride % array.itemsize == 0)
        for stride in array.strides
    )


# ---- DLPack ----
# torch takes a read-only array for a writable one, and ends the process at a negative stride. So
# what a capsule says is read here first (dlpack.h of DLPack 1.0).


class DLTensor(ctypes.Structure):
    """A strided array in somebody's memory."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensorVersioned(ctypes.Structure):
    """What a capsule ``"dltensor_versioned"`` points to."""


DLManagedTensorVersioned._fields_ = (
    ("version", ctypes.c_uint32 * 2),
    ("manager_ctx", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensorVersioned))),
    ("flags", ctypes.c_uint64),
    ("dl_tensor", DLTensor),
)


_FLAG_READ_ONLY = 1

_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype = ctypes.c_int
_capsule_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = ctypes.c_void_p
capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _on_host(data: Any) -> bool:
    kind = int(data.__dlpack_device__()[0])
    return kind in (int(DLDeviceType.kDLCPU), int(DLDeviceType.kDLCUDAHost))


def _export(data: Any, copy: bool | None) -> Any:
    """A capsule of what is on the host, where nothing is ordered by streams."""
    options = {} if copy is not False else {"copy": False}
    try:
        return data.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a producer from before DLPack 1.0
        return data.__dlpack__()


def _check(capsule: Any, what: str, copy: bool | None) -> None:
    """Raises ValueError for what torch does not look at."""
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        managed = DLManagedTensorVersioned.from_address(
            capsule_pointer(capsule, b"dltensor_versioned")
        )
        if managed.version[0] != 1:  # of which nothing else is known; torch says so
            return
        tensor, read_only = managed.dl_tensor, bool(managed.flags & _FLAG_READ_ONLY)
    elif _capsule_is_valid(capsule, b"dltensor"):
        tensor, read_only = DLTensor.from_address(capsule_pointer(capsule, b"dltensor")), False
    else:  # used up; torch says so
        return
    strides = tensor.strides[: tensor.ndim] if tensor.strides else []
    if any(stride < 0 for stride in strides):
        raise ValueError(
            f"the {what} has the strides {tuple(strides)}, and tensors with negative strides are "
            "not supported. Export a copy of it."
        )
    if read_only and copy is not True:
        raise ValueError(_READ_ONLY.format(what=f"the {what}"))
