"""Units of the operator database: which entries, dtypes and samples each phase runs."""

from __future__ import annotations

import contextlib
import random
import unittest
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy
import pytest
import torch
from about_torch import DTYPES
from torch.testing._internal.common_device_type import (
    device_type_test_bases,
    instantiate_device_type_tests,
    ops,
    precisionOverride,
    toleranceOverride,
)
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.testing._internal.opinfo.core import DecorateInfo, ErrorInput, OpInfo, SampleInput

from . import config
from .compare import Tolerance

T = TypeVar("T")

# The _foreach operators have a database of their own, of the same kind of entries.
FOREACH_DB: list[OpInfo] = [
    *foreach_unary_op_db,
    *foreach_binary_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_other_op_db,
]
OPS_BY_NAME: dict[str, OpInfo] = {op.full_name: op for op in [*op_db, *FOREACH_DB]}


def dtype_name(dtype: torch.dtype) -> str:
    """For example "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=1)
def _native_operators() -> frozenset[str]:
    """The names of the operators that the device serves itself, without overloads."""
    from torch_hologram import _C

    table = _C.operator_table()
    return frozenset(
        name.removeprefix("aten::").split(".")[0].removesuffix("_")
        for name, kind in table
        if kind == "native"
    )


def is_recorded(name: str) -> bool:
    """Whether the operator of the entry `name` is one that the device serves itself."""
    return name.rpartition(".")[2].removeprefix("_foreach_") in _native_operators()


def marks(name: str, dtype: torch.dtype) -> list[pytest.MarkDecorator]:
    """The mark of units that a device computes itself, in the dtypes that all devices have."""
    has = config.DEVICE == "hologram" and dtype in config.KERNEL_DTYPES and is_recorded(name)
    return [pytest.mark.recorded] if has else []


def wanted_dtypes(name: str, supported: set[torch.dtype]) -> list[torch.dtype]:
    """The dtypes out of `supported` in which this run tests the entry `name`, in a fixed order.

    By default float32 and one of the others of config.DEFAULT_DTYPES, which one by the entry's
    name, so that every dtype meets a part of all entries; in a full run all that are supported.
    One at least if the entry supports any.
    """
    if config.FULL:
        chosen = [dtype for dtype in DTYPES if dtype in supported]
        chosen += sorted(supported.difference(chosen), key=str)
    else:
        first, *others = config.DEFAULT_DTYPES
        chosen = [first] if first in supported else []
        others = [dtype for dtype in others if dtype in supported]
        if others:
            chosen.append(others[zlib.crc32(name.encode()) % len(others)])
    if not chosen:
        chosen = [dtype for dtype in config.FALLBACK_DTYPES if dtype in supported][:1]
    return chosen


def capped(name: str, items: list[T]) -> list[T]:
    """All `items` of the entry `name`, or as many as config.SAMPLE_CAPS says, spread evenly."""
    cap = config.SAMPLE_CAPS.get(name, len(items))
    if config.FULL or len(items) <= cap:
        return items
    last = len(items) - 1
    return [items[round(index * last / (cap - 1))] for index in range(cap)]


def _seeded(op: OpInfo, make: Callable[[], Iterable[T]]) -> list[T]:
    """What `make` generates for `op`, always with the same random numbers.

    `op.sample_inputs` and `op.error_inputs` would seed by the name of the calling test, found by
    inspecting the stack, which takes longer than most units.
    """
    seed = zlib.crc32(op.full_name.encode())
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002 (the generator that upstream draws from)
    return list(make())


# Tests run in the order of units, so one unit's phases share the samples.
@lru_cache(maxsize=4)
def samples(name: str, dtype: torch.dtype, requires_grad: bool) -> list[SampleInput]:
    """Samples of the entry `name` on the CPU. The phases share them: copy, never write to them."""
    op = OPS_BY_NAME[name]
    made = _seeded(op, lambda: op.sample_inputs_func(op, "cpu", dtype, requires_grad))
    return capped(name, made)


SPARSE_LAYOUTS = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)


def sparse_samples(op: OpInfo, dtype: torch.dtype) -> Iterator[tuple[torch.layout, SampleInput]]:
    """Samples with sparse inputs on the CPU, for every layout that the entry supports.

    They are upstream's where it has any, otherwise the entry's matrices, thinned out.
    """
    for layout in SPARSE_LAYOUTS:
        if not op.supports_sparse_layout(layout):
            continue
        with contextlib.suppress(NotImplementedError, unittest.SkipTest):
            made = _seeded(op, lambda layout=layout: op.sample_inputs_sparse(layout, "cpu", dtype))
            yield from ((layout, sample) for sample in made)
            continue
        for sample in samples(op.full_name, dtype, False):
            if isinstance(sample.input, torch.Tensor) and sample.input.dim() == 2:
                blocks = {"blocksize": (1, 1)} if layout in SPARSE_LAYOUTS[3:] else {}
                thin = sample.input.clone()
                thin[::2] = 0
                thin = thin.to_sparse(layout=layout, **blocks)
                yield layout, SampleInput(thin, args=sample.args, kwargs=sample.kwargs)


def error_inputs(op: OpInfo, device: str) -> list[ErrorInput]:
    """Upstream's wrong calls of `op` with arguments on `device`; empty if it has none."""
    if op.error_inputs_func is None:
        return []
    return _seeded(op, lambda: op.error_inputs_func(op, device))


def tolerance(op: OpInfo, dtype: torch.dtype, upstream_tests: Sequence[str]) -> Tolerance:
    """PyTorch's tolerance for `op`: the overrides its entry has for these tests of TestCommon.

    The loosest one counts where there are several; none leaves assertEqual's default for the dtype.
    """
    chosen = Tolerance(dtype)
    for decorator in op.decorators:
        parts = [decorator]
        if isinstance(decorator, DecorateInfo):
            active = any(
                decorator.is_active("TestCommon", name, "cpu", dtype, {}) for name in upstream_tests
            )
            parts = decorator.decorators if active else []
        for part in parts:
            if isinstance(part, toleranceOverride) and dtype in part.d:
                override = part.d[dtype]
                chosen.atol = max(chosen.atol or 0.0, override.atol)
                chosen.rtol = max(chosen.rtol or 0.0, override.rtol)
            elif isinstance(part, precisionOverride) and dtype in part.d:
                chosen.atol = max(chosen.atol or 0.0, part.d[dtype])
                chosen.rtol = chosen.rtol or 0.0
    return chosen


class units(ops):
    """`@ops` for conformance: the wanted dtypes of every entry, and none of upstream's skips.

    Upstream's decorators name tests and devices of its own; those that name neither (onlyCUDA,
    skipCPUIfNoLapack ...) would hide a unit without a trace. What may be left out is listed in
    expected_failures.py. `applies(op)` gives the dtypes in which the phase exists for the entry,
    empty if it does not.
    """

    def __init__(
        self, applies: Callable[[OpInfo], set[torch.dtype]], database: Sequence[OpInfo] = op_db
    ) -> None:
        super().__init__(database)
        self.applies = applies

    def _parametrize_test(
        self, test: Callable, generic_cls: type, device_cls: type
    ) -> Iterator[tuple[Callable, str, dict[str, Any], Callable]]:
        every = [
            (op, dtype)
            for op in self.op_list
            for dtype in wanted_dtypes(op.full_name, set(op.supported_dtypes("cpu")))
        ]
        for op, dtype in every:
            if dtype not in self.applies(op):
                continue

            @wraps(test)
            def unit_test(*args: Any, **kwargs: Any) -> None:
                test(*args, **kwargs)

            def decorators(_: Any, op: OpInfo = op, dtype: torch.dtype = dtype) -> list[Any]:
                return list(marks(op.full_name, dtype))

            yield unit_test, op.formatted_name, {"op": op, "dtype": dtype}, decorators


def instantiate(test_class: type, scope: dict[str, Any]) -> None:
    """Makes the tests of `test_class` for the device under test, in the module's `scope`.

    Raises RuntimeError where PyTorch's machinery finds no such device and would make none.
    """
    for base in device_type_test_bases:
        if base.device_type == "privateuse1":
            # Gives the base its real device name; otherwise that happens when the first test runs,
            # and the names of the classes depend on which file is imported first.
            base.setUpClass()
    instantiate_device_type_tests(test_class, scope, only_for=config.DEVICE)
    name = test_class.__name__
    if not any(other.startswith(name) and other != name for other in scope):
        raise RuntimeError(f"torch.testing has made no tests of {name} for {config.DEVICE!r}")
