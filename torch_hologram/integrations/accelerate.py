"""Hugging Face accelerate: ``Accelerator()`` on the device, in one process or several.

accelerate finds a device by asking a fixed list of packages, and takes the one that the environment
variable ``ACCELERATE_TORCH_DEVICE`` names before that. Where it names this device, which
:func:`enable` sees to, what changes is

- ``PartialState.__init__``, which would take the variable's device also where ``cpu=True`` asks for
  the CPU, and the same one in every process: local rank r gets device r;
- ``PartialState._prepare_backend``, which knows what to start a process group with by the same
  fixed list, and starts none for other devices. To accelerate the processes are ``MULTI_GPU``;
- ``Accelerator.prepare_model`` and ``PartialState.wait_for_everyone``, which take a process's local
  rank for the index of its device;
- ``fsdp2_prepare_model``, which leaves it to ``fully_shard`` to find the device;
- the states that ``Accelerator.save_state`` saves: those of the device's generators are beside
  them, in ``hologram_random_states_<rank>.pt``;
- ``accelerate launch``, which starts several processes where it sees several devices of its list.

All of it is there too when accelerate is imported in a process whose environment has the variable
already (``torch_hologram/_accelerate_hook.py``).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torch_hologram import devices, random
from torch_hologram._cpu_programs import sharding_on_the_device
from torch_hologram._device import DEVICE_TYPE, device_index
from torch_hologram.integrations import Changes, require_attribute

__all__ = ["RandomState", "disable", "enable"]

_VARIABLE = "ACCELERATE_TORCH_DEVICE"
_TESTED = "1.15"
_changes = Changes()


def enable(device: torch.device | str = DEVICE_TYPE) -> None:
    """Makes the device the one that accelerate chooses, except where ``cpu=True`` says otherwise.

    May be called again, with another index too.

    Args:
        device: ``"hologram"``, which in several processes is the one whose index is the local rank,
            or one with an index.

    Raises:
        ImportError: accelerate is not installed.
        ValueError: ``device`` is no device of hologram.
        RuntimeError: there is no such device, accelerate has already chosen another one, or it is
            of a version that cannot be opened.
    """
    accelerator = import_module("accelerate.accelerator")
    if device_index(device) >= devices.device_count():
        raise RuntimeError(f"there is no {device}: there are {devices.device_count()} devices")
    chosen = _shared_state().get("device")
    if chosen is not None and torch.device(chosen).type != DEVICE_TYPE:
        raise RuntimeError(
            f"accelerate is on {chosen} already: call enable() before the first Accelerator, "
            "PartialState or TrainingArguments, or PartialState._reset_state() before enable()"
        )
    extend(accelerator)
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


def is_named() -> bool:
    """Returns whether accelerate's variable in the environment names the device."""
    return os.environ.get(_VARIABLE, "").split(":")[0] == DEVICE_TYPE


def extend(accelerator: ModuleType) -> None:
    """Opens accelerate, given its module with the ``Accelerator``; does nothing the second time.

    Raises:
        RuntimeError: it is of a version that cannot be opened.
    """
    if _changes:
        return
    need = functools.partial(require_attribute, package="accelerate", tested=_TESTED)
    state = import_module("accelerate.state")
    partial = need(state, "PartialState")
    several = need(need(state, "DistributedType"), "MULTI_GPU")
    cls = need(accelerator, "Accelerator")
    init = need(partial, "__init__")
    prepare_backend = need(partial, "_prepare_backend")
    prepare_model = need(cls, "prepare_model")
    wait_for_everyone = need(partial, "wait_for_everyone")
    shard = need(accelerator, "fsdp2_prepare_model")
    save = need(accelerator, "save_accelerator_state")
    load = need(accelerator, "load_accelerator_state")

    @functools.wraps(init)
    def __init__(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        named = os.environ.get(_VARIABLE)
        if named is None or _shared_state():
            init(self, cpu, **kwargs)
            return
        if cpu:
            del os.environ[_VARIABLE]
        elif is_named() and _local_rank() >= 0:
            by_rank = _local_rank() % devices.device_count()
            index = torch.device(named).index if ":" in named else by_rank
            devices.set_device(index)
            os.environ[_VARIABLE] = f"{DEVICE_TYPE}:{index}"
        try:
            init(self, cpu, **kwargs)
        finally:
            os.environ[_VARIABLE] = named

    @functools.wraps(prepare_backend)
    def _prepare_backend(
        self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> tuple[str | None, Any]:
        if cpu or not is_named() or _local_rank() < 0:
            found: tuple[str | None, Any] = prepare_backend(self, cpu, sagemaker_dp, backend)
            return found
        return backend or DEVICE_TYPE, several

    @functools.wraps(shard)
    def fsdp2_prepare_model(accelerator: Any, model: Any) -> Any:
        if accelerator.device.type != DEVICE_TYPE:
            return shard(accelerator, model)
        with sharding_on_the_device():
            return shard(accelerator, model)

    @functools.wraps(save)
    def save_accelerator_state(output_dir: Any, *args: Any, **kwargs: Any) -> Any:
        result = save(output_dir, *args, **kwargs)
        if _is_on_the_device():
            torch.save(random.get_rng_state_all(), _states_path(output_dir))
        return result

    @functools.wraps(load)
    def load_accelerator_state(input_dir: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(input_dir, *args, **kwargs)
        if _is_on_the_device() and _states_path(input_dir).is_file():
            random.set_rng_state_all(torch.load(_states_path(input_dir), weights_only=True))
        return result

    before = os.environ.get(_VARIABLE)
    if before is None:
        _changes.on_undo(os.environ.pop, _VARIABLE, None)
    else:
        _changes.on_undo(os.environ.__setitem__, _VARIABLE, before)
    _changes.set(partial, "__init__", __init__)
    _changes.set(partial, "_prepare_backend", _prepare_backend)
    _changes.set(cls, "prepare_model", _on_its_device(prepare_model, lambda self: self.state))
    _changes.set(partial, "wait_for_everyone", _on_its_device(wait_for_everyone))
    _changes.set(accelerator, "fsdp2_prepare_model", fsdp2_prepare_model)
    _changes.set(accelerator, "save_accelerator_state", save_accelerator_state)
    _changes.set(accelerator, "load_accelerator_state", load_accelerator_state)
    if "accelerate.commands.launch" in sys.modules:
        extend_launcher(sys.modules["accelerate.commands.launch"])


def extend_launcher(launch: ModuleType) -> None:
    """Lets ``accelerate launch`` start several processes, given its module.

    They are those that ``--num_processes`` says, and as many as there are devices without it.

    Raises:
        RuntimeError: accelerate is of a version that cannot be opened.
    """
    validate = require_attribute(launch, "_validate_launch_command", "accelerate", _TESTED)

    @functools.wraps(validate)
    def _validate_launch_command(args: Any) -> Any:
        result = validate(args)
        if is_named() and not args.cpu:
            args.num_processes = args.num_processes or devices.device_count()
            others = ("use_deepspeed", "use_fsdp", "use_megatron_lm", "tpu")
            if args.num_processes > 1 and not any(getattr(args, name, False) for name in others):
                args.multi_gpu = True  # its launcher is torchrun
        return result

    _changes.set(launch, "_validate_launch_command", _validate_launch_command)


def _on_its_device(
    method: Callable[..., Any], state_of: Callable[[Any], Any] = lambda self: self
) -> Callable[..., Any]:
    """Returns the method, to which the process's local rank is the index of its device.

    Args:
        method: it takes the one for the other.
        state_of: gives the state with both for the object.
    """

    @functools.wraps(method)
    def on_its_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = state_of(self)
        rank, device = state.local_process_index, state.device
        if device.type == DEVICE_TYPE and device.index is not None:
            state.local_process_index = device.index
        try:
            return method(self, *args, **kwargs)
        finally:
            state.local_process_index = rank

    return on_its_device


def _local_rank() -> int:
    """Returns the one that torchrun or accelerate's launcher has given the process, or -1."""
    return int(os.environ.get("LOCAL_RANK", -1))


def _shared_state() -> Any:
    """Returns what accelerate has chosen for the process, nothing before it has."""
    need = functools.partial(require_attribute, package="accelerate", tested=_TESTED)
    return need(need(import_module("accelerate.state"), "PartialState"), "_shared_state")


def _is_on_the_device() -> bool:
    return torch.device(_shared_state().get("device", "cpu")).type == DEVICE_TYPE


def _states_path(folder: str | Path) -> Path:
    return Path(folder, f"hologram_random_states_{_shared_state()['process_index']}.pt")


class RandomState:
    """The states of the devices' generators, for ``accelerator.register_for_checkpointing``.

    There is no need to register one: after :func:`enable` they are saved in any case. It is for
    checkpoints of programs that do, which one process has saved.
    """

    def state_dict(self) -> dict[str, Any]:
        """Returns the states, uint8 tensors on the CPU, one for each device."""
        return {"states": random.get_rng_state_all()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the states, in one process: of several the checkpoint has those of the first.

        Raises:
            RuntimeError: they are of more devices than there are.
        """
        if _shared_state().get("num_processes", 1) == 1:
            random.set_rng_state_all(state["states"])
