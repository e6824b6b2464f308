"""Runs a function when a module of another package has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Loader(Loader):
    """The module's own loader, followed by the function."""

    def __init__(self, loader: Loader, action: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._action(module)


class _Finder(MetaPathFinder):
    """Waits for the first import of the module, then leaves."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Calls ``action(module)``: now if the module has been imported, or else when it is."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _Finder(name, action))
