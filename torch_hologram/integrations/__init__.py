"""Packages whose lists of devices are closed, opened for this one from our side.

``lightning`` needs no call. ``accelerate`` and ``transformers`` choose a device by themselves, so
they are told to choose this one by an ``enable()``. Each module says what it changes in its
package, and raises ``RuntimeError`` where a version of the package does not have that.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from typing import Any

__all__ = ["accelerate", "lightning", "transformers"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _import_module(f"torch_hologram.integrations.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def require_attribute(owner: Any, name: str, package: str, tested: str) -> Any:
    """Returns an attribute of another package that is to be extended.

    Args:
        owner: a module or class of the package.
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
        raise RuntimeError(
            f"torch_hologram cannot open {package} {installed} for its device: {owner.__name__} "
            f"has no {name!r} (known to work: {package} {tested})"
        ) from None
