"""Copies sample inputs to a device so that everything but the device stays the same.

`Tensor.to` makes contiguous what was an expanded or overlapping view and separates tensors that
share memory. The suite compares strides, views and writes through aliases with those of the CPU, so
here storages are copied, byte for byte, and tensors are rebuilt over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.testing._internal.common_utils import noncontiguous_like

_exact_of: torch.dtype | None = None  # what is computed in float64 instead, see in_float64


@contextmanager
def in_float64(dtype: torch.dtype) -> Iterator[None]:
    """Units of `dtype` compute in float64: inputs, parameters and cotangents are converted."""
    global _exact_of
    _exact_of = dtype
    try:
        yield
    finally:
        _exact_of = None


def drawn_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which random numbers of `dtype` are drawn: the unit's."""
    return dtype if _exact_of is None or dtype is not torch.float64 else _exact_of


def computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if _exact_of is dtype else dtype


class Transfer:
    """Copies values to `device`; tensors that share a storage, or are one object, still do after.

    One instance serves one sample: its memory is what keeps the sharing.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self._storages: dict[int, torch.UntypedStorage] = {}
        # The source is kept alive with its copy, so that no other object can take over its id.
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, value: Any) -> Any:
        """`value` with its CPU tensors, CPU devices and CPU generators replaced, recursively."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device):
            return self.device if value.type == "cpu" else value
        if isinstance(value, str) and value == "cpu":
            return str(self.device)
        if isinstance(value, torch.Generator):
            return torch.Generator(device=self.device).manual_seed(value.initial_seed())
        if isinstance(value, dict):
            return {key: self(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self, value))
        if type(value) in (list, tuple, torch.Size):
            return type(value)(map(self, value))
        return value

    def _tensor(self, source: torch.Tensor) -> torch.Tensor:
        known = self._tensors.get(id(source))
        if known is not None:
            return known[1]
        if source.device.type == "meta":
            copy = source.detach()
        elif source.layout is torch.strided and not source.is_quantized and not source.is_nested:
            copy = self._strided(source)
        else:
            copy = source.detach().clone().to(self.device)
        if source.dtype is _exact_of:
            copy = copy.double()
        copy.requires_grad_(source.requires_grad)
        self._tensors[id(source)] = (source, copy)
        return copy

    def _strided(self, source: torch.Tensor) -> torch.Tensor:
        storage = source.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)
            # A copy even where the device is the CPU.
            raw = raw.clone() if self.device.type == "cpu" else raw.to(self.device)
            self._storages[key] = raw.untyped_storage()
        copy = torch.empty(0, dtype=source.dtype, device=self.device)
        copy.set_(self._storages[key], source.storage_offset(), source.size(), source.stride())
        # The bytes are those below the conj and neg bits: the bits are set, nothing is computed.
        if source.is_conj():
            copy = torch.conj(copy)
        if source.is_neg():
            copy = torch._neg_view(copy)
        return copy


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def map_tensors(function: Any, value: Any) -> Any:
    """`value` with `function` applied to every tensor, recursively."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if type(value) in (list, tuple):
        return type(value)(map_tensors(function, item) for item in value)
    return value


def noncontiguous(value: Any) -> Any:
    """`value` with every dense tensor replaced by an equal one with gaps between its elements."""

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return tensor
        return noncontiguous_like(tensor)

    return map_tensors(spread, value)
