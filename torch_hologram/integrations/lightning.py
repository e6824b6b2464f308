"""Lightning: ``Trainer(accelerator="hologram")`` and ``Fabric(accelerator="hologram")``.

On one device or, in a process for each, on several: with ``DDPStrategy``, ``FSDPStrategy`` and
``ModelParallelStrategy``.

Both ``lightning`` and ``pytorch_lightning`` know the name as soon as they are imported, because the
package waits for that (``torch_hologram/_lightning_hook.py``). What changes in each of them:

- the accelerator is added to its registry, which is made for this;
- a Trainer with this accelerator on one device gets ``SingleDeviceStrategy`` on that device, where
  Lightning would put every accelerator it does not know on the CPU (``_choose_strategy``);
- ``precision="bf16-mixed"`` and ``"16-mixed"`` autocast this device, where Lightning would take
  every accelerator it does not know for CUDA (``_check_and_init_precision``);
- ``DDPStrategy`` makes its module without a CUDA stream, which it opens for every device but the
  CPU (``_setup_model``, ``setup_module``), and registers its hook, which it does on CUDA only
  (``_register_ddp_hooks``);
- integers that are averaged over the processes are summed and divided, which it does where the
  backend of the process group is named ``"gloo"`` (``_sync_ddp``);
- ``FSDPStrategy`` is taken, which the connector refuses where the accelerator is not CUDA's
  (``_check_strategy_and_fallback``); ``device_mesh=(replicas, shards)`` is a mesh of this device
  (``setup_environment``).

With any other accelerator Lightning's own methods run unchanged.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

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
    """Returns the indices of the devices that ``Trainer(devices=...)`` means.

    Args:
        devices_: ``2`` or ``"2"`` for the first two devices; ``[1]`` or ``"1,"`` for the one with
            index 1; ``-1`` for all.

    Raises:
        ValueError: it says no device, or anything else.
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
        wanted = []
    if not wanted:
        raise ValueError(f"devices={devices_!r} says no device: give a number or a list of indices")
    if len(set(wanted)) != len(wanted):
        raise ValueError(f"devices={devices_!r} has the same device twice")
    for index in wanted:
        if not 0 <= index < devices.device_count():
            raise RuntimeError(
                f"devices={devices_!r}: there is no {DEVICE_TYPE}:{index}, there are "
                f"{devices.device_count()} devices (of the CPU as many as HOLOGRAM_CPU_DEVICES "
                "says)"
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
    registry_name = "ACCELERATOR_REGISTRY" if fabric else "AcceleratorRegistry"
    registry = need(connector, registry_name)
    base = need(connector, "Accelerator")
    single_device = need(connector, "SingleDeviceStrategy")
    mixed_precision = need(connector, "MixedPrecision")
    sharded_precision = need(connector, "FSDPPrecision")
    sharded = need(connector, "FSDPStrategy")
    sharded_by_parts = need(connector, "ModelParallelStrategy")
    strategies = import_module(f"{sharded.__module__.rpartition('.')[0]}.ddp")
    data_parallel = need(strategies, "DDPStrategy")
    cls = need(connector, "_Connector" if fabric else "_AcceleratorConnector")
    choose_strategy = need(cls, "_choose_strategy")
    check_strategy = need(cls, "_check_strategy_and_fallback")
    init_precision = need(cls, "_check_and_init_precision")
    setup_sharded = need(sharded, "setup_environment")
    # The names of the fields differ: the arguments `precision` and, as a plugin, its object; the
    # method that wraps a model and the arguments for the wrapper.
    flag, plugin, wrap, sharding_options = (
        ("_precision_input", "_precision_instance", "setup_module", "_fsdp_kwargs")
        if fabric
        else ("_precision_flag", "_precision_plugin_flag", "_setup_model", "kwargs")
    )
    setup_model = need(data_parallel, wrap)
    if DEVICE_TYPE in registry:
        return

    def need_field(self: Any, name: str) -> Any:
        return require_attribute(self, name, package, _TESTED)

    accelerator = type(
        "HologramAccelerator",
        (HologramAccelerator, base),
        {
            "__module__": __name__,
            # For processes that are spawned: the class itself is no attribute of this module.
            "__reduce__": lambda self: (_accelerator_of, (connector.__name__, registry_name)),
        },
    )

    class ShardedPrecision(sharded_precision):  # type: ignore[misc, valid-type]
        def __init__(self, precision: Any) -> None:
            super().__init__(precision)
            if precision == "16-mixed":
                from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

                self.scaler = ShardedGradScaler(device=DEVICE_TYPE)

        def forward_context(self) -> Any:
            if not self.precision.endswith("-mixed"):
                return super().forward_context()
            is_bfloat16 = self.precision == "bf16-mixed"
            return torch.autocast(DEVICE_TYPE, torch.bfloat16 if is_bfloat16 else torch.float16)

    ShardedPrecision.__name__ = ShardedPrecision.__qualname__ = sharded_precision.__name__

    @functools.wraps(choose_strategy)
    def _choose_strategy(self: Any) -> Any:
        if (
            isinstance(self.accelerator, HologramAccelerator)
            and self._num_nodes_flag == 1
            and len(self._parallel_devices) == 1
        ):
            return single_device(device=self._parallel_devices[0])
        return choose_strategy(self)

    @functools.wraps(check_strategy)
    def _check_strategy_and_fallback(self: Any) -> None:
        accelerator = self._accelerator_flag
        if isinstance(self.accelerator, HologramAccelerator):
            self._accelerator_flag = "cuda"  # what the strategies are open to
        try:
            check_strategy(self)
        finally:
            self._accelerator_flag = accelerator

    @functools.wraps(init_precision)
    def _check_and_init_precision(self: Any) -> Any:
        precision = need_field(self, flag)
        if (
            not isinstance(self.accelerator, HologramAccelerator)
            or need_field(self, plugin) is not None
        ):
            return init_precision(self)
        if isinstance(self.strategy, sharded):
            return ShardedPrecision(precision)
        if precision == "bf16-mixed" or (
            precision == "16-mixed" and not isinstance(self.strategy, sharded_by_parts)
        ):
            return mixed_precision(precision, DEVICE_TYPE)
        return init_precision(self)

    @functools.wraps(setup_model)
    def _setup_model(self: Any, model: torch.nn.Module) -> Any:
        if self.root_device.type != DEVICE_TYPE:
            return setup_model(self, model)
        options = need_field(self, "_ddp_kwargs")
        return DistributedDataParallel(model, device_ids=[self.root_device.index], **options)

    @functools.wraps(setup_sharded)
    def setup_environment(self: Any) -> None:
        options = need_field(self, sharding_options)
        mesh = options.get("device_mesh")
        if self.root_device.type != DEVICE_TYPE or not isinstance(mesh, tuple):
            setup_sharded(self)
            return
        del options["device_mesh"]
        setup_sharded(self)
        from torch.distributed.device_mesh import init_device_mesh

        options["device_mesh"] = init_device_mesh(DEVICE_TYPE, mesh)

    if fabric:  # both packages use this one's
        utilities = f"{sharded.__module__.partition('.strategies')[0]}.utilities"
        distributed = import_module(f"{utilities}.distributed")
        _average_integers(distributed, need(distributed, "_sync_ddp"))
    else:
        register_hooks = need(data_parallel, "_register_ddp_hooks")
        register_hook = need(strategies, "_register_ddp_comm_hook")

        @functools.wraps(register_hooks)
        def _register_ddp_hooks(self: Any) -> None:
            if self.root_device.type != DEVICE_TYPE:
                register_hooks(self)
                return
            register_hook(
                model=self.model,
                ddp_comm_state=need_field(self, "_ddp_comm_state"),
                ddp_comm_hook=need_field(self, "_ddp_comm_hook"),
                ddp_comm_wrapper=need_field(self, "_ddp_comm_wrapper"),
            )

        _changes.set(data_parallel, "_register_ddp_hooks", _register_ddp_hooks)

    _changes.set(cls, "_choose_strategy", _choose_strategy)
    _changes.set(cls, "_check_strategy_and_fallback", _check_strategy_and_fallback)
    _changes.set(cls, "_check_and_init_precision", _check_and_init_precision)
    _changes.set(data_parallel, wrap, _setup_model)
    _changes.set(sharded, "setup_environment", setup_environment)
    registry.register(DEVICE_TYPE, accelerator, description="torch_hologram's device")
    _changes.on_undo(registry.pop, DEVICE_TYPE)


def _average_integers(distributed: ModuleType, sync: Any) -> None:
    """Has integers summed and divided, which Lightning does where a group's backend is Gloo."""

    @functools.wraps(sync)
    def _sync_ddp(result: torch.Tensor, group: Any = None, reduce_op: Any = None) -> Any:
        is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("avg", "mean")
        if (
            not is_mean
            or result.device.type != DEVICE_TYPE
            or result.is_floating_point()
            or result.is_complex()
        ):
            return sync(result, group, reduce_op)
        size = torch.distributed.get_world_size(group)
        return result.copy_(sync(result, group, "sum") / size)

    _changes.set(distributed, "_sync_ddp", _sync_ddp)


def _accelerator_of(connector: str, registry: str) -> HologramAccelerator:
    """Returns a new accelerator of the package with this connector."""
    made: HologramAccelerator = getattr(import_module(connector), registry).get(DEVICE_TYPE)
    return made
