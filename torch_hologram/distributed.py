"""torch.distributed for the device: process groups over the engines that torch has.

The backend ``"hologram"`` hands the bytes of tensors to Gloo where the host can touch them, and
tensors of CUDA devices to NCCL, over the same memory and in stream order. Groups that are made with
``"gloo"`` and ``"nccl"`` take tensors of the device, too. csrc/aten/process_group.cpp does it.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from torch_hologram import _C, devices
from torch_hologram._device import DEVICE_TYPE, is_the_accelerator
from torch_hologram._import_hook import when_imported

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, ProcessGroup


def register() -> None:
    """Registers the backend, now or when ``torch.distributed`` is imported."""
    when_imported("torch.distributed.distributed_c10d", _extend)
    when_imported(
        "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook", lambda _: _wait_where_asked()
    )


def _extend(c10d: ModuleType) -> None:
    backends = c10d.Backend
    # It serves tensors of the host, too, which the engine takes as they are.
    backends.register_backend(
        DEVICE_TYPE,
        functools.partial(_create, c10d),
        extended_api=True,
        devices=["cpu", DEVICE_TYPE],
    )
    for name in (backends.GLOO, backends.NCCL, backends.FAKE):
        served = backends.backend_capability[name]
        backends.backend_capability[name] = [*served, DEVICE_TYPE]
    _serve_groups_of_torch(c10d)
    _choose_default(c10d)


def _create(c10d: ModuleType, options: Any, engine_options: Any) -> Backend:
    """The backend of a group: with Gloo, and NCCL where a device's memory is CUDA's.

    Args:
        c10d: ``torch.distributed.distributed_c10d``.
        options: store, rank, size and timeout of the group.
        engine_options: ``ProcessGroupNCCL.Options``, or ``None``.

    Raises:
        RuntimeError: this torch has no Gloo, or the ranks do not find each other.
    """
    if not c10d.is_gloo_available():
        raise RuntimeError("Distributed package doesn't have Gloo built in")
    rank, size = options.group_rank, options.group_size
    # After a restart torchrun's store still has the addresses of the ranks before.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    host = c10d.ProcessGroupGloo(
        c10d.PrefixStore(f"gloo/{attempt}/", options.store), rank, size, timeout=options.timeout
    )
    vendors = None
    if c10d.is_nccl_available() and _has_cuda_devices():
        its = engine_options
        if not isinstance(its, c10d.ProcessGroupNCCL.Options):
            its = c10d.ProcessGroupNCCL.Options()
            its.is_high_priority_stream = False
        its._timeout = options.timeout
        its.global_ranks_in_group = options.global_ranks_in_group
        its.group_name = options.group_id
        vendors = c10d.ProcessGroupNCCL(
            c10d.PrefixStore(f"nccl/{attempt}/", options.store), rank, size, its
        )
    host.options.global_ranks_in_group = options.global_ranks_in_group
    host.options.group_name = options.group_id
    backend: Backend = _C.process_group_backend(host, vendors)
    backend._set_sequence_number_for_group()
    _choose_device(c10d)
    return backend


def _has_cuda_devices() -> bool:
    return any(
        _C.delegate_target(index)[1].startswith("cuda") for index in range(_C.device_count())
    )


def _choose_device(c10d: ModuleType) -> None:
    """Makes ``hologram:r`` current in local rank r, where the program has chosen no device.

    With the default group: whatever is current when a later one is made, is so on purpose.
    """
    if c10d.is_initialized():
        return
    rank = os.environ.get("LOCAL_RANK", "")
    if rank.isdecimal() and devices.current_device() == 0 and int(rank) < _C.device_count():
        devices.set_device(int(rank))


def _serve_groups_of_torch(c10d: ModuleType) -> None:
    """Gives a group's engine our tensors as its own ones, where it is to serve the device."""
    register = c10d.ProcessGroup._register_backend

    @functools.wraps(register)
    def _register_backend(
        self: ProcessGroup, device: torch.device, backend_type: Any, backend: Any = None
    ) -> None:
        if device.type == DEVICE_TYPE and backend is not None:
            # Of a group that is bound to a device, as init_process_group(device_id=...) does, torch
            # splits off those of a mesh, for which a backend would have to be NCCL's.
            self.bound_device_id = None
            name = backend.name()
            if name == c10d.Backend.NCCL:
                backend = _C.process_group_backend(None, backend)
            elif name == c10d.Backend.GLOO:
                backend = _C.process_group_backend(backend, backend)
            if name in (c10d.Backend.NCCL, c10d.Backend.GLOO):
                # Of the engine's own type it would be taken for the one that is there already.
                backend_type = c10d.ProcessGroup.BackendType.CUSTOM
                _choose_device(c10d)
            # Of "cpu:gloo,hologram:hologram" torch sets none, and warns of it later.
            if self.name() == "undefined":
                self._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        register(self, device, backend_type, backend)

    c10d.ProcessGroup._register_backend = _register_backend


def _choose_default(c10d: ModuleType) -> None:
    """Gives ``init_process_group()`` without a backend those of the CPU and of the device.

    torch takes that of the accelerator alone, and has none for the CPU then.
    """
    config = c10d.BackendConfig
    init = config.__init__

    @functools.wraps(init)
    def __init__(self: Any, backend: Any) -> None:
        if str(backend) == c10d.Backend.UNDEFINED and is_the_accelerator():
            names = c10d.Backend.default_device_backend_map
            backend = f"cpu:{names['cpu']},{DEVICE_TYPE}:{names[DEVICE_TYPE]}"
        init(self, backend)

    config.__init__ = __init__


def _wait_where_asked() -> None:
    """Lets ``torch.cuda.synchronize`` take a device of ours.

    Where torch has CUDA the hook calls it with the device of the gradients, whichever that is.
    """
    synchronize = torch.cuda.synchronize

    @functools.wraps(synchronize)
    def _synchronize(device: Any = None) -> None:
        if isinstance(device, torch.device) and device.type == DEVICE_TYPE:
            devices.synchronize(device)
        else:
            synchronize(device)

    torch.cuda.synchronize = _synchronize
