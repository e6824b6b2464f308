"""Keeps on the CPU what torch would put on the current accelerator, and programs for the CPU meant.

Once a device is registered it is torch's current accelerator, and two of torch's functions take
that for the place where the program computes. What they take without the package, they take here
where they have a choice. docs/installed.md lists the other places where torch looks at the
accelerator.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from torch_hologram._device import DEVICE_TYPE, is_the_accelerator
from torch_hologram._import_hook import when_imported

_device_is_meant = contextvars.ContextVar("_device_is_meant", default=False)


@contextlib.contextmanager
def sharding_on_the_device() -> Iterator[None]:
    """Has ``fully_shard()`` without a mesh move parameters from the CPU, as torch does."""
    token = _device_is_meant.set(True)
    try:
        yield
    finally:
        _device_is_meant.reset(token)


def _choose_mesh(fsdp: ModuleType) -> None:
    """Lets ``fully_shard()`` without a mesh leave parameters that are on the CPU there.

    torch makes a mesh of the accelerator and moves them. So it does here with parameters that are
    on the device or on ``meta``, where a backend of the process group serves the device.
    """
    make = fsdp._init_default_mesh

    # fully_shard() itself may have been imported by name already; it looks this one up.
    @functools.wraps(make)
    def _init_default_mesh(*args: Any, **kwargs: Any) -> Any:
        if not is_the_accelerator():
            return make(*args, **kwargs)
        c10d = torch.distributed.distributed_c10d
        if not c10d.is_initialized():
            c10d.init_process_group()
        group = c10d._get_default_group()
        module = sys._getframe(1).f_locals["module"]  # that is to be sharded
        if torch.device(DEVICE_TYPE) in group._device_types and (
            _device_is_meant.get() or not _are_on_the_cpu(module)
        ):
            return make(*args, **kwargs)
        return torch.distributed.device_mesh.init_device_mesh("cpu", (group.size(),))

    fsdp._init_default_mesh = _init_default_mesh  # type: ignore[attr-defined]


def _are_on_the_cpu(module: torch.nn.Module | list[torch.nn.Module]) -> bool:
    modules = module if isinstance(module, list) else [module]
    return {_home(p) for its in modules for p in its.parameters()} == {"cpu"}


def _home(parameter: torch.nn.Parameter) -> str:
    """Where it is; of one that is sharded already, and may wait on the CPU, where it computes."""
    mesh = getattr(parameter, "device_mesh", None)
    return parameter.device.type if mesh is None else mesh.device_type


def _move_block_mask(flex: ModuleType) -> None:
    """Lets ``flex_attention`` of CPU tensors take a mask that was made on the device.

    ``create_block_mask`` without a device makes it on the accelerator, before anybody knows which
    tensors it is for.
    """
    attend = flex.flex_attention

    @functools.wraps(attend)
    def flex_attention(
        query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, **rest: Any
    ) -> Any:
        if (
            block_mask is not None
            and query.device.type == "cpu"
            and block_mask.kv_num_blocks.device.type == DEVICE_TYPE
        ):
            block_mask = block_mask.to("cpu")
        return attend(query, key, value, score_mod, block_mask, **rest)

    flex.flex_attention = flex_attention  # type: ignore[attr-defined]


def register() -> None:
    """Extends the functions' modules: those imported now, the others when they are."""
    for name, extend in (
        ("torch.distributed.fsdp._fully_shard._fully_shard", _choose_mesh),
        ("torch.nn.attention.flex_attention", _move_block_mask),
    ):
        when_imported(name, extend)
