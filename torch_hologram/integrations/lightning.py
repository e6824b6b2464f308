"""Lightning: ``Trainer(accelerator="hologram")`` and ``Fabric(accelerator="hologram")``.

Both ``lightning`` and ``pytorch_lightning`` know the name as soon as they are imported, because the
package waits for that (``torch_hologram/_lightning_hook.py``). What changes in each of them:

- the accelerator is added to its registry, which is made for this;
- a Trainer with this accelerator on one device gets ``SingleDeviceStrategy`` on that device, where
  Lightning would put every accelerator it does not know on the CPU (``_choose_strategy``);
- ``precision="bf16-mixed"`` and ``"16-mixed"`` autocast this device, where Lightning would take
  every accelerator it does not know for CUDA (``_check_and_init_precision``).

With any other accelerator Lightning's own methods run unchanged.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch

from torch_hologram import devices, memory
from torch_hologram._device import DEVICE_TYPE, device_index
from torch_hologram.integrations import Changes, require_attribute

__all__ = ["disable", "enable", "extend", "parse_devices"]

_TESTED = "2.6"
_changes = Changes()


class HologramAccelerator:
    """What an accelerator of Lightning's has to know of the device.

    In each package the class in its registry inherits from this one and from the package's own
    ``Accelerator``.
    """

    def setup_device(self, device: torch.device) -> None:
        """Makes the device the current one.

        Raises:
            ValueError: it is no device of hologram.
        """
        devices.set_device(device_index(device))

    def teardown(self) -> None:
        """Gives memory that is not in use back to the system."""
        memory.empty_cache()

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Returns :func:`torch.hologram.memory_stats` of the device."""
        return dict(memory.memory_stats(device))

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        """See :func:`parse_devices`."""
        return parse_devices(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Returns the devices of ``Trainer(devices=...)``."""
        return [torch.device(DEVICE_TYPE, index) for index in parse_devices(devices)]

    @staticmethod
    def auto_device_count() -> int:
        """Returns 1: what ``devices="auto"`` means."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Returns whether there is a device."""
        return devices.is_available()

    @staticmethod
    def name() -> str:
        """Returns ``"hologram"``."""
        return DEVICE_TYPE


def parse_devices(devices_: int | str | list[int] | tuple[int, ...]) -> list[int]:
    """Returns the index of the device that ``Trainer(devices=...)`` means.

    Args:
        devices_: ``1`` or ``"1"`` for the first device; ``[1]`` or ``"1,"`` for that with index 1.

    Raises:
        ValueError: it says anything else, or more than one device: Lightning would start a process
            for each and needs a process group, which the device does not have.
        RuntimeError: there is no device of that index.
    """
    wanted: Any = devices_
    if isinstance(wanted, str):
        try:
            numbers = [int(part) for part in wanted.split(",") if part.strip()]
        except ValueError:
            numbers = []
        wanted = numbers if "," in wanted or not numbers else numbers[0]
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        count = devices.device_count() if wanted == -1 else wanted
        wanted = list(range(count))
    if not isinstance(wanted, (list, tuple)) or not all(type(index) is int for index in wanted):
        raise ValueError(f"devices={devices_!r} says no device: give 1, or a list of one index")
    if len(wanted) != 1:
        raise ValueError(
            f"devices={devices_!r} means {len(wanted)} devices; accelerator='hologram' trains on "
            "one, because the device has no process group: devices=1"
        )
    if not 0 <= wanted[0] < devices.device_count():
        raise RuntimeError(
            f"devices={devices_!r}: there is no {DEVICE_TYPE}:{wanted[0]}, "
            f"there are {devices.device_count()} devices"
        )
    return list(wanted)


def enable() -> None:
    """Opens every package of Lightning's that has been imported. May be called again.

    There is no need to call it: it happens when Lightning is imported.

    Raises:
        RuntimeError: Lightning has not been imported, or is of a version that cannot be opened. The
            message says what it lacks.
    """
    from torch_hologram._lightning_hook import CONNECTORS

    found = [sys.modules[name] for name in CONNECTORS if name in sys.modules]
    if not found:
        raise RuntimeError("neither lightning nor pytorch_lightning has been imported")
    for connector in found:
        extend(connector)


def disable() -> None:
    """Takes the accelerator away from every package that knows it; :func:`enable` brings it back.

    Trainers that were made before keep theirs. A package that is imported later knows the name.
    """
    _changes.undo()


def extend(connector: ModuleType) -> None:
    """Opens one package, given the module with its connector; does nothing the second time.

    Raises:
        RuntimeError: the package is of a version that cannot be opened.
    """
    package = connector.__name__.split(".")[0]
    need = functools.partial(require_attribute, package=package, tested=_TESTED)
    fabric = connector.__name__.endswith("fabric.connector")
    registry = need(connector, "ACCELERATOR_REGISTRY" if fabric else "AcceleratorRegistry")
    base = need(connector, "Accelerator")
    single_device = need(connector, "SingleDeviceStrategy")
    mixed_precision = need(connector, "MixedPrecision")
    cls = need(connector, "_Connector" if fabric else "_AcceleratorConnector")
    choose_strategy = need(cls, "_choose_strategy")
    init_precision = need(cls, "_check_and_init_precision")
    # The names of the fields differ: the arguments `precision` and, as a plugin, its object.
    flag, plugin = (
        ("_precision_input", "_precision_instance")
        if fabric
        else ("_precision_flag", "_precision_plugin_flag")
    )
    if DEVICE_TYPE in registry:
        return

    accelerator = type("HologramAccelerator", (HologramAccelerator, base), {"__module__": __name__})

    @functools.wraps(choose_strategy)
    def _choose_strategy(self: Any) -> Any:
        if isinstance(self.accelerator, HologramAccelerator) and self._num_nodes_flag == 1:
            return single_device(device=self._parallel_devices[0])
        return choose_strategy(self)

    @functools.wraps(init_precision)
    def _check_and_init_precision(self: Any) -> Any:
        precision = need_field(self, flag)
        if (
            isinstance(self.accelerator, HologramAccelerator)
            and need_field(self, plugin) is None
            and precision in ("16-mixed", "bf16-mixed")
        ):
            return mixed_precision(precision, DEVICE_TYPE)
        return init_precision(self)

    def need_field(self: Any, name: str) -> Any:
        return require_attribute(self, name, package, _TESTED)

    _changes.set(cls, "_choose_strategy", _choose_strategy)
    _changes.set(cls, "_check_and_init_precision", _check_and_init_precision)
    registry.register(DEVICE_TYPE, accelerator, description="torch_hologram's device")
    _changes.on_undo(registry.pop, DEVICE_TYPE)
