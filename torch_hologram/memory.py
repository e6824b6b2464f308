"""Memory of the devices: statistics, limits, the cache."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from torch_hologram import _C
from torch_hologram._device import device_index, is_initialized, lazy_init

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def memory_stats(device: Device = None) -> OrderedDict[str, int]:
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

    ``foreign_bytes`` is the part of the memory that another allocator owns: results of delegated
    operators, imported and shared memory. The allocated and reserved bytes include it.

    Returns:
        a sorted dictionary, empty if the device has not been used yet.

    Raises:
        RuntimeError: there is no device of that index.
    """
    if not is_initialized():
        return OrderedDict()
    return OrderedDict(sorted(_C.memory_stats(device_index(device)).items()))


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
    """Gives memory that no tensor holds back to the system, on every device."""
    if is_initialized():
        _C.empty_cache()


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

    Returns:
        dictionaries with ``device`` (index), ``address``, ``total_size`` and ``allocated_size``
        (bytes), ``pool`` (``"boundary"`` or ``"linear"``) and ``blocks``, a list of dictionaries
        with ``address``, ``size`` and ``requested_size`` (bytes) and ``state``
        (``"active_allocated"`` or ``"inactive"``).
    """
    lazy_init()
    return [segment for index in range(_C.device_count()) for segment in _C.memory_snapshot(index)]


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns a table of the allocator's statistics of a device, by default the current one.

    Args:
        device: the device.
        abbreviated: only the rows for memory held by tensors and by the allocator.
    """
    index = device_index(device)
    stats = memory_stats(index)
    metrics = [
        ("allocated_bytes.all", "Allocated memory", _format_bytes),
        ("reserved_bytes.all", "Reserved memory", _format_bytes),
        ("foreign_bytes.all", "  of it foreign", _format_bytes),
        ("allocated_bytes.boundary", "In boundary pool", _format_bytes),
        ("allocated_bytes.linear", "In linear pool", _format_bytes),
        ("requested_bytes.all", "Requested memory", _format_bytes),
        ("active_bytes.all", "Active memory", _format_bytes),
        ("allocation.all", "Allocations", _format_count),
        ("active.all", "Active allocations", _format_count),
        ("segment.all", "Segments", _format_count),
    ][: 3 if abbreviated else None]
    columns = {"Now": "current", "Peak": "peak", "Total": "allocated", "Freed": "freed"}

    width = 23 + len(columns) * 14
    rule = "|" + "-" * (width - 2) + "|"
    head = f"hologram:{index} memory, {_format_bytes(stats.get('limit_bytes', 0)).strip()} at most"
    events = f"out of memory: {stats.get('num_ooms', 0)} times, " + (
        f"cache emptied to satisfy a request: {stats.get('num_alloc_retries', 0)} times"
    )
    lines = [rule, f"| {head:<{width - 4}} |", f"| {events:<{width - 4}} |", rule]
    lines.append(f"| {'':<19} |" + "".join(f" {name:>11} |" for name in columns))
    lines.append(rule)
    for key, name, form in metrics:
        values = (stats.get(f"{key}.{column}", 0) for column in columns.values())
        lines.append(f"| {name:<19} |" + "".join(f" {form(value):>11} |" for value in values))
    lines.append(rule)
    return "\n".join(lines) + "\n"


def _format_bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _format_count(count: int) -> str:
    return f"{count:,}"
