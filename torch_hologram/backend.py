"""Which backends this build has, and which one ``"auto"`` means."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, cast

from torch_hologram import _C
from torch_hologram._device import device_index

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = [
    "PRIORITY",
    "BackendType",
    "available",
    "get_default_backend",
    "is_available",
    "is_cuda_available",
    "is_metal_available",
    "locate",
    "require",
]


class BackendType(str, enum.Enum):
    """A kind of hardware. Each is a string, its name: ``BackendType.CPU == "cpu"``.

    A backend outside the package, of a library in HOLOGRAM_BACKEND_PATH, is one more where it has a
    device: ``BackendType("name")``.
    """

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]

    @classmethod
    def _missing_(cls, value: object) -> BackendType | None:
        there = {_C.device_backend(index) for index in range(_C.device_count())}
        if not isinstance(value, str) or value not in there:
            return None
        found = str.__new__(cls, value)
        found._name_ = value.upper()
        found._value_ = value
        return cast(BackendType, cls._value2member_map_.setdefault(value, found))

    METAL = "metal"
    CUDA = "cuda"
    CPU = "cpu"


# What "auto" takes, the first that is there; backends outside the package come before the last.
PRIORITY = (BackendType.METAL, BackendType.CUDA, BackendType.CPU)


@functools.cache
def _devices() -> dict[BackendType, int]:
    """The first device of each backend that is there."""
    found: dict[BackendType, int] = {}
    for index in range(_C.device_count()):
        found.setdefault(_backend_of(index), index)
    return found


def available() -> tuple[BackendType, ...]:
    """Returns the backends that are there, the one that ``"auto"`` takes first."""
    there = _devices()
    *first, last = PRIORITY
    outside = (backend for backend in there if backend not in PRIORITY)
    return tuple(backend for backend in (*first, *outside, last) if backend in there)


def is_available(backend: str | BackendType) -> bool:
    """Returns whether a backend is there.

    Raises:
        ValueError: there is no backend of that name at all.
    """
    return _type_of(backend) in _devices()


def is_cuda_available() -> bool:
    """Returns whether there is a CUDA device that hologram can use."""
    return is_available(BackendType.CUDA)


def is_metal_available() -> bool:
    """Returns whether there is a Metal device that hologram can use."""
    return is_available(BackendType.METAL)


def get_default_backend() -> BackendType:
    """Returns the backend that ``"auto"`` means: of Metal, CUDA and CPU the first that is there.

    Raises:
        RuntimeError: there is none.
    """
    return require("auto")


def require(backend: str | BackendType) -> BackendType:
    """Returns a backend that is there, by its name or ``"auto"``.

    Raises:
        ValueError: there is no backend of that name at all.
        RuntimeError: the backend is not there. The message says what is.
    """
    if backend == "auto":
        if not available():
            raise RuntimeError("no hologram backend is available: there is no device")
        return available()[0]
    wanted = _type_of(backend)
    if wanted in _devices():
        return wanted
    names = ", ".join(found.value for found in available()) or "none"
    raise RuntimeError(
        f"hologram backend {wanted.value!r} is not available: this build of torch_hologram has no "
        f"{wanted.name} device (available: {names})"
    )


def locate(backend: str | BackendType, device: Device = None) -> tuple[BackendType, int]:
    """Returns a backend and the index of one of its devices.

    Args:
        backend: its name or ``"auto"``, which with a device is the device's.
        device: the device, by default the current one if it is of the backend, else the first.

    Raises:
        ValueError: there is no backend of that name at all, or the device is of another backend or
            no hologram device.
        RuntimeError: the backend or the device is not there.
    """
    wanted = require(backend)
    index = device_index(device)
    found = _backend_of(index)
    if wanted == found:
        return found, index
    if device is None:
        return wanted, _devices()[wanted]
    if backend == "auto":
        return found, index
    raise ValueError(f"hologram:{index} is a device of the backend {found}, not of {wanted}")


@functools.cache
def _backend_of(index: int) -> BackendType:
    return BackendType(_C.device_backend(index))


def _type_of(backend: str | BackendType) -> BackendType:
    if isinstance(backend, BackendType):
        return backend
    try:
        return BackendType(backend)
    except ValueError:
        names = ", ".join(repr(kind.value) for kind in PRIORITY)
        raise ValueError(
            f"unknown hologram backend {backend!r}: expected 'auto', {names}"
        ) from None
