"""What the modules behind ``torch.hologram`` share: the device's name, indices, initialisation."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

import torch

from torch_hologram.settings import unknown_settings

if TYPE_CHECKING:
    from typing import TypeAlias

    # What torch.cuda's functions take for a device; None is the current one.
    Device: TypeAlias = torch.device | str | int | None

DEVICE_TYPE = "hologram"


def device_index(device: Device = None, *, optional: bool = True) -> int:
    """Returns the index a device argument stands for.

    Args:
        device: ``torch.device("hologram", 1)``, ``"hologram:1"``, ``1``, or, for the current
            device, ``None`` or ``"hologram"``. An integer is returned as it is.
        optional: whether a device without an index means the current device.

    Raises:
        ValueError: the device is of another type, or has no index and ``optional`` is false.
    """
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != DEVICE_TYPE:
            raise ValueError(f"Expected a {DEVICE_TYPE} device, but got: {device}")
        if device.index is not None:
            return device.index
    elif device is not None:
        raise TypeError(
            f"Expected a torch.device, str, int or None for a device, but got: {device!r}"
        )
    if not optional:
        raise ValueError(
            "Expected a torch.device with a specified index or an integer, but got: "
            f"{device if device is not None else 'None'}"
        )
    from torch_hologram import _C

    return _C.current_device()


# Seeds asked for before the device was initialised, in order: device index, or None for all
# devices, which comes first -> seed.
_pending_seeds: dict[int | None, int] = {}
_pending_lock = threading.Lock()


def is_initialized() -> bool:
    """Returns whether the device has been used in this process."""
    from torch_hologram import _C

    return _C.is_initialized() and not _C.has_forked()


def is_the_accelerator() -> bool:
    """Returns whether torch takes the device for the current accelerator."""
    return torch._C._get_accelerator().type == DEVICE_TYPE


_environment_checked = False


def warn_of_environment() -> None:
    """Warns, once in a process, of variables ``HOLOGRAM_...`` that do not do what they seem to."""
    global _environment_checked
    if _environment_checked:
        return
    _environment_checked = True
    from torch_hologram import _C

    found = []
    if _C.environment_error():
        found.append(f"no {DEVICE_TYPE} device is available: {_C.environment_error()}")
    if _C.environment_warning():
        found.append(_C.environment_warning())
    found += [str(setting) for setting in unknown_settings()]
    for text in found:
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def lazy_init() -> None:
    """Initialises the device and applies the seeds that waited for it.

    Raises:
        RuntimeError: in a child forked after the device was initialised.
    """
    from torch_hologram import _C

    _C.init()
    if not _environment_checked:
        warn_of_environment()
    if _pending_seeds:
        with _pending_lock:
            for index, seed in _pending_seeds.items():
                for each in range(_C.device_count()) if index is None else (index,):
                    _C.default_generator(each).manual_seed(seed)
            _pending_seeds.clear()


def seed_when_initialized(index: int | None, seed: int) -> None:
    """Seeds the default generator of a device, or of all: now if it is initialised, else then.

    So ``torch.manual_seed`` at the top of a script does not initialise the device, nor ask which
    devices there are: both would make it unusable in workers forked later.

    Raises:
        ValueError: the seed is not a number of 64 bits.
    """
    torch.Generator().manual_seed(seed)  # a wrong seed is an error now, not at the first use
    with _pending_lock:
        if index is None:
            _pending_seeds.clear()
        _pending_seeds[index] = seed
    if is_initialized():
        lazy_init()
