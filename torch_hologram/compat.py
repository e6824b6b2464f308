"""The modules ``hologram_ffi``, ``hologram`` and ``hologram_torch``, for programs that import them.

After :func:`install`:

- ``hologram_ffi`` is functions on integer handles: executors and buffers are numbers, elements
  travel as JSON, bytes or addresses;
- ``hologram`` has ``Executor``, ``Buffer``, ``ops`` and ``backend``;
- ``hologram_torch`` has ``functional``, ``nn``, ``tensor_to_buffer`` and ``buffer_to_tensor``.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from torch_hologram import backend, executor, functional, nn, ops
from torch_hologram.executor import Buffer, Executor

__all__ = ["install", "uninstall"]

_T = TypeVar("_T", Executor, Buffer)

_handles = itertools.count(1)
_objects: dict[int, Executor | Buffer] = {}


def _new_handle(thing: Executor | Buffer) -> int:
    handle = next(_handles)
    _objects[handle] = thing
    return handle


def _object(kind: type[_T], handle: int) -> _T:
    found = _objects.get(handle)
    if not isinstance(found, kind):
        name = kind.__name__.lower()
        if isinstance(handle, bool) or not isinstance(handle, int):
            raise TypeError(f"{name} handles are integers, not {type(handle).__name__}")
        raise ValueError(f"no {name} has the handle {handle}: it was cleaned up or never given out")
    return found


# ---- executors ----


def new_executor() -> int:
    """Returns the handle of an executor on the default backend."""
    return new_executor_auto()


def new_executor_auto() -> int:
    """Returns the handle of an executor on the first of Metal, CUDA and CPU that is there."""
    return new_executor_with_backend("auto")


def new_executor_with_backend(backend: str) -> int:
    """Returns the handle of an executor on a backend. Raises as :class:`Executor`."""
    return _new_handle(Executor(backend))


def executor_allocate_buffer(handle: int, length: int, dtype: str = "float32") -> int:
    """Returns the handle of a buffer of zeros. Raises as :meth:`Executor.allocate`."""
    return _new_handle(_object(Executor, handle).allocate(length, dtype))


def executor_allocate_boundary_buffer(
    handle: int, cls: int, width: int, height: int, dtype: str = "float32"
) -> int:
    """Returns the handle of a buffer of zeros. See :meth:`Executor.allocate_boundary`."""
    return _new_handle(_object(Executor, handle).allocate_boundary(cls, width, height, dtype))


def executor_backend(handle: int) -> str:
    """Returns ``"cpu"``, ``"cuda"`` or ``"metal"``."""
    return _object(Executor, handle).backend


def executor_synchronize(handle: int) -> None:
    """Waits until all work is done."""
    _object(Executor, handle).synchronize()


def executor_cleanup(handle: int) -> None:
    """Closes an executor and its buffers. Their handles are good for nothing afterwards."""
    closed = _object(Executor, handle)
    closed.close()
    for other, thing in list(_objects.items()):
        if thing is closed or (isinstance(thing, Buffer) and thing.executor is closed):
            del _objects[other]


# ---- buffers ----


def buffer_length(handle: int) -> int:
    """Returns the number of elements."""
    return _object(Buffer, handle).size


def buffer_copy_from_slice(handle: int, values: str) -> None:
    """Copies a JSON array of numbers in.

    Raises:
        TypeError: an element is no number that the dtype has.
        ValueError: ``values`` is no JSON array, or of another number of elements.
        OverflowError: an integer is out of the dtype's range.
    """
    buffer = _object(Buffer, handle)
    numbers = json.loads(values)
    if not isinstance(numbers, list):
        raise ValueError(f"expected a JSON array, got {type(numbers).__name__}")
    by_kind: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}}
    if wrong := set(map(type, numbers)) - by_kind.get(buffer.dtype.kind, {int, float}):
        kinds = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise TypeError(f"a buffer of {buffer.dtype} takes no {kinds} from JSON")
    buffer.from_numpy(np.array(numbers, dtype=buffer.dtype))


def buffer_to_vec(handle: int) -> str:
    """Returns the elements as a JSON array."""
    return json.dumps(_object(Buffer, handle).to_numpy().tolist())


def buffer_copy_from_bytes(handle: int, data: bytes | bytearray | memoryview) -> None:
    """See :meth:`Buffer.from_bytes`."""
    _object(Buffer, handle).from_bytes(data)


def buffer_to_bytes(handle: int) -> bytes:
    """See :meth:`Buffer.to_bytes`."""
    return _object(Buffer, handle).to_bytes()


def buffer_as_ptr(handle: int) -> int:
    """See :meth:`Buffer.as_ptr`."""
    return _object(Buffer, handle).as_ptr()


def buffer_as_mut_ptr(handle: int) -> int:
    """See :meth:`Buffer.as_mut_ptr`."""
    return _object(Buffer, handle).as_mut_ptr()


def buffer_fill(handle: int, value: float) -> None:
    """See :meth:`Buffer.fill`."""
    _object(Buffer, handle).fill(value)


def buffer_copy(source: int, destination: int) -> None:
    """See :meth:`Buffer.copy_to`."""
    _object(Buffer, source).copy_to(_object(Buffer, destination))


def buffer_cleanup(handle: int) -> None:
    """Closes a buffer. Its handle is good for nothing afterwards."""
    _object(Buffer, handle).close()
    del _objects[handle]


def _of_handles(name: str) -> Callable[..., float | None]:
    operation: Callable[..., float | None] = getattr(ops, name)
    buffers = ops.BUFFERS[name]

    @functools.wraps(operation)
    def call(executor: int, *operands: Any, **options: Any) -> float | None:
        return operation(
            _object(Executor, executor),
            *(_object(Buffer, handle) for handle in operands[:buffers]),
            *operands[buffers:],
            **options,
        )

    return call


# ---- the modules ----


def _contents() -> dict[str, dict[str, Any]]:
    """What each module has."""
    ours = (
        new_executor,
        new_executor_auto,
        new_executor_with_backend,
        executor_allocate_buffer,
        executor_allocate_boundary_buffer,
        executor_backend,
        executor_synchronize,
        executor_cleanup,
        buffer_length,
        buffer_copy_from_slice,
        buffer_to_vec,
        buffer_copy_from_bytes,
        buffer_to_bytes,
        buffer_as_ptr,
        buffer_as_mut_ptr,
        buffer_fill,
        buffer_copy,
        buffer_cleanup,
        backend.is_cuda_available,
        backend.is_metal_available,
    )
    ffi: dict[str, Any] = {function.__name__: function for function in ours}
    for name in ops.BUFFERS:
        ffi[name if name.endswith("_i32") else f"{name}_f32"] = _of_handles(name)
    backends = {name: getattr(backend, name) for name in backend.__all__}
    sdk = {"Buffer": Buffer, "Executor": Executor, "backend": backend, "ops": ops}
    torch_names = {name: getattr(functional, name) for name in functional.__all__}
    return {
        "hologram_ffi": ffi,
        "hologram": {**backends, **sdk, "executor": executor},
        "hologram_torch": {**torch_names, "functional": functional, "nn": nn},
    }


_installed: dict[str, ModuleType] = {}


def install() -> None:
    """Makes ``hologram_ffi``, ``hologram`` and ``hologram_torch`` importable. May be called twice.

    Raises:
        ImportError: another module of one of these names has been imported; nothing is installed.
    """
    if _installed:
        return
    contents = _contents()
    for name in contents:
        if name in sys.modules:
            where = getattr(sys.modules[name], "__file__", None) or "built in"
            raise ImportError(
                f"torch_hologram.compat cannot install {name!r}: another module of that name has "
                f"been imported ({where})",
                name=name,
            )
    for name, names in contents.items():
        module = ModuleType(name, f"torch_hologram's {name}, see torch_hologram.compat.")
        module.__dict__.update(names, __all__=sorted(names), __path__=[])
        _installed[name] = module
        for inner, value in names.items():
            if isinstance(value, ModuleType):  # import hologram.ops
                _installed[f"{name}.{inner}"] = value
    sys.modules.update(_installed)


def uninstall() -> None:
    """Takes the modules away again; what has been imported of them goes on working."""
    for name, module in _installed.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _installed.clear()
