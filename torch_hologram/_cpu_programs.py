"""Keeps on the CPU what torch would put on the current accelerator, and programs for the CPU meant.

Once a device is registered it is torch's current accelerator, and three of torch's functions take
that for the place where the program computes. What they take without the package, they take here
where they have a choice. docs/installed.md lists the other places where torch looks at the
accelerator.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_hologram._device import DEVICE_TYPE
from torch_hologram._import_hook import when_imported


def _choose_backend(c10d: ModuleType) -> None:
    """Gives ``init_process_group()`` without a backend that of the CPU.

    torch looks for the one of the accelerator, and raises ValueError because there is none.
    """
    config = c10d.BackendConfig
    init = config.__init__

    @functools.wraps(init)
    def __init__(self: Any, backend: Any) -> None:
        if str(backend) == c10d.Backend.UNDEFINED and _is_the_accelerator():
            backend = f"cpu:{c10d.Backend.default_device_backend_map['cpu']}"
        init(self, backend)

    config.__init__ = __init__


def _choose_mesh(fsdp_init: ModuleType) -> None:
    """Lets ``fully_shard()`` without a mesh shard on the CPU, unless a backend serves the device.

    torch makes a mesh of the accelerator and moves the parameters there, where the collectives of
    a process group that knows the CPU only would then fail.
    """
    make = fsdp_init.init_device_mesh

    @functools.wraps(make)
    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == DEVICE_TYPE:
            group = torch.distributed.distributed_c10d._get_default_group()
            if torch.device(DEVICE_TYPE) not in group._device_types:
                device_type = "cpu"
        return make(device_type, *args, **kwargs)

    fsdp_init.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]


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


def _is_the_accelerator() -> bool:
    return torch._C._get_accelerator().type == DEVICE_TYPE


def register() -> None:
    """Extends the three functions' modules: those imported now, the others when they are."""
    for name, extend in (
        ("torch.distributed.distributed_c10d", _choose_backend),
        ("torch.distributed.fsdp._fully_shard._fsdp_init", _choose_mesh),
        ("torch.nn.attention.flex_attention", _move_block_mask),
    ):
        when_imported(name, extend)
