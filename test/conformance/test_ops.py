"""The operator database (`op_db`) on the device, phase by phase, against torch on the CPU."""

from __future__ import annotations

import torch
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo

from .op_phases import PHASES
from .units import dtype_name, instantiate, units
from .verdict import Key, conclude


class TestOps(TestCase):
    def _run(self, phase: str, op: OpInfo, dtype: torch.dtype) -> None:
        key = Key("ops", op.full_name, dtype_name(dtype), phase)
        conclude(key, lambda device: PHASES[phase].run(self, op, dtype, device))

    @units(PHASES["forward"].dtypes)
    def test_forward(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("forward", op, dtype)

    @units(PHASES["noncontiguous"].dtypes)
    def test_noncontiguous(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("noncontiguous", op, dtype)

    @units(PHASES["out"].dtypes)
    def test_out(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("out", op, dtype)

    @units(PHASES["inplace"].dtypes)
    def test_inplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("inplace", op, dtype)

    @units(PHASES["backward"].dtypes)
    def test_backward(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("backward", op, dtype)

    @units(PHASES["forward_ad"].dtypes)
    def test_forward_ad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("forward_ad", op, dtype)

    @units(PHASES["sparse"].dtypes)
    def test_sparse(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("sparse", op, dtype)

    @units(PHASES["errors"].dtypes)
    def test_errors(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._run("errors", op, dtype)


instantiate(TestOps, globals())
