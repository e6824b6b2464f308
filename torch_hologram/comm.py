"""Copies between the devices of one process: what ``torch.nn.parallel`` is made of.

``torch.nn.DataParallel``, ``replicate``, ``scatter`` and ``gather`` work on device indices and end
in functions of ``torch._C`` that torch defines for CUDA only. Their counterparts for hologram
tensors are here, with CUDA's results and wording. The public names are those of ``torch.cuda.comm``
and, like those, are the functions of ``torch.nn.parallel.comm``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn.parallel.comm import (
    broadcast,
    broadcast_coalesced,
    gather,
    reduce_add,
    reduce_add_coalesced,
    scatter,
)

from torch_hologram._device import DEVICE_TYPE, device_index

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
]


def _device(index: int) -> torch.device:
    if index < 0:
        raise RuntimeError(f"Expected non-negative device index, but got {index}")
    return torch.device(DEVICE_TYPE, index)


def _check_on_device(tensors: Iterable[torch.Tensor], role: str) -> None:
    for position, tensor in enumerate(tensors):
        if tensor.device.type != DEVICE_TYPE:
            raise RuntimeError(
                f"Expected all {role} tensors to be {DEVICE_TYPE} tensors, but {role} tensor at "
                f"index {position} has device '{tensor.device}'"
            )


def _wrap_dim(dim: int, tensor: torch.Tensor) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-tensor.dim()}, "
            f"{tensor.dim() - 1}], but got {dim})"
        )
    return dim % tensor.dim()


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """Copies a tensor to each device; on its own device it is the tensor itself."""
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def _broadcast_out(
    tensor: torch.Tensor, out_tensors: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Copies a tensor to each output, which has its shape."""
    _check_on_device(out_tensors, "output")
    for position, out in enumerate(out_tensors):
        if out.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {position} has shape "
                f"{list(out.shape)}"
            )
    for out in out_tensors:
        out.copy_(tensor, non_blocking=True)
    return out_tensors


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """Copies tensors of ``devices[0]`` to the other devices.

    Nothing is gained by coalescing here, so ``buffer_size`` has no effect.

    Returns:
        a list for each device, without history; that of ``devices[0]`` has the tensors themselves.
    """
    root, *others = map(_device, devices)
    if any(tensor.device != root for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {root.index}")
    return [
        list(tensors),
        *([tensor.detach().to(device, copy=True) for tensor in tensors] for device in others),
    ]


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
) -> list[torch.Tensor]:
    """Cuts a tensor along ``dim`` and moves each chunk to its device, on its stream.

    Without ``chunk_sizes`` the chunks are those of :func:`torch.chunk`, which may be fewer than the
    devices. A chunk that stays where it is is a view of the tensor.
    """
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    if chunk_sizes is None:
        chunks = tensor.chunk(len(devices), dim)
    else:
        chunks = tensor.split_with_sizes(list(chunk_sizes), dim)
    moved = []
    for position, (chunk, index) in enumerate(zip(chunks, devices, strict=False)):
        device = _device(index)
        stream = streams[position] if streams is not None and position < len(streams) else None
        if stream is None or chunk.device == device:
            stream_context: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        elif stream.device_index != index:
            raise RuntimeError(
                f"Expected the device associated with the stream at index {position} (was "
                f"{stream.device_index}) to match the device supplied at that index (expected "
                f"{index})"
            )
        else:
            stream_context = stream
        with stream_context:
            moved.append(chunk.to(device, non_blocking=True))
    return moved


def _scatter_out(
    tensor: torch.Tensor,
    out_tensors: Sequence[torch.Tensor],
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
) -> Sequence[torch.Tensor]:
    """Cuts a tensor along ``dim`` into the outputs, which together have its size there."""
    if not out_tensors:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    _check_on_device(out_tensors, "output")
    dim = _wrap_dim(dim, tensor)
    for position, out in enumerate(out_tensors):
        if not _same_but_for(dim, out, tensor):
            raise RuntimeError(
                f"Output tensor at index {position} has incorrect shape: {list(out.shape)}. "
                f"Expected same shape except for scatter dim {dim} as the source tensor: "
                f"{list(tensor.shape)}"
            )
    sizes = [out.shape[dim] for out in out_tensors]
    if sum(sizes) != tensor.shape[dim]:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {tensor.shape[dim]}, but got total size "
            f"{sum(sizes)}"
        )
    for out, chunk in zip(out_tensors, tensor.split_with_sizes(sizes, dim), strict=True):
        out.copy_(chunk, non_blocking=True)
    return out_tensors


def _gathered_shape(tensors: Sequence[torch.Tensor], dim: int) -> tuple[int, list[int]]:
    """Returns ``dim`` counted from the front and the shape of the tensors joined along it."""
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    _check_on_device(tensors, "input")
    first = tensors[0]
    dim = _wrap_dim(dim, first)
    for position, tensor in enumerate(tensors):
        if tensor.dim() != first.dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {position} has {tensor.dim()} dimensions, (expected {first.dim()})"
            )
        if not _same_but_for(dim, tensor, first):
            expected = list(first.shape)
            expected[dim] = tensor.shape[dim]
            raise RuntimeError(
                f"Input tensor at index {position} has invalid shape {list(tensor.shape)}, but "
                f"expected {expected}"
            )
    shape = list(first.shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return dim, shape


def _same_but_for(dim: int, tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors differ in size along ``dim`` at most."""
    return tensor.dim() == other.dim() and all(
        axis == dim or tensor.shape[axis] == other.shape[axis] for axis in range(other.dim())
    )


def _memory_format(tensors: Sequence[torch.Tensor]) -> torch.memory_format:
    """Returns the format all tensors have, contiguous if they differ."""
    for form in (torch.channels_last, torch.channels_last_3d):
        dims = 4 if form == torch.channels_last else 5
        if all(t.dim() == dims and t.is_contiguous(memory_format=form) for t in tensors):
            return torch.contiguous_format if tensors[0].is_contiguous() else form
    return torch.contiguous_format


def _gather(
    tensors: Sequence[torch.Tensor], dim: int, destination_index: int | None
) -> torch.Tensor:
    """Joins tensors along ``dim`` on a device: the current one for ``None``, the CPU for -1."""
    dim, shape = _gathered_shape(tensors, dim)
    if destination_index == -1:
        device = torch.device("cpu")
    else:
        device = _device(device_index(destination_index))
    out = torch.empty(
        shape, dtype=tensors[0].dtype, device=device, memory_format=_memory_format(tensors)
    )
    return _join(tensors, out, dim)


def _gather_out(
    tensors: Sequence[torch.Tensor], out_tensor: torch.Tensor, dim: int
) -> torch.Tensor:
    """Joins tensors along ``dim`` in a tensor of the resulting shape, on any device."""
    dim, shape = _gathered_shape(tensors, dim)
    if list(out_tensor.shape) != shape:
        raise RuntimeError(
            f"Expected out tensor to have shape {shape}, but got {list(out_tensor.shape)}"
        )
    return _join(tensors, out_tensor, dim)


def _join(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    sizes = [tensor.shape[dim] for tensor in tensors]
    for part, tensor in zip(out.split_with_sizes(sizes, dim), tensors, strict=True):
        part.copy_(tensor, non_blocking=True)
    return out


def _concerns_us(*arguments: object) -> bool:
    """Returns whether a call is about hologram devices.

    It is if one of its tensors is on one. Indices alone do not tell a device type, so for CPU
    tensors it is the one that ``DataParallel`` takes.
    """
    types = set()
    for argument in arguments:
        tensors = argument if isinstance(argument, (list, tuple)) else (argument,)
        types |= {tensor.device.type for tensor in tensors if isinstance(tensor, torch.Tensor)}
    if DEVICE_TYPE in types:
        return True
    return types == {"cpu"} and torch._utils._get_available_device_type() == DEVICE_TYPE


def _take_over(ours: Callable[..., Any]) -> None:
    """Makes a function of torch._C serve hologram tensors too; torch's own serves the rest."""
    theirs = getattr(torch._C, ours.__name__, None)

    @functools.wraps(ours)
    def call(*arguments: Any, **options: Any) -> Any:
        if theirs is None or _concerns_us(*arguments, *options.values()):
            return ours(*arguments, **options)
        return theirs(*arguments, **options)

    setattr(torch._C, ours.__name__, call)


def _get_available_device_type() -> str | None:
    """Indices are those of hologram, the accelerator, also where there is CUDA."""
    module = getattr(torch, DEVICE_TYPE)
    return DEVICE_TYPE if module.is_available() else _available_device_type()


_available_device_type: Callable[[], str | None] = torch._utils._get_available_device_type


def register() -> None:
    """Teaches ``torch.nn.parallel`` hologram tensors."""
    # torch.nn.parallel.data_parallel is a function, which hides its module.
    for name in ("torch._utils", "torch.nn.parallel.data_parallel"):
        sys.modules[name]._get_available_device_type = (  # type: ignore[attr-defined]
            _get_available_device_type
        )
    for function in (
        _broadcast,
        _broadcast_out,
        _broadcast_coalesced,
        _scatter,
        _scatter_out,
        _gather,
        _gather_out,
    ):
        _take_over(function)

    # reduce_add() asks whether NCCL can sum the tensors; without NCCL the answer is a warning.
    nccl = torch.cuda.nccl
    nccl_is_available: Callable[..., bool] = nccl.is_available

    @functools.wraps(nccl_is_available)
    def is_available(tensors: Sequence[torch.Tensor]) -> bool:
        if any(tensor.device.type == DEVICE_TYPE for tensor in tensors):
            return False
        return nccl_is_available(tensors)

    nccl.is_available = is_available

    # parallel_apply() takes the indices of any device, but only torch.device objects of CUDA.
    module: Any = sys.modules["torch.nn.parallel.parallel_apply"]
    cuda_index: Callable[..., int] = module._get_device_index

    @functools.wraps(cuda_index)
    def index_of(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
        if isinstance(device, (str, torch.device)) and torch.device(device).type == DEVICE_TYPE:
            return device_index(device)
        return cuda_index(device, optional, allow_cpu)

    module._get_device_index = index_of
