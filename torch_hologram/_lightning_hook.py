"""Waits for ``import lightning`` (or ``pytorch_lightning``), so that it knows the device by name.

Lightning has a registry of accelerators, but no entry point that fills it.
"""

from __future__ import annotations

import warnings
from types import ModuleType

from torch_hologram._import_hook import when_imported

# Where each of the packages turns the arguments of its Trainer, or Fabric, into objects.
CONNECTORS = (
    "lightning.pytorch.trainer.connectors.accelerator_connector",
    "lightning.fabric.connector",
    "pytorch_lightning.trainer.connectors.accelerator_connector",
    "lightning_fabric.connector",
)


def _open(connector: ModuleType) -> None:
    from torch_hologram.integrations import lightning

    try:
        lightning.extend(connector)
    except RuntimeError as error:  # an unknown version: `import lightning` goes on without us
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)


def register() -> None:
    """Extends Lightning's packages, those imported now and the others when they are."""
    for name in CONNECTORS:
        when_imported(name, _open)
