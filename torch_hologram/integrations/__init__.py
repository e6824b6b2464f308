"""Packages whose lists of devices are closed, opened for this one from our side.

``lightning`` needs no call. ``accelerate`` and ``transformers`` choose a device by themselves, so
they are told to choose this one by an ``enable()``, until ``disable()`` puts everything back. Each
module says what it changes in its package, and raises ``RuntimeError`` where a version of the
package does not have that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial as _partial
from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from typing import Any

__all__ = ["accelerate", "lightning", "transformers"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _import_module(f"torch_hologram.integrations.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Changes:
    """What an ``enable()`` changes in other packages, so that its ``disable()`` can put it back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        """Whether something is changed."""
        return bool(self._undo)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute of a module or class, which has it now or inherits it."""
        if name in vars(owner):
            self.on_undo(setattr, owner, name, vars(owner)[name])
        else:
            self.on_undo(delattr, owner, name)
        setattr(owner, name, value)

    def on_undo(self, function: Callable[..., object], *arguments: Any) -> None:
        """Has a function called by :meth:`undo`."""
        self._undo.append(_partial(function, *arguments))

    def undo(self) -> None:
        """Puts everything back, the last change first."""
        while self._undo:
            self._undo.pop()()


def require_attribute(owner: Any, name: str, package: str, tested: str) -> Any:
    """Returns an attribute of another package that is to be extended.

    Args:
        owner: a module, class or object of the package.
        name: the attribute.
        package: the name the package is installed under.
        tested: the version of it that the extension was written for.

    Raises:
        RuntimeError: this version of the package has no such attribute.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        try:
            installed = _version(package)
        except _PackageNotFoundError:
            installed = "of an unknown version"
        its = getattr(owner, "__name__", type(owner).__name__)
        raise RuntimeError(
            f"torch_hologram cannot open {package} {installed} for its device: {its} has no "
            f"{name!r} (known to work: {package} {tested})"
        ) from None
