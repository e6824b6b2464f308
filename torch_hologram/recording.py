"""The stream of recorded instructions: handing it over, counting it, doing without it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE, device_index, is_initialized
from torch_hologram.tables import Statistics

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = [
    "eager",
    "float_contraction",
    "flush",
    "flush_before",
    "is_eager",
    "reset_stream_stats",
    "set_float_contraction",
    "stream_stats",
]


def flush(device: Device = None) -> None:
    """Hands over what has been recorded on a device, by default the current one.

    Results are always there when they are looked at; this decides when they are computed. On the
    CPU backend it runs the program on the calling thread.

    Raises:
        RuntimeError: there is no device of that index, or a recorded operation fails.
    """
    if device is None:
        _C.flush_current()
    elif is_initialized():
        _C.flush(device_index(device))


def stream_stats(device: Device = None) -> Statistics:
    """Returns what has been recorded and executed on a device, by default the current one.

    The entries:
        ``recorded``, ``executed``: instructions. Views and frees are not instructions.
        ``failed``: instructions that could not be executed; reading their results raises.
        ``passes``: traversals of an iteration space. Equal groups over many tensors count as one.
        ``calls``: kernels of torch's that ran as instructions, such as matrix products.
        ``stores_elided``: instructions whose result never went to memory.
        ``plan_hits``, ``plan_misses``, ``plan_evictions``: of the cache of canonical programs.
        ``plan_bytes``: what that cache holds now, until :func:`empty_cache`; at most 64 MiB.
        ``bytes_moved``: loaded and stored by the passes.
        ``flushes.REASON``: programs run, by the reason: ``read`` (an operation outside the stream,
        or the host, touches a tensor of the program), ``user``, ``synchronize``, ``full``,
        ``eager``, ``event``, ``memory``, ``exit``, ``mode`` (denormals are flushed to zero from
        here on, or no longer), ``exported`` (an instruction on memory that somebody else may look
        at, which runs at once), ``kernel`` (a kernel of the device's vendor is launched after it:
        nobody waits), ``stream`` (an instruction of another stream uses a tensor of the program,
        where streams have queues of their own), ``step`` (an optimizer has taken a step).

    On NVIDIA's GPUs, of all of them since the process began, which nothing resets:
        ``kernels.compiled``, ``kernels.failed``: that were compiled while the program ran, and that
        could not be: then slower ones compute the same.
        ``kernels.found``: that an earlier process had compiled (``HOLOGRAM_CACHE_DIR``).
        ``kernels.discarded``: files of such kernels that were damaged or could not be loaded.
        ``replays.made``, ``replays.launched``, ``replays.updated``, ``replays.failed``: programs
        that became CUDA graphs, launches of these, kernels whose arguments were set before, and
        what the driver refused: then kernels are launched one by one.
        ``groups.emitted``, ``groups.pieces``, ``groups.cold``, ``groups.cpu``, ``groups.moves``:
        groups of instructions that ran by kernels of their own, by one for each instruction, by
        slower ones, on the CPU, and as copies.

    Delegated calls are counted by :func:`fallback_report`.

    Returns:
        a dictionary that shows itself as a table, empty if the device has not been used yet.

    Raises:
        RuntimeError: there is no device of that index.
    """
    if not is_initialized():
        return Statistics()
    return Statistics(_C.stream_stats(device_index(device)))


def reset_stream_stats(device: Device = None) -> None:
    """Sets the counts of :func:`stream_stats` to zero; ``plan_bytes`` is none.

    Raises:
        RuntimeError: there is no device of that index.
    """
    if is_initialized():
        _C.reset_stream_stats(device_index(device))


def is_eager() -> bool:
    """Returns whether every operation is executed at once, see :func:`eager`."""
    return not _C.recording()


def float_contraction() -> bool:
    """Returns whether products and sums may be rounded once, see :func:`set_float_contraction`."""
    return _C.contracting()


def set_float_contraction(on: bool) -> None:
    """Allows, or forbids again, that ``a * b + c``, ``a * b - c`` and ``c - a * b`` round once.

    Without it, which is the default, a fused program has the bits of its operations run one by
    one. With it a product that only a sum or difference of the same program needs is not rounded
    on its own, in float32 and float64: somewhat faster and more accurate. The bits then depend on
    what was recorded together, but not on the processor or the number of threads. Operations in
    bfloat16 and float16 are rounded one by one, with one exception: on NVIDIA's GPUs a
    ``gelu(approximate="tanh")`` that alone reads the result of a matrix product (also of ``linear``
    with its bias) is computed by cublasLt together with it, from the sums in float32. It holds for
    all threads and devices; what has been recorded before is executed first.

    Raises:
        TypeError: ``on`` is no bool.
    """
    if not isinstance(on, bool):
        raise TypeError(f"expected True or False, got {on!r}")
    if is_initialized():
        for index in range(_C.device_count()):
            _C.flush(index)
    _C.set_contracting(on)


@contextmanager
def eager() -> Iterator[None]:
    """Within it every operation is executed at once, by the same kernels and to the same bits.

    For debugging, in all threads of the process. ``HOLOGRAM_EAGER=1`` does it for a whole process.
    """
    before = _C.recording()
    _C.set_recording(False)
    try:
        if is_initialized():
            for index in range(_C.device_count()):
                _C.flush(index)
        yield
    finally:
        _C.set_recording(before)


def flush_before(operator: str, on: bool = True) -> None:
    """Has what is recorded of an operator's arguments executed before its kernel is called.

    A C++ kernel asks its arguments for their data pointers, and must not find memory there that is
    still to be written. Operators that other libraries define are treated like this by themselves,
    from the moment they are defined; this is for the ones that are not - kernels that replace
    torch's own for the device - and, with ``on=False``, for operators that only call other
    operators, or call ``hologram::sync`` (``torch_hologram.h``) where they need it. It holds for
    the whole process.

    Args:
        operator: ``"namespace::name"``, with all its overloads, or ``"namespace::name.overload"``.
        on: whether to do so.

    Raises:
        ValueError: there is no such operator, or it takes no tensors.
    """
    _C.flush_before(operator, on)


def _synchronize_in(name: str) -> None:
    """Makes a method of a storage that uses the address run what is recorded of it first."""
    theirs = getattr(torch.UntypedStorage, name)

    @functools.wraps(theirs)
    def ours(self: torch.UntypedStorage, *arguments: Any, **options: Any) -> Any:
        if self.device.type == DEVICE_TYPE:
            _C.synchronize_storage(self)
        return theirs(self, *arguments, **options)

    setattr(torch.UntypedStorage, name, ours)


def _swap_bytes_of_copies() -> None:
    """Has ``UntypedStorage._byteswap`` work on a copy where the host cannot touch the memory."""
    theirs: Any = torch.UntypedStorage._byteswap

    @functools.wraps(theirs)
    def ours(self: torch.UntypedStorage, *arguments: Any) -> None:
        if self.device.type != DEVICE_TYPE or _C.is_host_addressable(self.device.index):
            theirs(self, *arguments)
        else:
            copy = self.cpu()
            theirs(copy, *arguments)
            self.copy_(copy)

    setattr(torch.UntypedStorage, "_byteswap", ours)  # noqa: B010


def register() -> None:
    """Heeds ``HOLOGRAM_EAGER`` and covers the methods of storages that use their address.

    Those of tensors the extension has covered.
    """
    if os.environ.get("HOLOGRAM_EAGER") == "1":  # without asking which devices there are
        _C.set_recording(False)
    for name in ("data_ptr", "_byteswap", "_write_file", "_set_from_file"):
        _synchronize_in(name)
    _swap_bytes_of_copies()
