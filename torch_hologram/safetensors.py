"""safetensors: ``load_file(path, device="hologram")`` and ``safe_open(..., device="hologram")``.

safetensors knows devices by a fixed list of names, and passes an integer on to torch, for which it
is an index of the current accelerator. So the name is turned into the index. Saving needs nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from torch_hologram._device import DEVICE_TYPE, device_index


def _translate(device: Any) -> Any:
    if isinstance(device, str) and device.split(":")[0] == DEVICE_TYPE:
        return device_index(device)
    if isinstance(device, torch.device) and device.type == DEVICE_TYPE:
        return device_index(device)
    return device


def _extend(safetensors: ModuleType) -> None:
    original = safetensors.safe_open

    @functools.wraps(original, updated=())
    def safe_open(filename: Any, framework: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        return original(filename, framework, device=_translate(device), **kwargs)

    for module in (safetensors, sys.modules.get("safetensors.torch")):
        if module is not None:
            module.safe_open = safe_open  # type: ignore[attr-defined]


class _Loader(Loader):
    """The package's own loader, followed by the extension."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        _extend(module)


class _Finder(MetaPathFinder):
    """Waits for the first ``import safetensors``, then leaves."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "safetensors":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def register() -> None:
    """Extends safetensors, now if it has been imported, or else when it is."""
    module = sys.modules.get("safetensors")
    if module is not None:
        _extend(module)
    else:
        sys.meta_path.insert(0, _Finder())
