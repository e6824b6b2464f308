"""Hugging Face accelerate: ``Accelerator()`` on the device.

accelerate finds a device by asking a fixed list of packages, and takes the one that the environment
variable ``ACCELERATE_TORCH_DEVICE`` names before that. :func:`enable` sets the variable; nothing in
accelerate is changed. Processes that are started afterwards inherit it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch

from torch_hologram import devices, random
from torch_hologram._device import DEVICE_TYPE, device_index
from torch_hologram.integrations import require_attribute

__all__ = ["RandomState", "enable"]

_VARIABLE = "ACCELERATE_TORCH_DEVICE"


def enable(device: torch.device | str = DEVICE_TYPE) -> None:
    """Makes the device the one that accelerate chooses. May be called again.

    Args:
        device: ``"hologram"``, or one with an index.

    Raises:
        ImportError: accelerate is not installed.
        ValueError: ``device`` is no device of hologram.
        RuntimeError: there is no such device, accelerate has already chosen another one, or it is
            of a version that cannot be asked.
    """
    state = import_module("accelerate.state")
    if device_index(device) >= devices.device_count():
        raise RuntimeError(f"there is no {device}: there are {devices.device_count()} devices")
    partial = require_attribute(state, "PartialState", "accelerate", "1.15")
    chosen = require_attribute(partial, "_shared_state", "accelerate", "1.15").get("device")
    if chosen is not None and torch.device(chosen).type != DEVICE_TYPE:
        raise RuntimeError(
            f"accelerate is on {chosen} already: call enable() before the first Accelerator, "
            "PartialState or TrainingArguments, or PartialState._reset_state() before enable()"
        )
    os.environ[_VARIABLE] = str(device)


class RandomState:
    """The states of the devices' generators, for ``accelerator.register_for_checkpointing``.

    accelerate saves the generators of the devices it knows. Without this one, dropout on the device
    differs after ``accelerator.load_state()`` from what it would have been.
    """

    def state_dict(self) -> dict[str, Any]:
        """Returns the states, uint8 tensors on the CPU, one for each device."""
        return {"states": random.get_rng_state_all()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the states.

        Raises:
            RuntimeError: they are of more devices than there are.
        """
        random.set_rng_state_all(state["states"])
