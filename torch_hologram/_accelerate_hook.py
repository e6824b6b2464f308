"""Waits for ``import accelerate`` where the environment says that the device is to be chosen.

``ACCELERATE_TORCH_DEVICE`` is accelerate's own variable. Processes inherit it from a shell, from
``accelerate launch`` or from one that has called ``integrations.accelerate.enable()``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from types import ModuleType

from torch_hologram._device import DEVICE_TYPE
from torch_hologram._import_hook import when_imported


def register() -> None:
    """Extends accelerate and its launcher when they are imported."""
    # The module with the Accelerator imports torch, and is itself half imported at this moment. The
    # package imports this one right after it.
    when_imported("accelerate.launchers", lambda _: _open("accelerate.accelerator", "extend"))
    when_imported(
        "accelerate.commands.launch",
        lambda module: _open(module.__name__, "extend_launcher"),
    )


def _open(module: str, name: str) -> None:
    if os.environ.get("ACCELERATE_TORCH_DEVICE", "").split(":")[0] != DEVICE_TYPE:
        return
    from torch_hologram.integrations import accelerate

    extend: Callable[[ModuleType], None] = getattr(accelerate, name)
    try:
        extend(sys.modules[module])
    except RuntimeError as error:  # an unknown version: `import accelerate` goes on without us
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
