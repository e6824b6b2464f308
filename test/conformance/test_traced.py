"""Every module of torch.nn under torch.compile, torch.export, make_fx and torch.func."""

from __future__ import annotations

import inspect
import zlib

import torch
from torch.testing._internal.common_modules import ModuleInfo
from torch.testing._internal.common_utils import TestCase

from . import config
from .more_modules import EVERY_MODULE, LEFT_OUT
from .test_modules import module_units
from .trace_phases import PHASES
from .units import dtype_name, instantiate
from .verdict import Key, conclude

# The modules that a quick run takes through every tool: those that reach kernels of the device
# which torch has for no other, or that draw random numbers. Each of the others meets one in ten.
ALWAYS = {
    "nn.Conv2d",
    "nn.ConvTranspose2d",
    "nn.Dropout",
    "nn.GRU",
    "nn.LSTM",
    "nn.LSTMCell",
    "nn.MultiheadAttention",
    "nn.TransformerEncoderLayer",
    "nn.TransformerDecoderLayer",
}


def wanted(phase: str) -> list[ModuleInfo]:
    """The modules that a run takes through the tool."""

    def runs(info: ModuleInfo) -> bool:
        if config.FULL or info.name in ALWAYS:
            return True
        return zlib.crc32(f"{phase} {info.name}".encode()) % 10 == 0

    return [info for info in EVERY_MODULE if runs(info)]


class quick_units(module_units):
    """`@module_units` in float32 alone: tools see dtypes, but compute nothing themselves."""

    def dtypes_of(self, info: ModuleInfo) -> list[torch.dtype]:
        return [torch.float32]


class TestTraced(TestCase):
    def _run(self, phase: str, info: ModuleInfo, dtype: torch.dtype) -> None:
        key = Key("traced", info.name, dtype_name(dtype), phase)
        conclude(key, lambda device: PHASES[phase](self, info, dtype, device))

    @quick_units(wanted("compile"))
    def test_compile(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("compile", module_info, dtype)

    @quick_units(wanted("export"))
    def test_export(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("export", module_info, dtype)

    @quick_units(wanted("make_fx_real"))
    def test_make_fx_real(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("make_fx_real", module_info, dtype)

    @quick_units(wanted("make_fx_fake"))
    def test_make_fx_fake(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("make_fx_fake", module_info, dtype)

    @quick_units(wanted("make_fx_symbolic"))
    def test_make_fx_symbolic(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo
    ) -> None:
        self._run("make_fx_symbolic", module_info, dtype)

    @quick_units(wanted("func_grad"))
    def test_func_grad(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("func_grad", module_info, dtype)

    @quick_units(wanted("func_vmap"))
    def test_func_vmap(self, device: str, dtype: torch.dtype, module_info: ModuleInfo) -> None:
        self._run("func_vmap", module_info, dtype)


def test_every_module_of_torch_nn_is_here() -> None:
    def is_module(value: object) -> bool:
        return inspect.isclass(value) and issubclass(value, torch.nn.Module)

    every = {value for value in vars(torch.nn).values() if is_module(value)}
    here = {info.module_cls for info in EVERY_MODULE}
    assert every - here == set(LEFT_OUT)
    assert len(here) == len(EVERY_MODULE)


instantiate(TestTraced, globals())
