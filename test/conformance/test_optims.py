"""The optimizer database (`optim_db`) on the device, against the same optimizers on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db, optims
from torch.testing._internal.common_utils import TestCase

from .optim_phases import PHASES
from .units import dtype_name, instantiate
from .verdict import Key, conclude


class optim_units(optims):
    """`@optims` without upstream's skips (see units.units), for the optimizers with the phase."""

    def __init__(self, phase: str) -> None:
        _, has = PHASES[phase]
        super().__init__([info for info in optim_db if has(info)])

    def _parametrize_test(
        self, test: Callable, generic_cls: type, device_cls: type
    ) -> Iterator[tuple[Callable, str, dict[str, Any], Callable]]:
        for info in self.optim_info_list:

            @wraps(test)
            def unit_test(*args: Any, **kwargs: Any) -> None:
                test(*args, **kwargs)

            arguments = {"optim_info": info, "dtype": torch.float32}
            yield unit_test, info.name, arguments, lambda _: []


class TestOptims(TestCase):
    def _run(self, phase: str, info: OptimizerInfo, dtype: torch.dtype) -> None:
        run, _ = PHASES[phase]
        key = Key("optims", info.name, dtype_name(dtype), phase)
        conclude(key, lambda device: run(self, info, dtype, device))

    @optim_units("forloop")
    def test_forloop(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self._run("forloop", optim_info, dtype)

    @optim_units("default")
    def test_default(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self._run("default", optim_info, dtype)

    @optim_units("foreach")
    def test_foreach(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self._run("foreach", optim_info, dtype)

    @optim_units("fused")
    def test_fused(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self._run("fused", optim_info, dtype)

    @optim_units("capturable")
    def test_capturable(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self._run("capturable", optim_info, dtype)

    @optim_units("capturable_foreach")
    def test_capturable_foreach(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        self._run("capturable_foreach", optim_info, dtype)

    @optim_units("differentiable")
    def test_differentiable(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        self._run("differentiable", optim_info, dtype)

    @optim_units("sparse")
    def test_sparse(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self._run("sparse", optim_info, dtype)

    @optim_units("state_dict")
    def test_state_dict(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self._run("state_dict", optim_info, dtype)


instantiate(TestOptims, globals())
