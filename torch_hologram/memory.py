"""Memory of the devices: statistics, limits, the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_hologram import _C, boundary
from torch_hologram._device import device_index, is_initialized, lazy_init
from torch_hologram.tables import Statistics

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = [
    "caching_allocator_alloc",
    "caching_allocator_delete",
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


def caching_allocator_alloc(size: int, device: Device = None) -> int:
    """Returns the address of a new block of the device's memory, for code that is not torch's.

    Args:
        size: bytes. 0 gives the address 0.
        device: the device, by default the current one.

    Raises:
        ValueError: ``size`` is negative.
        torch.OutOfMemoryError: it does not fit.
    """
    if size < 0:
        raise ValueError(f"size must be at least 0 bytes, not {size}")
    lazy_init()
    return _C.memory_allocate(device_index(device), size)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees a block of :func:`caching_allocator_alloc` or ``torch.hologram.boundary.allocate``.

    Memory of a tensor must not be freed in this way: the tensor does that.

    Raises:
        RuntimeError: no block in use starts at this address; it was freed already, for example.
            Nothing has changed.
    """
    if mem_ptr != 0:
        _C.memory_release(mem_ptr)


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
        with ``address``, ``size`` and ``requested_size`` (bytes) and ``state``:
        ``"active_allocated"``, ``"inactive"``, or ``"active_pending_free"`` where no tensor holds
        the block any more and recorded instructions have still to read it.
    """
    lazy_init()
    return [segment for index in range(_C.device_count()) for segment in _C.memory_snapshot(index)]


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
    return [
        f"hologram:{index} memory, {_format_bytes(stats['limit_bytes'])} at most",
        f"out of memory: {stats['num_ooms']} times, "
        f"cache emptied to satisfy a request: {stats['num_alloc_retries']} times",
        f"boundary pool: {pages - free} of {pages} pages in use, longest free run {longest} pages",
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
