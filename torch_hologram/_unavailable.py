"""What ``torch.hologram`` is when ``import torch`` could not load the package."""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from typing import NoReturn

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from torch_hologram._device import DEVICE_TYPE


class HologramUnavailableError(RuntimeError, AttributeError):
    """The device was used, but loading it had failed; the cause is the original error.

    It is an ``AttributeError`` too, so that ``hasattr(torch.hologram, ...)`` stays a question.
    """


class UnavailableModule(types.ModuleType):
    """A device module without devices: answers that there is none, raises for everything else."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"torch.{DEVICE_TYPE}", "Unavailable: loading torch_hologram has failed.")
        self.error = error

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._fail()

    def _fail(self) -> NoReturn:
        raise HologramUnavailableError(
            f"the device '{DEVICE_TYPE}' is not available, because torch_hologram failed to load: "
            f"{type(self.error).__name__}: {self.error}"
        ) from self.error

    # torch calls this before it makes a tensor on the device, for instance in `.to("hologram")`.
    def _lazy_init(self) -> NoReturn:
        self._fail()

    # Device-generic code asks these of every registered device. The answers are those of
    # torch.cuda on a machine without a GPU.
    def is_available(self) -> bool:
        return False

    def is_initialized(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass


def install(error: Exception) -> None:
    """Keeps ``error`` as ``torch.hologram``, to be raised on first use. Never raises."""
    module = UnavailableModule(error)
    setattr(torch, DEVICE_TYPE, module)
    sys.modules[f"torch.{DEVICE_TYPE}"] = module
    # A later `import torch_hologram` is to try again and raise the error where it is wanted.
    for name in [n for n in sys.modules if n.split(".")[0] == "torch_hologram"]:
        del sys.modules[name]

    with contextlib.suppress(Exception):
        if not _other_accelerator():
            # The name makes `.to("hologram")` reach _lazy_init() above instead of failing as an
            # unknown device. It also makes hologram torch's current accelerator, so it is taken
            # only where there is no other.
            rename_privateuse1_backend(DEVICE_TYPE)
        else:
            warnings.warn(
                f"the device '{DEVICE_TYPE}' is not available, because torch_hologram failed to "
                f"load: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


def _other_accelerator() -> bool:
    """Whether this machine has an accelerator that torch was built for.

    A torch built for CUDA names it as its accelerator also where there is no GPU. The count of
    devices is asked of the device's module because that of CUDA does not initialise the driver,
    after which a process could not fork.
    """
    accelerator = torch._C._accelerator_getAccelerator()
    return bool(accelerator and torch.get_device_module(accelerator).device_count())
