"""``torch.hologram.FloatTensor`` and its kind: types and storages named after their dtype.

torch keeps these names for programs written before dtypes, and ``x.type()`` prints them. They make
tensors and storages of the device, and ``isinstance`` asks for device and dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._utils import classproperty
from torch.storage import _LegacyStorage, _warn_typed_storage_removal

from torch_hologram._device import DEVICE_TYPE

__all__ = [
    "BFloat16Storage",
    "BFloat16Tensor",
    "BoolStorage",
    "BoolTensor",
    "ByteStorage",
    "ByteTensor",
    "CharStorage",
    "CharTensor",
    "ComplexDoubleStorage",
    "ComplexFloatStorage",
    "DoubleStorage",
    "DoubleTensor",
    "FloatStorage",
    "FloatTensor",
    "HalfStorage",
    "HalfTensor",
    "IntStorage",
    "IntTensor",
    "LongStorage",
    "LongTensor",
    "ShortStorage",
    "ShortTensor",
]

_MODULE = f"torch.{DEVICE_TYPE}"


class _TensorType(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == DEVICE_TYPE
            and instance.dtype == cls.dtype
            and instance.layout == torch.strided
        )

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """Returns a tensor of the device, as torch.FloatTensor() returns one of the CPU.

        Args:
            *args: sizes, values, or a tensor or storage of the dtype on the device, to share it.
            device: a hologram device, by default the current one.

        Raises:
            TypeError: torch has no tensor for these arguments.
        """
        where = torch.device(DEVICE_TYPE if device is None else device)
        if where.type != DEVICE_TYPE:
            raise RuntimeError(
                f"legacy constructor expects device type: {DEVICE_TYPE} but device type: "
                f"{where.type} was passed"
            )
        given = args[0] if len(args) == 1 else None
        if isinstance(given, (torch.TypedStorage, torch.UntypedStorage)):
            return torch.empty(0, dtype=cls.dtype, device=where).set_(given)
        if isinstance(given, torch.Tensor):
            if not cls.__instancecheck__(given):
                raise TypeError(
                    f"expected {cls.__qualname__} (got {given.type()}): convert with .to()"
                )
            return given.view_as(given)
        made: torch.Tensor = getattr(torch, cls.__qualname__.rpartition(".")[2])(*args)
        return made.to(where)

    # torch finds the type of `x.type(torch.hologram.HalfTensor)` by the full name of the class.
    def __repr__(cls) -> str:
        return f"<class '{cls.__qualname__}'>"


def _tensor_type(name: str, dtype: torch.dtype) -> _TensorType:
    full = f"{_MODULE}.{name}"
    return _TensorType(
        full,
        (),
        {
            "__doc__": f"Tensors of {dtype} on the device; ``torch.empty`` and ``torch.tensor`` "
            "with a dtype make the same.",
            "__module__": _MODULE,
            "dtype": dtype,
        },
    )


class _Storage(_LegacyStorage):
    @classmethod
    def from_buffer(cls, *args: Any, **kwargs: Any) -> Any:
        _warn_typed_storage_removal()
        raise RuntimeError(f"from_buffer: Not available for {DEVICE_TYPE} storage")

    @classmethod
    def _new_with_weak_ptr(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"_new_with_weak_ptr: Not available for {DEVICE_TYPE} storage")

    @classmethod
    def _new_shared_filename(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"_new_shared_filename: Not available for {DEVICE_TYPE} storage")


def _storage_type(name: str, dtype: torch.dtype) -> Any:
    def public(cls: type) -> torch.dtype:
        _warn_typed_storage_removal()
        return dtype

    meta: Any = type(_Storage)
    return meta(
        name,
        (_Storage,),
        {
            "__doc__": f"A storage of {dtype} on the device; torch replaces these by "
            "``torch.UntypedStorage``.",
            "__module__": _MODULE,
            "dtype": classproperty(public),
            "_dtype": classproperty(lambda cls: dtype),
        },
    )


BFloat16Tensor = _tensor_type("BFloat16Tensor", torch.bfloat16)
BoolTensor = _tensor_type("BoolTensor", torch.bool)
ByteTensor = _tensor_type("ByteTensor", torch.uint8)
CharTensor = _tensor_type("CharTensor", torch.int8)
DoubleTensor = _tensor_type("DoubleTensor", torch.float64)
FloatTensor = _tensor_type("FloatTensor", torch.float32)
HalfTensor = _tensor_type("HalfTensor", torch.float16)
IntTensor = _tensor_type("IntTensor", torch.int32)
LongTensor = _tensor_type("LongTensor", torch.int64)
ShortTensor = _tensor_type("ShortTensor", torch.int16)

BFloat16Storage = _storage_type("BFloat16Storage", torch.bfloat16)
BoolStorage = _storage_type("BoolStorage", torch.bool)
ByteStorage = _storage_type("ByteStorage", torch.uint8)
CharStorage = _storage_type("CharStorage", torch.int8)
ComplexDoubleStorage = _storage_type("ComplexDoubleStorage", torch.complex128)
ComplexFloatStorage = _storage_type("ComplexFloatStorage", torch.complex64)
DoubleStorage = _storage_type("DoubleStorage", torch.float64)
FloatStorage = _storage_type("FloatStorage", torch.float32)
HalfStorage = _storage_type("HalfStorage", torch.float16)
IntStorage = _storage_type("IntStorage", torch.int32)
LongStorage = _storage_type("LongStorage", torch.int64)
ShortStorage = _storage_type("ShortStorage", torch.int16)
