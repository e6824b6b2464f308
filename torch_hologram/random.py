"""The devices' default random number generators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE, device_index, lazy_init, seed_when_initialized

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def default_generator(device: Device = None) -> torch.Generator:
    """Returns the generator operators on a device draw from when they are given none."""
    lazy_init()
    return _C.default_generator(device_index(device))


def default_generators() -> tuple[torch.Generator, ...]:
    """Returns the default generator of every device, in the order of their indices."""
    return tuple(default_generator(index) for index in range(_C.device_count()))


def get_rng_state(device: Device = DEVICE_TYPE) -> torch.Tensor:
    """Returns the state of a device's default generator as a CPU tensor of dtype uint8.

    It has 16 bytes: the seed and the offset, an int64 each.
    """
    return default_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the state of every device's default generator; see :func:`get_rng_state`."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Device = DEVICE_TYPE) -> None:
    """Sets the state of a device's default generator.

    Args:
        new_state: what :func:`get_rng_state` returned.
        device: by default the current device.

    Raises:
        TypeError: the state is not a CPU tensor of dtype uint8.
        RuntimeError: the state is of another size, such as that of a generator of the CPU.
    """
    default_generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the state of every device's default generator; see :func:`set_rng_state`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the default generator of the current device.

    Does not initialise the device. ``torch.manual_seed`` seeds the devices too.
    """
    seed_when_initialized(_C.current_device(), int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the default generators of all devices; see :func:`manual_seed`."""
    seed_when_initialized(None, int(seed))


def seed() -> None:
    """Seeds the default generator of the current device with a random number."""
    default_generator().seed()


def seed_all() -> None:
    """Seeds the default generators of all devices with one random number."""
    number = default_generator(0).seed()
    manual_seed_all(number)


def initial_seed() -> int:
    """Returns the seed of the current device's default generator."""
    return default_generator().initial_seed()
