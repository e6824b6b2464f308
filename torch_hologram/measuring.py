"""Measuring what a program costs; see docs/measuring.md."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from torch_hologram import _C
from torch_hologram._device import is_initialized, lazy_init

if TYPE_CHECKING:
    from torch.utils.benchmark import Measurement

__all__ = ["benchmark", "get_sync_debug_mode", "keep_results", "set_sync_debug_mode"]

_keepers = 0  # how many keep_results() there are
_keepers_lock = threading.Lock()


def _keep(more: int) -> None:
    global _keepers
    with _keepers_lock:
        _keepers += more
        _C.set_keeping(_keepers != 0)


@contextmanager
def keep_results() -> Iterator[None]:
    """Within it results that nobody reads are computed and stored as well, each time.

    A value that nobody can read any more is not computed outside it, and one that is computed
    twice is computed once. That is what a program wants and a measurement does not: a loop that
    drops or overwrites its result would measure nothing. Within, such a loop takes the passes that
    it would take if each result were read before the next. What is read by a later operation is
    not a result: chains are fused, and temporaries stay in registers, as always.

    It holds for all threads and devices; what is recorded is executed when it begins and when it
    ends. What nobody reads is stored to memory that is freed at once: as much as one turn of the
    loop needs.

    Raises:
        RuntimeError: at its end, where an operation recorded within it fails.
    """
    if is_initialized():
        _C.flush_all()
    _keep(+1)
    try:
        yield
        _C.flush_all()
    finally:
        _keep(-1)


def benchmark(fn: Callable[..., object], *args: Any, **kwargs: Any) -> Measurement:
    """Measures ``fn(*args, **kwargs)``, with all that it does really done.

    After each call what it has recorded is executed, while its result still lives, and within
    :func:`keep_results`. So each call costs what it costs in a program that reads the result. It
    runs on the threads that torch is set to, for at least 0.2 seconds after one call that is not
    counted.

    Args:
        fn: what to measure.
        *args, **kwargs: what it is called with.

    Returns:
        a ``torch.utils.benchmark.Measurement`` of ``Timer.blocked_autorange``; its times are in
        seconds a call: ``.median``, ``.mean``, ``.iqr``.

    Raises:
        TypeError: ``fn`` cannot be called.
        Exception: what ``fn`` raises.
    """
    from torch.utils.benchmark import Timer

    if not callable(fn):
        raise TypeError(f"expected a function to measure, got {type(fn).__name__}")
    lazy_init()
    name = getattr(fn, "__name__", type(fn).__name__)

    def call() -> None:
        result = fn(*args, **kwargs)
        _C.flush_all()
        del result

    with keep_results():
        call()
        timer = Timer(
            "call()",
            globals={"call": call},
            label=name,
            description="torch.hologram.benchmark",
            num_threads=torch.get_num_threads(),
        )
        return timer.blocked_autorange()


_SYNC_MODES = {"default": 0, "warn": 1, "error": 2}
_sync_mode = 0


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Warns, or raises, where a result that is needed makes a recorded program run.

    That is a flush of reason ``read`` (:func:`stream_stats`): ``item()``, ``print``, ``cpu()``, and
    every operator that is not recorded and needs a tensor that is. What asks for it -
    ``synchronize()``, ``flush()``, events - neither warns nor raises. It holds for all threads.

    Args:
        debug_mode: ``"default"`` or 0: nothing happens; ``"warn"`` or 1: a ``UserWarning``;
            ``"error"`` or 2: a ``RuntimeError``, and nothing is executed.

    Raises:
        RuntimeError: it is another value.
    """
    global _sync_mode
    mode = _SYNC_MODES.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    if mode not in (0, 1, 2):
        raise RuntimeError(
            f"invalid value of debug_mode: {debug_mode!r}, expected one of `default`, `warn`, "
            "`error`, or 0, 1, 2"
        )
    _C.set_sync_debug_mode(mode)
    _sync_mode = mode


def get_sync_debug_mode() -> int:
    """Returns 0, 1 or 2: whether a result that is needed is silent, warns or raises."""
    return _sync_mode
