"""The databases of the _foreach operators on the device, against torch on the CPU."""

from __future__ import annotations

import torch
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo

from .op_phases import FOREACH_PHASES as PHASES
from .units import FOREACH_DB, dtype_name, instantiate, units
from .verdict import Key, conclude


class TestForeach(TestCase):
    def _run(self, phase: str, op: OpInfo, dtype: torch.dtype) -> None:
        key = Key("foreach", op.full_name, dtype_name(dtype), phase)
        conclude(key, lambda device: PHASES[phase].run(self, op, dtype, device))

    @units(PHASES["forward"].dtypes, FOREACH_DB)
    def test_forward(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("forward", op, dtype)

    @units(PHASES["noncontiguous"].dtypes, FOREACH_DB)
    def test_noncontiguous(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("noncontiguous", op, dtype)

    @units(PHASES["inplace"].dtypes, FOREACH_DB)
    def test_inplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("inplace", op, dtype)

    @units(PHASES["backward"].dtypes, FOREACH_DB)
    def test_backward(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("backward", op, dtype)

    @units(PHASES["forward_ad"].dtypes, FOREACH_DB)
    def test_forward_ad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("forward_ad", op, dtype)


instantiate(TestForeach, globals())
