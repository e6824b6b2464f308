"""Which torch this package runs with.

The extension is compiled against torch's C++ classes, whose layout changes with every minor
version: with another one it would crash or fail to find a symbol. So this is checked first.
"""

from __future__ import annotations

import torch

SUPPORTED = ("2.11", "2.12", "2.13", "2.14", "2.15")


def check_torch() -> None:
    """Raises ``ImportError`` unless the torch that is installed is supported and built for."""
    try:
        from torch_hologram._build_info import TORCH_MINOR, VERSION
    except ModuleNotFoundError:
        raise ImportError(
            "torch_hologram has not been built: run `pip install --no-build-isolation -e .` "
            "in its source tree."
        ) from None
    check_version(str(torch.__version__), TORCH_MINOR, VERSION)


def check_version(found: str, built_for: str, package: str) -> None:
    """Raises ``ImportError`` if this package does not run with a version of torch.

    Args:
        found: version of the torch that is installed, such as ``"2.13.0+cpu"``.
        built_for: minor version of torch this package was compiled against, such as ``"2.13"``.
        package: version of this package.
    """
    minor = ".".join(found.split("+")[0].split(".")[:2])
    supported = f"{', '.join(SUPPORTED[:-1])} and {SUPPORTED[-1]}"
    if minor not in SUPPORTED:
        raise ImportError(
            f"torch_hologram {package} supports torch {supported}, but torch {found} is installed."
        )
    if minor != built_for:
        raise ImportError(
            f"torch_hologram {package} was built for torch {built_for} (of the supported "
            f"{supported}), but torch {found} is installed: build it again for that version."
        )
