"""vendor.cpp, compiled: a vendor whose kernels the simulated device's memory has."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import ModuleType

from torch.utils import cpp_extension

# common.py would use a device.
FOLDER = Path(__file__).resolve().parents[1] / "build" / "vendor"


def load_vendor() -> ModuleType:
    """Its module. Loaded before a device is used, which looks for its vendor once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that share the tests
        return cpp_extension.load(
            "hologram_test_vendor",
            [str(Path(__file__).parent / "vendor.cpp")],
            extra_cflags=["-O0", "-std=c++20"],
            build_directory=str(FOLDER),
        )
