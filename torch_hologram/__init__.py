"""hologram: an out-of-tree PyTorch device.

``import torch`` is enough when the package is installed: torch loads it through the
``torch.backends`` entry point, unless torch finds a GPU of its own (docs/installed.md). ``import
torch_hologram`` does the same and, unlike the entry point, raises ``ImportError`` at once when the
package cannot work with the torch that is installed. Afterwards ``"hologram"`` is a device like any
other, and ``torch.hologram`` is its module.
"""

from __future__ import annotations

import sys as _sys
import typing as _typing
from importlib import import_module as _import_module
from os import environ as _environment
from pathlib import Path as _Path

# True until the last line of this file has run; see _autoload().
_importing = True


def _autoload() -> None:
    """Entry point ``torch.backends``, called by torch at the end of ``import torch``.

    Never raises: an error is kept, and raised by the first use of the device.
    """
    if _importing:
        # `import torch_hologram` came first and is itself waiting for `import torch`. It registers
        # the device when torch is there, and its caller wants to see the error.
        return
    if _is_cuda_programs():
        # So that an import by name, which comes later, runs this file again.
        del _sys.modules[__name__]
        return
    try:
        _load()
    except Exception as error:
        from torch_hologram._unavailable import install

        install(error)


def _is_cuda_programs() -> bool:
    """Whether the process is left to torch's CUDA until somebody imports this package by name.

    torch has one accelerator in a process, which is an out-of-tree device wherever one is
    registered, and autograd works on that one alone (pytorch/pytorch#161129): programs on CUDA
    would not run any more. HOLOGRAM_BACKENDS in the environment says that the device is wanted.
    """
    import torch

    return (
        "HOLOGRAM_BACKENDS" not in _environment
        and torch.backends.cuda.is_built()
        and torch.cuda.device_count() > 0  # which does not initialise CUDA
    )


def _load() -> None:
    """Loads the extension and registers the device.

    Raises:
        ImportError: torch is of an unsupported version, or not of the one this was built for
            (raised before the extension is touched), or the extension does not load.
    """
    from torch_hologram._version_check import check_torch

    check_torch()

    from torch_hologram._registration import register

    register()


def include_path() -> str:
    """Returns the folder of ``torch_hologram.h``, for ``torch.utils.cpp_extension``.

    The header is all there is: nothing has to be linked.
    """
    return str(_Path(__file__).parent / "include")


def flush_before(operator: str, on: bool = True) -> None:
    """See ``torch.hologram.flush_before``."""
    from torch_hologram.recording import flush_before

    flush_before(operator, on)


# The runtime SDK, which `import torch` does not import: names, and the modules they come from. A
# name that is its module's own stands for the module.
_LAZY = {
    "BackendType": "backend",
    "Buffer": "executor",
    "Executor": "executor",
    "PointwiseOperator": "custom",
    "backend": "backend",
    "buffer_to_tensor": "functional",
    "compat": "compat",
    "from_dlpack": "interop",
    "from_numpy": "interop",
    "functional": "functional",
    "get_default_backend": "backend",
    "integrations": "integrations",
    "is_cuda_available": "backend",
    "is_metal_available": "backend",
    "nn": "nn",
    "ops": "ops",
    "pointwise": "custom",
    "tensor_to_buffer": "functional",
    "to_dlpack": "interop",
    "train_step": "nn",
}

# For type checkers, which need it written out; test_sdk.py compares it with the table above.
__all__ = [
    "BackendType",
    "Buffer",
    "Executor",
    "PointwiseOperator",
    "__version__",
    "backend",
    "buffer_to_tensor",
    "compat",
    "flush_before",
    "from_dlpack",
    "from_numpy",
    "functional",
    "get_default_backend",
    "include_path",
    "integrations",
    "is_cuda_available",
    "is_metal_available",
    "nn",
    "ops",
    "pointwise",
    "tensor_to_buffer",
    "to_dlpack",
    "train_step",
]

if _typing.TYPE_CHECKING:
    from torch_hologram import backend, compat, functional, integrations, nn, ops
    from torch_hologram.backend import (
        BackendType,
        get_default_backend,
        is_cuda_available,
        is_metal_available,
    )
    from torch_hologram.custom import PointwiseOperator, pointwise
    from torch_hologram.executor import Buffer, Executor
    from torch_hologram.functional import buffer_to_tensor, tensor_to_buffer
    from torch_hologram.interop import from_dlpack, from_numpy, to_dlpack
    from torch_hologram.nn import train_step

    __version__: str
else:  # a checker that saw this would take every name for one of the package's

    def __getattr__(name: str) -> _typing.Any:
        if name == "__version__":
            from torch_hologram._build_info import VERSION

            return VERSION
        if name in _LAZY:
            module = _import_module(f"torch_hologram.{_LAZY[name]}")
            found = module if name == _LAZY[name] else getattr(module, name)
            globals()[name] = found  # so that this function is asked once for each name
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


import torch  # noqa: E402  (_autoload may be called before this line has finished)

# While torch is still being imported this file was reached through the entry point: torch calls
# _autoload() next, and an error raised here would break `import torch`.
if not getattr(torch.__spec__, "_initializing", False):
    _load()
    # Who imports the package by name mostly wants an executor, and is not to wait for it then.
    _import_module("torch_hologram.executor")

_importing = False
