"""Integers that stand for executors, buffers and tensors, and what travels with them as JSON."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torch_hologram.executor import Buffer, Executor

__all__ = [
    "Tensor",
    "clear",
    "drop",
    "drop_executor",
    "handle_of",
    "integers",
    "numbers",
    "object_of",
]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A view of a buffer."""

    buffer: Buffer
    view: torch.Tensor  # on the buffer's memory
    origin: int  # storage offset of the buffer's first element


_Kind = TypeVar("_Kind", Executor, Buffer, Tensor)
_NAMES = {Executor: "an executor", Buffer: "a buffer", Tensor: "a tensor"}

# From here on, so that a handle where a number of elements belongs is out of any buffer's range.
_next = itertools.count(1 << 32)
_objects: dict[int, Executor | Buffer | Tensor] = {}
_handles: dict[int, int] = {}  # by id() of the object


def handle_of(thing: Executor | Buffer | Tensor) -> int:
    """Returns the handle of an object, a new one where it has none."""
    handle = _handles.get(id(thing))
    if handle is None:
        handle = next(_next)
        _objects[handle] = thing
        _handles[id(thing)] = handle
    return handle


def object_of(kind: type[_Kind], handle: int) -> _Kind:
    """Returns what a handle stands for.

    Raises:
        TypeError: ``handle`` is no integer.
        ValueError: it is unknown, or stands for something of another kind.
    """
    name = _NAMES[kind].split()[1]
    if isinstance(handle, bool) or not isinstance(handle, int):
        raise TypeError(f"{name} handles are integers, not {type(handle).__name__}")
    found = _objects.get(handle)
    if isinstance(found, kind):
        return found
    if found is None:
        raise ValueError(f"no {name} has the handle {handle}: it was cleaned up or never given out")
    raise ValueError(f"no {name} has the handle {handle}: it is that of {_NAMES[type(found)]}")


def drop(handle: int) -> None:
    """Forgets a handle and the object it stands for."""
    del _handles[id(_objects.pop(handle))]


def drop_executor(executor: Executor) -> None:
    """Closes an executor, and forgets it with its buffers and their tensors."""
    executor.close()
    for handle, thing in list(_objects.items()):
        buffer = thing.buffer if isinstance(thing, Tensor) else thing
        if (buffer.executor if isinstance(buffer, Buffer) else buffer) is executor:
            drop(handle)


def clear() -> None:
    """Closes all executors and forgets every handle."""
    for thing in list(_objects.values()):
        if isinstance(thing, Executor):
            drop_executor(thing)
    for handle in list(_objects):  # of buffers whose executor has no handle
        drop(handle)


# ---- JSON ----


def _array(function: str, text: str) -> list[Any]:
    if not isinstance(text, str):
        raise TypeError(f"{function}: expected JSON in a string, got {type(text).__name__}")
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{function}: {_short(text)} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{function}: {_short(text)} is nested too deeply") from None
    if not isinstance(values, list):
        raise ValueError(f"{function}: expected a JSON array, got {_short(text)}")
    return values


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}..."


def _refuse(function: str, values: list[Any], allowed: set[type], what: str) -> None:
    for i, value in enumerate(values):
        if type(value) not in allowed:
            shown = _short(json.dumps(value))
            raise TypeError(f"{function}: element {i} is {shown}, where {what} belongs")


def numbers(function: str, text: str, dtype: Any) -> list[Any]:
    """Returns the elements of a JSON array for a buffer of a NumPy dtype.

    Raises:
        TypeError: ``text`` is no string, or an element no number that the dtype has.
        ValueError: it is no JSON array.
    """
    values = _array(function, text)
    by_kind: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}}
    allowed = by_kind.get(dtype.kind, {int, float})
    if not allowed.issuperset(map(type, values)):
        _refuse(function, values, allowed, f"a number of a buffer of {dtype}")
    return values


def integers(function: str, text: str) -> list[int]:
    """Returns the elements of a JSON array of integers.

    Raises:
        TypeError: ``text`` is no string, or an element no integer.
        ValueError: it is no JSON array.
    """
    values = _array(function, text)
    _refuse(function, values, {int}, "an integer")
    return values
