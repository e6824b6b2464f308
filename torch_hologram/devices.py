"""Which devices there are, and which one is current."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import torch

from torch_hologram import _C
from torch_hologram._device import (
    DEVICE_TYPE,
    _pending_seeds,
    device_index,
    is_initialized,
    lazy_init,
    warn_of_environment,
)

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = [
    "DeviceProperties",
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "has_half",
    "has_magma",
    "init",
    "is_available",
    "is_initialized",
    "is_tf32_supported",
    "set_device",
    "synchronize",
    "utilization",
]

has_half = True  # float16 works
has_magma = False  # that library is for GPUs; torch.linalg works without


@dataclass(frozen=True)
class DeviceProperties:
    """What a device is.

    Attributes:
        name: the processor's name.
        backend: what executes, ``"cpu"`` or the name of another backend.
        total_memory: memory in bytes.
        multi_processor_count: processors the device computes with.
        isa: instruction set of the kernels: ``"avx512"``, ``"avx2"``, ``"neon"`` or
            ``"baseline"`` of a CPU, such as ``"sm_90"`` of NVIDIA's GPUs, ``"msl3.1"``, the
            language, of Metal's.
        l2_cache_size: level 2 cache of one processor in bytes, 0 if unknown.
        major: major version of the device's capability.
        minor: minor version of the device's capability.
        host_addressable: whether the device's memory is the host's, so that NumPy and CPU tensors
            can share it.
        asynchronous: whether the device may still be at work when a call returns.
        products: the library of the device's vendor that computes its matrix products, and the
            library's version, or why it cannot be used; empty where there is no such library.
    """

    name: str
    backend: str
    total_memory: int
    multi_processor_count: int
    isa: str
    l2_cache_size: int
    major: int
    minor: int
    host_addressable: bool
    asynchronous: bool
    products: str


def is_available() -> bool:
    """Returns whether there is a hologram device.

    Never raises. Warns once if a variable of the environment is wrong: there is no device then, or
    it is not as asked for.
    """
    warn_of_environment()
    return _C.device_count() > 0


def device_count() -> int:
    """Returns the number of hologram devices. Does not initialise them."""
    return _C.device_count()


def init() -> None:
    """Initialises the device; any use of it does the same.

    Raises:
        RuntimeError: in a child forked after the device was initialised.
    """
    lazy_init()


def current_device() -> int:
    """Returns the index of the device that is current in this thread."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Makes a device current in this thread; prefer :class:`device` in a ``with`` statement.

    A CUDA device becomes that of ``torch.cuda``, too, so that other libraries launch there.

    Args:
        device: a device with an index. A negative integer leaves the current device as it is.

    Raises:
        ValueError: the device has no index or is of another type.
        RuntimeError: there is no device of that index.
    """
    index = device_index(device, optional=False)
    if index >= 0:
        lazy_init()
        _C.exchange_current_devices(index)


class device:
    """Context manager that makes a device current, and the previous one on exit.

    A CUDA device is meanwhile that of ``torch.cuda``, too, so that other libraries launch there.

    Args:
        device: a device, or ``None`` or a negative integer for no change.

    Raises:
        ValueError: the device is of another type.
        RuntimeError: on entry, if there is no device of that index.
    """

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else device_index(device)
        self.prev_idx = -1
        self._previous: tuple[int, int, int] | None = None

    def __enter__(self) -> None:
        if self.idx >= 0:
            self._previous = _C.exchange_current_devices(self.idx)
            self.prev_idx = self._previous[0]

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        if self._previous is not None:
            _C.set_current_devices(self._previous)
        return False


class device_of(device):
    """Context manager that makes the device of a tensor or storage current.

    Args:
        obj: no change if it is not on a hologram device.
    """

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage | torch.TypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == DEVICE_TYPE else None)


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Returns the properties of a device, by default the current one.

    Raises:
        RuntimeError: there is no device of that index. The message says why backends that are
            looked for have none.
    """
    index = device_index(device)
    if index >= _C.device_count() > 0 and _C.absent_backends():
        raise RuntimeError(
            f"hologram device index {index} is out of range: {_C.device_count()} device(s) "
            f"available; none of {_C.absent_backends()}"
        )
    return DeviceProperties(**_C.device_properties(index))


def get_device_name(device: Device = None) -> str:
    """Returns the name of a device, by default of the current one."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Returns the (major, minor) version of a device's capability, by default the current one's."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Returns whether a device can read and write the memory of another.

    Devices whose memory is the host's can, and others those of their own backend.

    Raises:
        RuntimeError: there is no device of one of the indices.
    """
    mine, other = get_device_properties(device), get_device_properties(peer_device)
    return mine.backend == other.backend or (mine.host_addressable and other.host_addressable)


def get_arch_list() -> list[str]:
    """Returns the instruction sets that the kernels are built for and this processor has.

    Those of the devices that are no processors follow: a GPU's is its architecture.
    ``get_device_properties().isa`` is the one in use.
    """
    sets = _C.instruction_sets()
    others = {get_device_properties(index).isa for index in range(device_count())} - set(sets)
    return [*sets, *sorted(others)]


def is_tf32_supported() -> bool:
    """Returns whether the current device can multiply float32 with the mantissa of TF32.

    It does where it is allowed to, see ``torch.hologram.backends.matmul``: elsewhere float32 is
    never computed with fewer bits.
    """
    properties = get_device_properties()
    return properties.backend == "cuda" and properties.major >= 8


_processor_times: tuple[int, int] | None = None  # busy and all, when utilization() was last asked


def _read_processor_times() -> tuple[int, int]:
    with open("/proc/stat") as file:
        times = [int(value) for value in file.readline().split()[1:9]]
    return sum(times) - times[3] - times[4], sum(times)  # without idle and waiting for disks


def utilization(device: Device = None) -> int:
    """Returns how busy the processors were since the last call, in percent, by any program.

    The first call watches them for a tenth of a second.

    Raises:
        RuntimeError: there is no device of that index.
    """
    global _processor_times
    get_device_properties(device)
    before = _processor_times
    if before is None:
        before = _read_processor_times()
        time.sleep(0.1)
    now = _read_processor_times()
    _processor_times = now
    elapsed = now[1] - before[1]
    return round(100 * (now[0] - before[0]) / elapsed) if elapsed > 0 else 0


def synchronize(device: Device = None) -> None:
    """Waits for everything issued to a device, by default the current one, in all its streams."""
    if device is None and not _pending_seeds:
        _C.synchronize_current()  # in loops: one call instead of four
        return
    lazy_init()
    _C.synchronize(device_index(device))
