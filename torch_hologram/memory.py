"""Memory of the devices: statistics, limits, the cache."""

from __future__ import annotations

import pickle
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch

from torch_hologram import _C, boundary
from torch_hologram._device import DEVICE_TYPE, device_index, is_initialized, lazy_init
from torch_hologram.streams import get_stream_from_external
from torch_hologram.tables import Statistics

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = [
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "device_memory_used",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "ipc_collect",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def memory_stats(device: Device = None) -> Statistics:
    """Returns the allocator's statistics of a device, by default the current one.

    The names are those of ``torch.cuda.memory_stats``. Each of ``allocation``, ``segment``,
    ``active`` (numbers) and ``allocated_bytes``, ``reserved_bytes``, ``requested_bytes``,
    ``active_bytes``, ``foreign_bytes`` (bytes) has the entries ``.all.current``, ``.all.peak``,
    ``.all.allocated`` and ``.all.freed``. Further entries are ``num_alloc_retries``, ``num_ooms``,
    ``num_device_alloc``, ``num_device_free`` and ``limit_bytes``.

    ``allocation``, ``segment``, ``active``, ``allocated_bytes``, ``active_bytes`` and
    ``reserved_bytes`` also have these entries by pool, with ``.boundary.`` (blocks up to 12 KiB)
    and ``.linear.`` (all others, and small ones the boundary pool has no room for) in place of
    ``.all.``.

    ``foreign_bytes`` is the part of the memory that another allocator owns: imported and shared
    memory, aliased CPU tensors. The allocated and reserved bytes include it.

    Where torch has kernels for the hardware, and its own allocator holds memory of the same device,
    ``vendor_allocated_bytes.all`` and ``vendor_reserved_bytes.all`` say how much. Nothing else
    includes it.

    Reading them runs nothing. Memory counts from the call that makes a tensor to the moment at
    which its last owner goes, whether what was recorded has run or not.

    Returns:
        a sorted dictionary that shows itself as a table, empty if the device has not been used yet.

    Raises:
        RuntimeError: there is no device of that index.
    """
    if not is_initialized():
        return Statistics()
    return Statistics(sorted(_C.memory_stats(device_index(device)).items()))


def _nested(flat: dict[str, int]) -> dict[str, Any]:
    """{"a.b": 1, "a.c": 2} as {"a": {"b": 1, "c": 2}}."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *folders, name = key.split(".")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return nested


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """Returns :func:`memory_stats` with a dictionary for each part of its names.

    ``["allocated_bytes"]["all"]["current"]`` is its ``"allocated_bytes.all.current"``.
    """
    return _nested(memory_stats(device))


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes tensors hold on a device, by default the current one."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Device = None) -> int:
    """Returns the most bytes tensors have held since :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes the allocator holds from the system, in use or cached."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Device = None) -> int:
    """Returns the most bytes the allocator has held since :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets every ``peak`` of :func:`memory_stats` to its ``current``."""
    lazy_init()
    _C.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets every ``allocated`` and ``freed`` of :func:`memory_stats` and the counters to zero."""
    lazy_init()
    _C.reset_accumulated_memory_stats(device_index(device))


def empty_cache() -> None:
    """Gives memory that no tensor holds back to the system, and drops plans, on every device."""
    if is_initialized():
        _C.empty_cache()


def caching_allocator_alloc(
    size: int, device: Device = None, stream: torch.Stream | int | None = None
) -> int:
    """Returns the address of a new block of the device's memory, for code that is not torch's.

    Args:
        size: bytes. 0 gives the address 0.
        device: the device, by default the current one.
        stream: the stream that will use it, or its handle, by default the current one. Memory is
            not tied to streams here: programs run in the order in which they were recorded.

    Raises:
        ValueError: ``size`` is negative, or the stream is another device's.
        RuntimeError: there is no such stream.
        TypeError: ``stream`` is something else.
        torch.OutOfMemoryError: it does not fit.
    """
    if size < 0:
        raise ValueError(f"size must be at least 0 bytes, not {size}")
    lazy_init()
    index = device_index(device)
    if isinstance(stream, int):
        get_stream_from_external(stream, index)
    elif isinstance(stream, torch.Stream):
        if stream.device != torch.device(DEVICE_TYPE, index):
            raise ValueError(f"expected a stream of {DEVICE_TYPE}:{index}, got {stream}")
    elif stream is not None:
        raise TypeError(
            "Invalid type for stream argument, must be `torch.hologram.Stream` or `int` "
            f"representing a pointer to an existing stream, but got: {stream!r}"
        )
    return _C.memory_allocate(index, size)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees a block of :func:`caching_allocator_alloc` or ``torch.hologram.boundary.allocate``.

    Memory of a tensor must not be freed in this way: the tensor does that.

    Raises:
        RuntimeError: no block in use starts at this address; it was freed already, for example.
            Nothing has changed.
    """
    if mem_ptr != 0:
        _C.memory_release(mem_ptr)


def device_memory_used(device: Device = None) -> int:
    """Returns the bytes of a device that are not free, whoever uses them."""
    free, total = mem_get_info(device)
    return total - free


def get_allocator_backend() -> str:
    """Returns ``"native"``: memory comes from the pools of this package."""
    return "native"


def ipc_collect() -> None:
    """Does nothing: memory that another process shared goes back when its last tensor does."""


def get_per_process_memory_fraction(device: Device = None) -> float:
    """Returns the part of the device's total memory that this process may hold, 0 to 1.

    1 unless :func:`set_per_process_memory_fraction` or ``HOLOGRAM_MEMORY_LIMIT`` set it.
    """
    lazy_init()
    return min(1.0, _C.memory_fraction(device_index(device)))


def host_memory_stats() -> Statistics:
    """Returns the statistics of pinned host memory, with torch.cuda's names.

    ``allocations``, ``allocated_bytes`` (held, in use or cached), ``active_requests`` and
    ``active_bytes`` (in use) have ``.current``, ``.peak``, ``.allocated`` and ``.freed``;
    ``host_alloc_time`` and ``host_free_time`` (microseconds) ``.total``, ``.max``, ``.min``,
    ``.count`` and ``.avg``; ``num_host_alloc`` and ``num_host_free`` count requests to the system.
    """

    def flat(prefix: str, value: Any) -> list[tuple[str, int]]:
        if not isinstance(value, dict):
            return [(prefix, value)]
        parts = (flat(f"{prefix}.{key}" if prefix else key, v) for key, v in value.items())
        return [row for rows in parts for row in rows]

    return Statistics(sorted(flat("", host_memory_stats_as_nested_dict())))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns :func:`host_memory_stats` with a dictionary for each part of its names."""
    return _C.host_memory_stats()


def reset_accumulated_host_memory_stats() -> None:
    """Sets every ``allocated`` and ``freed`` of :func:`host_memory_stats`, and counts, to zero."""
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Sets every ``peak`` of :func:`host_memory_stats` to its ``current``."""
    _C.reset_peak_host_memory_stats()


def _deprecated(name: str, replacement: str) -> None:
    warnings.warn(
        f"torch.hologram.{name} has been renamed to torch.hologram.{replacement}",
        FutureWarning,
        stacklevel=3,
    )


def memory_cached(device: Device = None) -> int:
    """Deprecated; see :func:`memory_reserved`."""
    _deprecated("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: Device = None) -> int:
    """Deprecated; see :func:`max_memory_reserved`."""
    _deprecated("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def reset_max_memory_allocated(device: Device = None) -> None:
    """Deprecated; see :func:`reset_peak_memory_stats`, which it calls."""
    _deprecated("reset_max_memory_allocated", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Device = None) -> None:
    """Deprecated; see :func:`reset_peak_memory_stats`, which it calls."""
    _deprecated("reset_max_memory_cached", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the bytes that are free and the bytes there are on a device, as (free, total)."""
    lazy_init()
    return _C.mem_get_info(device_index(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits what this process may hold on a device, by default the current one.

    Allocating more raises ``torch.OutOfMemoryError``.

    Args:
        fraction: of the device's total memory, 0 to 1.
        device: the device.

    Raises:
        TypeError: ``fraction`` is not a float.
        ValueError: ``fraction`` is outside 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError(
            f"Invalid type for fraction argument, must be `float`, but got: {fraction!r}"
        )
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    lazy_init()
    _C.set_memory_fraction(device_index(device), fraction)


def memory_snapshot() -> list[dict[str, Any]]:
    """Returns every segment the allocator holds from the system, on all devices.

    The entries are those of ``torch.cuda.memory_snapshot``, so that the tools of
    ``torch.cuda._memory_viz`` read ``{"segments": memory_snapshot()}``.

    Returns:
        dictionaries with ``device`` (index), ``address``, ``total_size``, ``allocated_size``,
        ``active_size`` and ``requested_size`` (bytes), ``segment_type`` (``"large"`` above 2 MiB,
        or ``"small"``), ``stream`` (0: any stream uses it), ``segment_pool_id``, ``is_expandable``,
        ``frames``, ``pool`` (``"boundary"`` or ``"linear"``) and ``blocks``, a list of dictionaries
        with ``address``, ``size`` and ``requested_size`` (bytes), ``state``
        (``"active_allocated"``, ``"inactive"``, or ``"active_pending_free"`` where no tensor holds
        the block any more and recorded instructions have still to read it) and ``frames``: where it
        was allocated, if ``torch.hologram.memory._record_memory_history`` was on.
    """
    lazy_init()
    return [segment for index in range(_C.device_count()) for segment in _C.memory_snapshot(index)]


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "python",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
) -> None:
    """Records where memory is allocated and freed, for :func:`_snapshot`.

    On all devices and threads. It takes a few microseconds an event, and some hundred bytes.

    Args:
        enabled: ``"all"``: events, and frames of the blocks that live; ``"state"``: the frames
            alone; ``None``: stops, and forgets what was recorded.
        context: which get frames: ``"state"`` (blocks that live), ``"alloc"`` (allocations, too),
            ``"all"`` (frees, too), ``None``.
        stacks: ``"python"``, or ``"all"`` for C++ frames, too, which take long to be named.
        max_entries: events kept of each device; the oldest are dropped.
        device: kept for torch.cuda's sake.
        clear_history: drop the events so far.

    Raises:
        ValueError: an argument is none of these words, or ``max_entries`` is negative.
    """
    if stacks not in ("python", "all"):
        raise ValueError(f"expected stacks to be 'python' or 'all', got {stacks!r}")
    if max_entries < 0:
        raise ValueError(f"expected max_entries to be at least 0, got {max_entries}")
    if enabled is not None:
        lazy_init()
    _C.record_memory_history(enabled, context, stacks == "all", max_entries, clear_history)


def _snapshot(device: Device = None) -> dict[str, Any]:
    """Returns what ``torch.cuda.memory._snapshot()`` returns, of all devices.

    ``segments`` is :func:`memory_snapshot`, ``device_traces`` a list of events for each device
    since :func:`_record_memory_history`: ``action`` (``"alloc"``, ``"free_requested"``,
    ``"free_completed"`` or ``"oom"``), ``addr``, ``size``, ``stream``, ``time_us``, ``frames``, and
    ``device_free`` of an ``"oom"``. A block is freed when its last tensor is; memory that a
    recorded program touches is used again after that has run.
    """
    segments = memory_snapshot()
    return {
        "segments": segments,
        "device_traces": [_C.memory_history(index) for index in range(_C.device_count())],
        "external_annotations": [],
        "allocator_settings": {},
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes :func:`_snapshot` to a file that https://pytorch.org/memory_viz shows."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


# Rows of memory_summary(): entry of memory_stats(), name, whether it is a number of bytes.
_SUMMARY = (
    ("allocated_bytes.all", "Allocated memory", True),
    ("allocated_bytes.boundary", "  boundary pool", True),
    ("allocated_bytes.linear", "  linear pool", True),
    ("foreign_bytes.all", "  foreign", True),
    ("reserved_bytes.all", "Reserved memory", True),
    ("reserved_bytes.boundary", "  boundary pool", True),
    ("reserved_bytes.linear", "  linear pool", True),
    ("foreign_bytes.all", "  foreign", True),
    ("requested_bytes.all", "Requested memory", True),
    ("allocation.all", "Allocations", False),
    ("allocation.boundary", "  boundary pool", False),
    ("allocation.linear", "  linear pool", False),
    ("segment.all", "Segments", False),
    ("segment.boundary", "  boundary pool", False),
    ("segment.linear", "  linear pool", False),
)
_SUMMARY_COLUMNS = {"Now": "current", "Peak": "peak", "Total": "allocated", "Freed": "freed"}


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns a table of the allocator's statistics of a device, by default the current one.

    Allocated is what tensors hold, reserved what is held from the system, in use or cached;
    requested is allocated before sizes were rounded up. The indented rows are parts of the one
    above them. Foreign memory is in use as long as it is held.

    Args:
        device: the device.
        abbreviated: only the rows for memory held by tensors and by the allocator.
    """
    index = device_index(device)
    stats = memory_stats(index)
    width = 23 + len(_SUMMARY_COLUMNS) * 14
    rule = "|" + "-" * (width - 2) + "|"
    lines = [rule, *(f"| {line:<{width - 4}} |" for line in _summary_head(index, stats)), rule]
    lines.append(f"| {'':<19} |" + "".join(f" {name:>11} |" for name in _SUMMARY_COLUMNS))
    for key, name, is_bytes in _SUMMARY[: 8 if abbreviated else None]:
        if not name.startswith(" "):
            lines.append(rule)
        form = _format_bytes if is_bytes else _format_count
        values = (stats.get(f"{key}.{column}", 0) for column in _SUMMARY_COLUMNS.values())
        lines.append(f"| {name:<19} |" + "".join(f" {form(value):>11} |" for value in values))
    lines.append(rule)
    return "\n".join(lines) + "\n"


def _summary_head(index: int, stats: Statistics) -> list[str]:
    if not stats:
        return [f"hologram:{index} memory, not used yet"]
    classes = boundary.usage(index)
    pages = boundary.CLASSES * boundary.PAGES
    free = sum(usage.free_pages for usage in classes)
    longest = max(usage.longest_free_run for usage in classes)
    vendors = []
    if "vendor_reserved_bytes.all.current" in stats:
        allocated, reserved = (
            _format_bytes(stats[f"vendor_{name}_bytes.all.current"])
            for name in ("allocated", "reserved")
        )
        vendors.append(f"torch's own allocator: {allocated} allocated, {reserved} reserved")
    return [
        f"hologram:{index} memory, {_format_bytes(stats['limit_bytes'])} at most",
        f"out of memory: {stats['num_ooms']} times, "
        f"cache emptied to satisfy a request: {stats['num_alloc_retries']} times",
        f"boundary pool: {pages - free} of {pages} pages in use, longest free run {longest} pages",
        *vendors,
    ]


def _format_bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _format_count(count: int) -> str:
    return f"{count:,}"
