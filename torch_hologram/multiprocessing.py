"""``torch.multiprocessing``: sending hologram tensors to other processes without copies.

Device memory is host memory, so it is shared as CPU tensors are: the storage's bytes are moved to
shared memory once, and every process that receives the tensor maps them. As with CPU tensors, and
unlike CUDA's, the sender need not keep the tensor alive.

On a CUDA device it is shared as CUDA tensors are, by handle: the bytes are moved to memory of
torch's allocator once, on the device, and torch sends that. Its rules are those of CUDA tensors:
the sender runs as long as a receiver has the tensor, and what was received is sent on as a clone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions as reductions

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE, lazy_init
from torch_hologram.dlpack import vendor_of

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

_reduce_storage: Callable[[Any], Reduced] = reductions.reduce_storage
_storage_share_memory_ = torch.UntypedStorage.share_memory_
_storage_is_shared = torch.UntypedStorage.is_shared

# Storages received: that of torch's -> hologram storage over it. Two tensors that shared a storage
# where they came from share one here too.
_received: dict[int, reductions.StorageWeakRef] = {}


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns a uint8 hologram tensor of the whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _cpu_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return _C.alias_as_cpu(_bytes_of(storage)).untyped_storage()


def _rebind(storage: torch.UntypedStorage, cpu: torch.UntypedStorage) -> None:
    """Makes the bytes of a CPU storage those of a hologram storage of the same size."""
    whole = torch.empty(0, dtype=torch.uint8).set_(cpu)
    _C.rebind_storage_(_bytes_of(storage), whole)


def _share(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Moves a hologram storage to shared memory; returns the CPU storage over it."""
    if not _C.is_host_addressable(storage.device.index):
        raise RuntimeError(
            f"the memory of {storage.device} is not the host's and cannot be shared with other "
            "processes: share a CPU copy, Tensor.cpu()"
        )
    cpu = _cpu_storage(storage)
    if not cpu.is_shared():
        shared = torch.UntypedStorage._new_shared(cpu.nbytes())
        shared.copy_(cpu)
        _rebind(storage, shared)
        cpu = shared
    return cpu


def _over(theirs: torch.UntypedStorage, make: Callable[[], torch.Tensor]) -> torch.UntypedStorage:
    known = _received.get(theirs._cdata)
    if known is not None:
        # A hologram storage keeps the storage under it alive, so while it lives the key is its.
        storage = torch.UntypedStorage._new_with_weak_ptr(known.cdata)
        if storage is not None:
            return storage
    storage = make().untyped_storage()
    for key in [key for key, ref in _received.items() if ref.expired()]:
        del _received[key]
    _received[theirs._cdata] = reductions.StorageWeakRef(storage)
    return storage


def _rebuild_storage(
    rebuild: Callable[..., torch.UntypedStorage], args: tuple[Any, ...], index: int
) -> torch.UntypedStorage:
    lazy_init()
    cpu = rebuild(*args)
    whole = torch.empty(0, dtype=torch.uint8).set_(cpu)
    return _over(cpu, lambda: _C.alias_from_cpu(whole, index))


def _rebuild_on_vendor(
    rebuild: Callable[..., torch.Tensor], args: tuple[Any, ...], index: int
) -> torch.UntypedStorage:
    lazy_init()
    if not _C.is_in_stream_order(index):
        raise RuntimeError(
            f"hologram:{index} cannot share the memory that was sent: it is of a CUDA device there"
        )
    whole = rebuild(*args)  # puts the current stream behind the sender's
    return _over(whole.untyped_storage(), lambda: _C.alias_from_vendor(whole, index))


def _on_vendor(storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor of torch's device over the bytes, which are moved to memory of its allocator."""
    ours = _bytes_of(storage)
    if not _C.is_foreign(ours):
        moved = torch.empty(
            storage.nbytes(), dtype=torch.uint8, device=vendor_of(ours.get_device())
        )
        moved.copy_(ours)
        _C.rebind_storage_(ours, moved)
    _C.export_tensor(ours)
    return _C.alias_as_vendor(ours)


def _rebuild_empty_storage(index: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(0, device=torch.device(DEVICE_TYPE, index))


def reduce_storage(storage: torch.UntypedStorage) -> Reduced:
    """Reduces a storage for a ``torch.multiprocessing`` queue; moves it to shared memory.

    Raises:
        RuntimeError: the device's memory is not the host's.
    """
    if storage.device.type != DEVICE_TYPE:
        return _reduce_storage(storage)
    index = storage.device.index
    if storage.nbytes() == 0:  # cannot be mapped
        return _rebuild_empty_storage, (index,)
    if _C.is_in_stream_order(index):
        on_vendor, its_args = reductions.reduce_tensor(_on_vendor(storage))
        return _rebuild_on_vendor, (on_vendor, its_args, index)
    cpu = _share(storage)
    rebuild, args = _reduce_storage(cpu)
    if cpu.data_ptr() != storage.data_ptr():
        # It was shared under another sharing strategy, so torch has moved the bytes once more.
        _rebind(storage, cpu)
    return _rebuild_storage, (rebuild, args, index)


@functools.wraps(_storage_share_memory_)
def _share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    if self.device.type != DEVICE_TYPE:
        return _storage_share_memory_(self, *args, **kwargs)
    if self.nbytes() != 0:
        (_on_vendor if _C.is_in_stream_order(self.device.index) else _share)(self)
    return self


@functools.wraps(_storage_is_shared)
def _is_shared(self: torch.UntypedStorage) -> bool:
    if self.device.type != DEVICE_TYPE:
        return _storage_is_shared(self)
    if _C.is_in_stream_order(self.device.index):
        return True  # as on CUDA
    shareable = self.nbytes() != 0 and _C.is_host_addressable(self.device.index)
    return shareable and _cpu_storage(self).is_shared()


def register() -> None:
    """Teaches ``torch.multiprocessing`` and ``share_memory_`` hologram storages."""
    ForkingPickler.register(torch.UntypedStorage, reduce_storage)
    torch.UntypedStorage.share_memory_ = _share_memory_  # type: ignore[method-assign]
    torch.UntypedStorage.is_shared = _is_shared  # type: ignore[method-assign, assignment]
