"""The functions of ``hologram_ffi`` on tensors, which are views of buffers.

A function that takes the executor may make memory of its own, and then a buffer for it, whose
handle :func:`tensor_buffer` gives. The others return views of the same buffer. Dimensions and
indices may be negative, which counts from the end.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable
from dataclasses import replace

import torch

from torch_hologram import interop
from torch_hologram.compat.handles import Tensor, drop, handle_of, integers, object_of
from torch_hologram.executor import Buffer, Executor


def _view(tensor: int, make: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """The handle of a view of a tensor. torch's errors name the numbers."""
    found = object_of(Tensor, tensor)
    return handle_of(replace(found, view=make(found.view)))


def _made(executor: Executor, result: torch.Tensor) -> int:
    """The handle of a tensor with memory of its own."""
    data = result.contiguous()
    return _over(executor._buffer_over(data.view(-1)), data)


def _over(buffer: Buffer, view: torch.Tensor) -> int:
    """The handle of a view of an open buffer."""
    return handle_of(Tensor(buffer, view, int(buffer._data().storage_offset())))


def _open(executor: int) -> Executor:
    found = object_of(Executor, executor)
    found._check_open()
    return found


# ---- making them ----


def tensor_from_buffer(buffer: int, shape_json: str) -> int:
    """Returns a tensor over a whole buffer, row by row.

    Raises:
        ValueError: ``shape_json`` is no JSON array of sizes, or the buffer has another number of
            elements.
    """
    found = object_of(Buffer, buffer)
    shape = _sizes("tensor_from_buffer", "size", shape_json)
    count = math.prod(shape)
    if count != found.size:
        raise ValueError(
            f"tensor_from_buffer: the shape {shape} is of {count} elements, but the buffer has "
            f"{found.size}"
        )
    return _over(found, found._data().view(shape))


def tensor_from_buffer_with_strides(buffer: int, shape_json: str, strides_json: str) -> int:
    """Returns a tensor over a buffer with strides in elements.

    Raises:
        ValueError: one of the two is no JSON array of sizes, they differ in length, or an element
            of the tensor lies beyond the buffer.
    """
    name = "tensor_from_buffer_with_strides"
    found = object_of(Buffer, buffer)
    shape = _sizes(name, "size", shape_json)
    strides = _sizes(name, "stride", strides_json)
    if len(shape) != len(strides):
        raise ValueError(f"{name}: {len(strides)} strides {strides} for the shape {shape}")
    extent = _extent(shape, strides)
    if extent > found.size:
        raise ValueError(
            f"{name}: the shape {shape} with the strides {strides} reaches over {extent} elements, "
            f"but the buffer has {found.size}"
        )
    data = found._data()
    return _over(found, data.as_strided(shape, strides))


def _sizes(function: str, what: str, text: str) -> list[int]:
    sizes = integers(function, text)
    for size in sizes:
        if size < 0:
            raise ValueError(f"{function}: the {what} {size} in {sizes} is negative")
    return sizes


def _extent(shape: list[int], strides: list[int]) -> int:
    """Elements from the first to the last one of a strided tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def tensor_cleanup(tensor: int) -> None:
    """Forgets a tensor; its buffer stays."""
    object_of(Tensor, tensor)
    drop(tensor)


# ---- what they are ----


def tensor_shape(tensor: int) -> str:
    """Returns the sizes as a JSON array."""
    return json.dumps(list(object_of(Tensor, tensor).view.shape))


def tensor_strides(tensor: int) -> str:
    """Returns the strides, in elements, as a JSON array."""
    return json.dumps(list(object_of(Tensor, tensor).view.stride()))


def tensor_ndim(tensor: int) -> int:
    """Returns the number of dimensions."""
    return object_of(Tensor, tensor).view.dim()


def tensor_numel(tensor: int) -> int:
    """Returns the number of elements."""
    return object_of(Tensor, tensor).view.numel()


def tensor_offset(tensor: int) -> int:
    """Returns the place of the first element in the buffer, in elements."""
    found = object_of(Tensor, tensor)
    return int(found.view.storage_offset()) - found.origin


def tensor_is_contiguous(tensor: int) -> int:
    """Returns 1 where the elements lie row by row without gaps, else 0."""
    return int(object_of(Tensor, tensor).view.is_contiguous())


def tensor_buffer(tensor: int) -> int:
    """Returns the handle of the buffer that the tensor is a view of.

    Raises:
        ValueError: the buffer was cleaned up.
    """
    buffer = object_of(Tensor, tensor).buffer
    if buffer.closed:
        raise ValueError(f"the buffer of the tensor {tensor} was cleaned up")
    return handle_of(buffer)


# ---- others of them ----


def tensor_contiguous(executor: int, tensor: int) -> int:
    """Returns the tensor row by row: a view where it is so already, else a copy."""
    owner, found = _open(executor), object_of(Tensor, tensor)
    if found.view.is_contiguous():
        return handle_of(replace(found))
    return _made(owner, found.view)


def tensor_reshape(executor: int, tensor: int, shape_json: str) -> int:
    """Returns the tensor with other sizes: a view where strides can express it, else a copy.

    Raises:
        ValueError: ``shape_json`` is no JSON array, or of another number of elements. One size may
            be -1.
    """
    owner, found = _open(executor), object_of(Tensor, tensor)
    shape = integers("tensor_reshape", shape_json)
    try:
        result = found.view.reshape(shape)
    except RuntimeError as error:
        raise ValueError(f"tensor_reshape: {error}") from None
    if result.untyped_storage()._cdata == found.view.untyped_storage()._cdata:
        return handle_of(replace(found, view=result))
    return _made(owner, result)


def tensor_matmul(executor: int, a: int, b: int) -> int:
    """Returns ``a @ b`` with the shapes of :func:`torch.matmul`.

    Raises:
        RuntimeError: the shapes or dtypes do not go together.
    """
    owner = _open(executor)
    return _made(owner, torch.matmul(object_of(Tensor, a).view, object_of(Tensor, b).view))


def tensor_transpose(tensor: int) -> int:
    """Returns a view with the two dimensions exchanged.

    Raises:
        ValueError: there are not two.
    """
    shape = object_of(Tensor, tensor).view.shape
    if len(shape) != 2:
        raise ValueError(
            f"tensor_transpose takes two dimensions, not the shape {list(shape)}: "
            "tensor_permute exchanges others"
        )
    return _view(tensor, torch.Tensor.t)


def tensor_permute(tensor: int, dims_json: str) -> int:
    """Returns a view with the dimensions in another order.

    Raises:
        TypeError, ValueError: ``dims_json`` is no JSON array of integers.
        RuntimeError, IndexError: they are not the tensor's dimensions, each once.
    """
    dims = integers("tensor_permute", dims_json)
    return _view(tensor, lambda view: view.permute(dims))


def tensor_view_1d(tensor: int) -> int:
    """Returns a view of one dimension.

    Raises:
        ValueError: the tensor is not contiguous; see :func:`tensor_contiguous`.
    """
    view = object_of(Tensor, tensor).view
    if not view.is_contiguous():
        raise ValueError(
            f"tensor_view_1d: a tensor of shape {list(view.shape)} and strides "
            f"{list(view.stride())} is not contiguous: tensor_contiguous makes a copy that is"
        )
    return _view(tensor, lambda view: view.view(-1))


def tensor_select(tensor: int, dim: int, index: int) -> int:
    """Returns a view at one index of a dimension, which it has no more.

    Raises:
        IndexError: there is no such dimension or index.
    """
    return _view(tensor, lambda view: view.select(dim, index))


def tensor_narrow(tensor: int, dim: int, start: int, length: int) -> int:
    """Returns a view of ``length`` indices of a dimension, from ``start`` on.

    Raises:
        IndexError: there is no such dimension.
        RuntimeError: there are no such indices.
    """
    return _view(tensor, lambda view: view.narrow(dim, start, length))


def tensor_slice(tensor: int, dim: int, start: int, end: int, step: int) -> int:
    """Returns a view of every ``step``-th index of a dimension, from ``start`` to before ``end``.

    -1 is the default: the first index, the end of the dimension, a step of 1.

    Raises:
        IndexError: there is no such dimension.
        ValueError: ``start`` or ``end`` lies below -1 or beyond the dimension, or the step is 0.
    """
    view = object_of(Tensor, tensor).view
    size = view.size(dim)
    first = 0 if start == -1 else start
    last = size if end == -1 else end
    stride = 1 if step == -1 else step
    if not 0 <= first <= size or not 0 <= last <= size or stride < 1:
        raise ValueError(
            f"tensor_slice: start {start}, end {end} and step {step} are no part of a dimension of "
            f"{size} elements"
        )
    index = [slice(None)] * (dim % view.dim()) + [slice(first, last, stride)]
    return _view(tensor, lambda view: view[tuple(index)])


# ---- broadcasting ----


def tensor_is_broadcast_compatible_with(a: int, b: int) -> int:
    """Returns 1 where the shapes of two tensors broadcast, else 0."""
    try:
        torch.broadcast_shapes(object_of(Tensor, a).view.shape, object_of(Tensor, b).view.shape)
    except RuntimeError:
        return 0
    return 1


def tensor_broadcast_shapes(a_json: str, b_json: str) -> str:
    """Returns the shape to which two shapes broadcast, all of them JSON arrays.

    Raises:
        TypeError, ValueError: one is no JSON array of sizes, or they do not broadcast.
    """
    a, b = (_sizes("tensor_broadcast_shapes", "size", text) for text in (a_json, b_json))
    try:
        return json.dumps(list(torch.broadcast_shapes(a, b)))
    except RuntimeError:
        raise ValueError(f"the shapes {a} and {b} do not broadcast") from None


# ---- DLPack ----

_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype = ctypes.c_int
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# A capsule keeps the address of its name.
_UNUSED, _USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")


def tensor_to_dlpack(executor: int, tensor: int) -> int:
    """Returns the address of a ``DLManagedTensor`` that shares the tensor's memory.

    What is recorded of the memory has run. The caller owns it: who consumes it calls its deleter,
    as :func:`tensor_from_dlpack_capsule` and the consumers of a capsule ``"dltensor"`` do. Until
    then it keeps the memory.
    """
    owner, found = _open(executor), object_of(Tensor, tensor)
    capsule = owner.tensor_to_dlpack(found.view)
    address = interop.capsule_pointer(capsule, _UNUSED)
    _set_name(capsule, _USED)  # its destructor would delete what is given away here
    return int(address)


def tensor_dlpack_device_type(executor: int) -> int:
    """Returns DLPack's type of the device where tensors are: 1, the CPU, on the CPU backend."""
    return int(torch.empty(0, device=_open(executor).device).__dlpack_device__()[0])


def tensor_dlpack_device_id(executor: int) -> int:
    """Returns DLPack's number of the device where tensors are."""
    return int(torch.empty(0, device=_open(executor).device).__dlpack_device__()[1])


def tensor_from_dlpack_capsule(executor: int, address: int) -> str:
    """Returns handles of a tensor and a buffer over the memory of a ``DLManagedTensor``.

    It is used up: its deleter is called when the memory is no longer needed. A ``DLManagedTensor``
    can be used once, and an address that is none ends the process.

    Returns:
        a JSON object with ``tensor_handle`` and ``buffer_handle``.

    Raises:
        TypeError: ``address`` is no integer, or NumPy has no such dtype.
        ValueError: the address is 0 or negative, or the memory cannot be shared.
    """
    owner = _open(executor)
    if isinstance(address, bool) or not isinstance(address, int):
        raise TypeError(f"an address is an integer, not {type(address).__name__}")
    if address <= 0:
        raise ValueError(f"{address} is not the address of a DLManagedTensor")
    capsule = _new_capsule(address, _UNUSED, None)
    view = interop.from_dlpack(capsule, device=owner.device)
    shape, strides = list(view.shape), list(view.stride())
    memory = view.as_strided([_extent(shape, strides)], [1])
    buffer = owner._buffer_over(memory)
    return json.dumps({"tensor_handle": _over(buffer, view), "buffer_handle": handle_of(buffer)})
