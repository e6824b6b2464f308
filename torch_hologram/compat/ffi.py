"""The functions of ``hologram_ffi`` on executors and buffers."""

from __future__ import annotations

import json as _json
import weakref
from typing import Any

import numpy as np

from torch_hologram import _build_info, ops
from torch_hologram.compat import handles
from torch_hologram.compat.handles import handle_of, object_of
from torch_hologram.executor import Buffer, Executor

# ---- executors ----


def new_executor() -> int:
    """Returns the handle of an executor on the default backend."""
    return new_executor_auto()


def new_executor_auto() -> int:
    """Returns the handle of an executor on the first of Metal, CUDA and CPU that is there."""
    return new_executor_with_backend("auto")


def new_executor_with_backend(name: str) -> int:
    """Returns the handle of an executor on a backend. Raises as :class:`Executor`."""
    return handle_of(Executor(name))


def executor_allocate_buffer(executor: int, n: int, dtype: str = "float32") -> int:
    """Returns the handle of a buffer of ``n`` zeros. Raises as :meth:`Executor.allocate`."""
    return handle_of(object_of(Executor, executor).allocate(n, dtype))


_boundary: weakref.WeakSet[Buffer] = weakref.WeakSet()


def executor_allocate_boundary_buffer(
    executor: int, class_: int, width: int, height: int, dtype: str = "float32"
) -> int:
    """Returns the handle of a buffer of zeros, of ``width * height`` bytes in a boundary class.

    See :meth:`Executor.allocate_boundary`.
    """
    buffer = object_of(Executor, executor).allocate_boundary(class_, width, height, dtype)
    _boundary.add(buffer)
    return handle_of(buffer)


def executor_backend(executor: int) -> str:
    """Returns ``"cpu"``, ``"cuda"`` or ``"metal"``."""
    return object_of(Executor, executor).backend


def executor_synchronize(executor: int) -> None:
    """Waits until all work is done."""
    object_of(Executor, executor).synchronize()


def executor_cleanup(executor: int) -> None:
    """Closes an executor and its buffers. Their handles, and their tensors', are forgotten."""
    handles.drop_executor(object_of(Executor, executor))


def get_version() -> str:
    """Returns the version of torch_hologram."""
    return _build_info.VERSION


def clear_all_registries() -> None:
    """Closes all executors and forgets every handle."""
    handles.clear()


# ---- what a buffer is ----


def buffer_length(buffer: int) -> int:
    """Returns the number of elements."""
    return object_of(Buffer, buffer).size


def buffer_is_empty(buffer: int) -> int:
    """Returns 1 for a buffer without elements, else 0."""
    return int(object_of(Buffer, buffer).size == 0)


def buffer_is_linear(buffer: int) -> int:
    """Returns 1 where :func:`buffer_pool` is ``"linear"``, else 0."""
    return int(buffer_pool(buffer) == "linear")


def buffer_is_boundary(buffer: int) -> int:
    """Returns 1 where :func:`buffer_pool` is ``"boundary"``, else 0."""
    return int(buffer_pool(buffer) == "boundary")


def buffer_pool(buffer: int) -> str:
    """Returns ``"boundary"`` for buffers of :func:`executor_allocate_boundary_buffer`.

    All others are ``"linear"``: a program gets what it asked for. That the device puts small
    buffers into the boundary region too, which :attr:`Buffer.pool` tells, is its own affair.
    """
    return "boundary" if object_of(Buffer, buffer) in _boundary else "linear"


def buffer_element_size(buffer: int) -> int:
    """Returns the bytes of one element."""
    return object_of(Buffer, buffer).dtype.itemsize


def buffer_size_bytes(buffer: int) -> int:
    """Returns the bytes of all elements."""
    return object_of(Buffer, buffer).nbytes


def buffer_class_index(buffer: int) -> int:
    """Returns the boundary class, 0 to 95, of a boundary buffer; 0 of a linear one."""
    found = object_of(Buffer, buffer)
    return (found.class_index or 0) if found in _boundary else 0


def buffer_cleanup(buffer: int) -> None:
    """Closes a buffer. Its handle is forgotten; tensors made of it keep the memory."""
    object_of(Buffer, buffer).close()
    handles.drop(buffer)


# ---- reading and writing ----


def _open(executor: int, buffer: int) -> Buffer:
    """The buffer, when the executor is there too."""
    object_of(Executor, executor)._check_open()
    return object_of(Buffer, buffer)


def buffer_copy_from_slice(executor: int, buffer: int, json: str) -> None:
    """Copies a JSON array of numbers in.

    Raises:
        TypeError: an element is no number that the dtype has.
        ValueError: ``json`` is no JSON array, or of another number of elements.
        OverflowError: an integer is out of the dtype's range.
    """
    _open(executor, buffer).from_numpy(_from_json("buffer_copy_from_slice", buffer, json))


def _from_json(function: str, buffer: int, text: str) -> np.ndarray[Any, Any]:
    dtype = object_of(Buffer, buffer).dtype
    return np.array(handles.numbers(function, text, dtype), dtype=dtype)


def buffer_to_vec(executor: int, buffer: int) -> str:
    """Returns the elements as a JSON array."""
    return _json.dumps(_open(executor, buffer).to_numpy().tolist())


def buffer_copy_to_slice(executor: int, buffer: int) -> str:
    """Returns the same as :func:`buffer_to_vec`."""
    return buffer_to_vec(executor, buffer)


def buffer_copy_from_bytes(executor: int, buffer: int, bytes: bytes) -> None:
    """Copies bytes in, as many as the buffer has. Raises as :meth:`Buffer.from_bytes`."""
    _open(executor, buffer).from_bytes(bytes)


def buffer_to_bytes(executor: int, buffer: int) -> bytes:
    """Returns the elements as bytes, in the byte order of the machine."""
    return _open(executor, buffer).to_bytes()


def buffer_as_ptr(executor: int, buffer: int) -> int:
    """Returns the address of the first element. See :meth:`Buffer.as_ptr`."""
    return _open(executor, buffer).as_ptr()


def buffer_as_mut_ptr(executor: int, buffer: int) -> int:
    """Returns the same as :func:`buffer_as_ptr`: the memory may be written."""
    return _open(executor, buffer).as_mut_ptr()


def buffer_fill(executor: int, buffer: int, value: float, n: int) -> None:
    """Gives the first ``n`` elements a value.

    Raises:
        TypeError: ``n`` is no integer, or ``value`` no number.
        ValueError: ``n`` is negative, or larger than the buffer.
        RuntimeError: the dtype cannot hold the value.
    """
    found = _open(executor, buffer)
    (front,) = _fronts("buffer_fill", executor, n, buffer=found)
    front.fill_(found._held(value))


def buffer_copy(executor: int, source: int, destination: int, n: int) -> None:
    """Copies the first ``n`` elements.

    Raises:
        TypeError: ``n`` is no integer, or the buffers have different dtypes.
        ValueError: ``n`` is negative, or larger than one of the buffers.
    """
    buffers = {"source": _open(executor, source), "destination": _open(executor, destination)}
    elements, copies = _fronts("buffer_copy", executor, n, **buffers)
    copies.copy_(elements)


def _fronts(function: str, executor: int, n: int, **buffers: Buffer) -> list[Any]:
    """The first ``n`` elements of buffers that all have the dtype of the first, as tensors."""
    dtype = next(iter(buffers.values()))._data().dtype
    pairs = list(buffers.items())
    return ops.checked(function, object_of(Executor, executor), dtype, pairs, n, "")


# ---- canonical bytes: their lowest bit is 0 ----


def buffer_copy_from_canonical_slice(executor: int, buffer: int, json: str) -> None:
    """Copies a JSON array in and makes its bytes canonical: their lowest bits become 0.

    Raises as :func:`buffer_copy_from_slice`.
    """
    found = _open(executor, buffer)
    array = _from_json("buffer_copy_from_canonical_slice", buffer, json)
    array.view(np.uint8)[...] &= 0xFE
    found.from_numpy(array)


def buffer_canonicalize_all(executor: int, buffer: int) -> None:
    """Sets the lowest bit of every byte to 0."""
    found = _open(executor, buffer)
    found.from_bytes((np.frombuffer(found.to_bytes(), np.uint8) & 0xFE).tobytes())


def buffer_verify_canonical(executor: int, buffer: int) -> int:
    """Returns 1 where the lowest bit of every byte is 0, else 0."""
    data = np.frombuffer(_open(executor, buffer).to_bytes(), np.uint8)
    return int(not (data & 1).any())
