"""The modules ``hologram_ffi``, ``hologram`` and ``hologram_torch``, for programs that import them.

After :func:`install`:

- ``hologram_ffi`` is functions on integer handles: executors, buffers and tensors are numbers,
  elements travel as JSON, bytes or addresses;
- ``hologram`` has ``Executor``, ``Buffer``, ``ops`` and ``backend``;
- ``hologram_torch`` has ``functional``, ``nn``, ``utils``, ``autograd`` and ``device``.

Their submodules can be imported too, ``hologram.buffer`` for instance.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

import torch

from torch_hologram import _build_info, backend, devices, executor, functional, nn, ops
from torch_hologram._device import DEVICE_TYPE
from torch_hologram.compat import ffi, operations, tensors, torch_utils

__all__ = ["install", "uninstall"]


class _DeviceModule(ModuleType):
    """``hologram_torch.device``: what ``torch.hologram`` says of devices; a call makes one."""

    def __init__(self) -> None:
        super().__init__("hologram_torch.device", self.__doc__)
        names = {name: getattr(devices, name) for name in devices.__all__}
        names["get_backend"] = get_backend
        self.__dict__.update(names, __all__=sorted(names))

    def __call__(self, index: int = 0) -> torch.device:
        """Returns the device ``hologram:index``."""
        return torch.device(DEVICE_TYPE, index)


def get_backend() -> str:
    """Returns the name of the current device's backend."""
    return devices.get_device_properties().backend


def _contents() -> dict[str, dict[str, Any]]:
    """What each module has, the modules that lie within others included."""
    functions: list[Any] = [
        function
        for module in (ffi, tensors)
        for name, function in vars(module).items()
        if isinstance(function, FunctionType)
        and function.__module__ == module.__name__
        and not name.startswith("_")
    ]
    functions += [*operations.FUNCTIONS, backend.is_cuda_available, backend.is_metal_available]
    version = {"__version__": _build_info.VERSION}
    backends = {name: getattr(backend, name) for name in backend.__all__}
    sdk = {"Buffer": executor.Buffer, "Executor": executor.Executor}
    of_tensors = {name: getattr(functional, name) for name in functional.__all__}
    utils = {name: getattr(torch_utils, name) for name in torch_utils.__all__}
    return {
        "hologram_ffi": {function.__name__: function for function in functions} | version,
        "hologram": {**version, **backends, **sdk}
        | {"backend": backend, "executor": executor, "ops": ops}
        | {"buffer": _module("hologram.buffer", {"Buffer": executor.Buffer})},
        "hologram_torch": {**version, **of_tensors, **utils, **sdk}
        | {"BackendType": backend.BackendType, "get_backend": get_backend}
        | {"autograd": torch.autograd, "functional": functional, "nn": nn, "utils": torch_utils}
        | {"device": _DeviceModule()},
    }


def _module(name: str, names: dict[str, Any]) -> ModuleType:
    module = ModuleType(name, f"torch_hologram's {name}, see torch_hologram.compat.")
    public = sorted(inner for inner in names if not inner.startswith("_"))
    module.__dict__.update(names, __all__=public, __path__=[])
    return module


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
        taken = sys.modules.get(name)
        if taken is not None:
            where = getattr(taken, "__file__", None) or "built in"
            raise ImportError(
                f"torch_hologram.compat cannot install {name!r}: another module of that name has "
                f"been imported ({where})",
                name=name,
            )
    for name, names in contents.items():
        _installed[name] = _module(name, names)
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
