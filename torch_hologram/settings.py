"""The variables of the environment that the package reads, and those that it does not know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SETTINGS", "Setting", "UnknownSetting", "unknown_settings"]


@dataclass(frozen=True)
class Setting:
    """A variable.

    Attributes:
        name: ``"HOLOGRAM_..."``.
        default: what it means not to set it.
        meaning: what it is for.
    """

    name: str
    default: str
    meaning: str


SETTINGS = (
    Setting("HOLOGRAM_BACKENDS", "cuda,cpu", "backends in order of priority, separated by commas"),
    Setting("HOLOGRAM_BACKEND_PATH", "", "folders with libraries of backends, separated by colons"),
    Setting("HOLOGRAM_CPU_DEVICES", "1", "as how many devices the CPU appears, 1 to 64"),
    Setting("HOLOGRAM_MEMORY_LIMIT", "the device's memory", "most bytes a device may hold"),
    Setting("HOLOGRAM_EAGER", "0", "1 executes every operation at its call"),
    Setting("HOLOGRAM_POISON_FREED", "0", "1 overwrites memory that is given back, with NaNs"),
    Setting("HOLOGRAM_METAL_EMULATION", "0", "1 runs the backend metal without a Mac, for tests"),
    Setting("HOLOGRAM_CUDA_KERNELS", "the package's", "folder with the kernels of NVIDIA's GPUs"),
    Setting("HOLOGRAM_CUBLAS_LT", "the first found", "file of the library cublasLt"),
    Setting("HOLOGRAM_NVRTC", "the first found", "file of NVIDIA's compiler NVRTC"),
    Setting("HOLOGRAM_COMPILE", "1", "0 compiles no GPU kernels, wait waits for the compiler"),
    Setting("HOLOGRAM_CACHE_DIR", "the user's", "folder for compiled GPU kernels, 0 keeps none"),
    Setting("HOLOGRAM_REPLAY", "1", "0 launches programs that come again kernel by kernel"),
    Setting("HOLOGRAM_CPU_ISA", "the widest", "instruction set: baseline, avx2, avx512 or neon"),
)
_PREFIX = "HOLOGRAM_"
# Of the build and of the test suite.
_OTHERS = ("HOLOGRAM_BUILD_", "HOLOGRAM_SANITIZE", "HOLOGRAM_TEST_", "HOLOGRAM_CONFORMANCE_")


@dataclass(frozen=True)
class UnknownSetting:
    """A variable ``HOLOGRAM_...`` that nothing reads, and the setting that its name resembles."""

    name: str
    meant: str | None

    def __str__(self) -> str:
        hint = f": did you mean {self.meant}?" if self.meant else ""
        return f"{self.name} is no setting of torch_hologram{hint}"


def unknown_settings(environment: Mapping[str, str] = os.environ) -> tuple[UnknownSetting, ...]:
    """Returns the variables ``HOLOGRAM_...`` of an environment that are none of the settings."""
    known = [setting.name.removeprefix(_PREFIX) for setting in SETTINGS]
    found = []
    for name in sorted(environment):
        rest = name.removeprefix(_PREFIX)
        if rest != name and rest not in known and not name.startswith(_OTHERS):
            import difflib  # for a mistake only

            close = difflib.get_close_matches(rest, known, 1)
            found.append(UnknownSetting(name, _PREFIX + close[0] if close else None))
    return tuple(found)
