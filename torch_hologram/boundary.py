"""The boundary pool: where small tensors lie, and how places in it are addressed.

Blocks of up to 12,288 bytes come from one region per device, of 96 *classes* of 48 *pages* of 256
bytes. A block is a run of consecutive pages inside one class. The same 96 classes partition the 256
values of a byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_hologram import _C
from torch_hologram._device import device_index, lazy_init

if TYPE_CHECKING:
    import torch

    from torch_hologram._device import Device

__all__ = [
    "CLASSES",
    "CLASS_BYTES",
    "PAGES",
    "PAGE_BYTES",
    "REGION_BYTES",
    "BoundaryAddress",
    "ClassUsage",
    "allocate",
    "boundary_address",
    "boundary_offset",
    "byte_to_class",
    "class_to_byte",
    "locate",
    "region",
    "usage",
]

CLASSES = 96
PAGES = 48  # in a class
PAGE_BYTES = 256
CLASS_BYTES = PAGES * PAGE_BYTES
REGION_BYTES = CLASSES * CLASS_BYTES


class BoundaryAddress(NamedTuple):
    """A place in the region: ``12288 * class_index + 256 * page + byte``."""

    class_index: int
    page: int
    byte: int


class ClassUsage(NamedTuple):
    """What is free in a class, in pages."""

    free_pages: int
    longest_free_run: int


def byte_to_class(byte: int) -> int:
    """Returns the class of a byte, ``24 * h + 8 * d + l``.

    ``h`` is bits 7 and 6; ``d`` is 1 where of bits 4 and 5 only bit 4 is set, 2 where only bit 5
    is, else 0; ``l`` is bits 3 to 1. Bit 0 does not matter.

    Raises:
        ValueError: ``byte`` is outside 0 to 255.
    """
    _check_range("byte", byte, 256)
    return _C.byte_to_class(byte)


def class_to_byte(class_index: int) -> int:
    """Returns the canonical byte of a class: bit 0 is 0 and bits 4 and 5 are not both 1.

    ``byte_to_class(class_to_byte(c)) == c`` for every class.

    Raises:
        ValueError: ``class_index`` is outside 0 to 95.
    """
    _check_range("class", class_index, CLASSES)
    return _C.class_to_byte(class_index)


def boundary_offset(class_index: int, page: int, byte: int = 0) -> int:
    """Returns the offset of a place from the start of the region, in bytes.

    Raises:
        ValueError: the class is outside 0 to 95, the page outside 0 to 47 or the byte outside
            0 to 255.
    """
    return _C.boundary_offset(class_index, page, byte)


def boundary_address(offset: int) -> BoundaryAddress:
    """Returns the place at an offset from the start of the region: :func:`boundary_offset` undone.

    Raises:
        ValueError: ``offset`` is outside 0 to 1179647.
    """
    _check_range("offset", offset, REGION_BYTES)
    return BoundaryAddress(*_C.boundary_address(offset))


def region(device: Device = None) -> int | None:
    """Returns the address of a device's region, by default of the current device's.

    ``None`` while the device has none: before its first small tensor, after
    ``torch.hologram.empty_cache()`` with no small tensor left, and where the memory limit leaves no
    room for it.
    """
    lazy_init()
    return _C.boundary_base(device_index(device)) or None


def locate(tensor: torch.Tensor) -> BoundaryAddress | None:
    """Returns where in the region of its device a tensor's first element lies.

    ``None`` where it does not lie there: the tensor is larger than a class, empty, foreign (see
    ``torch.hologram.memory_stats``), or the pool had no room for it.

    Raises:
        ValueError: the tensor is not on a hologram device.
    """
    start = region(tensor.device)
    if start is None or not 0 <= (offset := tensor.data_ptr() - start) < REGION_BYTES:
        return None
    return boundary_address(offset)


def usage(device: Device = None) -> tuple[ClassUsage, ...]:
    """Returns what is free in each of the 96 classes of a device, by default the current one."""
    lazy_init()
    return tuple(ClassUsage(*pair) for pair in _C.boundary_classes(device_index(device)))


def allocate(class_index: int, nbytes: int, device: Device = None) -> int:
    """Returns the address of a block in a class, for ``torch.hologram.caching_allocator_delete``.

    Args:
        class_index: 0 to 95.
        nbytes: 1 to 12,288.
        device: the device, by default the current one.

    Raises:
        ValueError: the class or the size is out of range, or the class has no run of free pages of
            that length (the message says what it has).
        torch.OutOfMemoryError: the device has no region and the limit leaves no room for it.
    """
    _check_range("class", class_index, CLASSES)
    if not 1 <= nbytes <= CLASS_BYTES:
        raise ValueError(
            f"a block of a boundary class has from 1 to {CLASS_BYTES} bytes, not {nbytes}"
        )
    lazy_init()
    return _C.boundary_allocate(device_index(device), class_index, nbytes)


def _check_range(what: str, value: int, count: int) -> None:
    if not 0 <= value < count:
        raise ValueError(
            f"boundary {what} {value} is out of range: it must be from 0 to {count - 1}"
        )
