"""Hugging Face accelerate: ``Accelerator()`` on the device.

accelerate finds a device by asking a fixed list of packages, and takes the one that the environment
variable ``ACCELERATE_TORCH_DEVICE`` names before that. :func:`enable` changes

- the variable, which processes that are started afterwards inherit;
- ``PartialState.__init__``, which would take the variable's device also where ``cpu=True`` asks for
  the CPU.
"""

from __future__ import annotations

import functools
import os
from importlib import import_module
from typing import Any

import torch

from torch_hologram import devices, random
from torch_hologram._device import DEVICE_TYPE, device_index
from torch_hologram.integrations import Changes, require_attribute

__all__ = ["RandomState", "disable", "enable"]

_VARIABLE = "ACCELERATE_TORCH_DEVICE"
_changes = Changes()


def enable(device: torch.device | str = DEVICE_TYPE) -> None:
    """Makes the device the one that accelerate chooses, except where ``cpu=True`` says otherwise.

    May be called again, with another index too.

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
    if not _changes:
        init = require_attribute(partial, "__init__", "accelerate", "1.15")

        @functools.wraps(init)
        def __init__(self: Any, cpu: bool = False, **kwargs: Any) -> None:
            named = os.environ.pop(_VARIABLE, None) if cpu else None
            try:
                init(self, cpu, **kwargs)
            finally:
                if named is not None:
                    os.environ[_VARIABLE] = named

        before = os.environ.get(_VARIABLE)
        if before is None:
            _changes.on_undo(os.environ.pop, _VARIABLE, None)
        else:
            _changes.on_undo(os.environ.__setitem__, _VARIABLE, before)
        _changes.set(partial, "__init__", __init__)
    os.environ[_VARIABLE] = str(device)


def is_enabled() -> bool:
    """Returns whether :func:`enable` has been called, and :func:`disable` has not since."""
    return bool(_changes)


def disable() -> None:
    """Undoes :func:`enable`; does nothing where that was not called.

    What was made before keeps its device, and so does accelerate's state, which the process keeps
    until ``AcceleratorState._reset_state(reset_partial_state=True)``.
    """
    _changes.undo()


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
