"""The module database (`module_db`) on the device, against the same modules on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db, modules
from torch.testing._internal.common_utils import TestCase

from .module_phases import PHASES
from .units import dtype_name, instantiate, wanted_dtypes
from .verdict import Key, conclude


class module_units(modules):
    """`@modules` without upstream's skips; see units.units. `infos` are the entries to run."""

    def __init__(self, infos: list[ModuleInfo]) -> None:
        super().__init__(infos)
        self.infos = infos

    def dtypes_of(self, info: ModuleInfo) -> list[torch.dtype]:
        return wanted_dtypes(info.name, set(info.dtypes))

    def _parametrize_test(
        self, test: Callable, generic_cls: type, device_cls: type
    ) -> Iterator[tuple[Callable, str, dict[str, Any], Callable]]:
        every = [(info, dtype) for info in self.infos for dtype in self.dtypes_of(info)]
        for info, dtype in every:

            @wraps(test)
            def unit_test(*args: Any, **kwargs: Any) -> None:
                test(*args, **kwargs)

            arguments = {"module_info": info, "dtype": dtype}
            yield unit_test, info.formatted_name, arguments, lambda _: []


class TestModules(TestCase):
    def _run(self, phase: str, info: ModuleInfo, dtype: torch.dtype) -> None:
        key = Key("modules", info.name, dtype_name(dtype), phase)
        conclude(key, lambda device: PHASES[phase](self, info, dtype, device))

    @module_units(module_db)
    def test_forward(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("forward", module_info, dtype)

    @module_units(module_db)
    def test_noncontiguous(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("noncontiguous", module_info, dtype)

    @module_units(module_db)
    def test_backward(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("backward", module_info, dtype)

    @module_units(module_db)
    def test_state_dict(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("state_dict", module_info, dtype)

    @module_units([info for info in module_db if info.module_error_inputs_func])
    def test_errors(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("errors", module_info, dtype)


instantiate(TestModules, globals())
