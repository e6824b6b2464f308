"""Programs on the CUDA backend without a GPU, in processes of their own: the driver of test/cuda.

As a program it makes what a process needs, for `make test-cuda-driver`.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from common import ROOT, run_python
from sim_device import PRELUDE, made

from torch_hologram import _C

FOLDER = ROOT / "build" / "cuda"
# For GPUs of the capability that the driver's have. Text, which the driver compiles.
KERNEL_FILES = {f"{name}.sm_90.cubin": text for name, text in _C.kernel_libraries().items()}


def write_kernels(folder: Path, **others: str | None) -> str:
    """Writes the files of kernels; `others` are by library what is in one, or None for no file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in KERNEL_FILES.items():
        content = others.get(name.split(".")[0], text)
        path = folder / name
        if content is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != content:
            path.write_text(content)
    return str(folder)


def build_driver() -> dict[str, str]:
    """Brings the driver up to date; the variables with which a process uses it."""
    with made(FOLDER / "libcublasLt.so.13"):  # and the driver with it
        kernels = write_kernels(FOLDER / "kernels")
    return {"LD_LIBRARY_PATH": str(FOLDER), "HOLOGRAM_CUDA_KERNELS": kernels}


def run_on_cuda(program: str, backends: str = "cuda", **env: object) -> str:
    """What the program prints where `backends` are the devices."""
    variables = {"HOLOGRAM_BACKENDS": backends} | build_driver()
    variables |= {name: str(value) for name, value in env.items()}
    return run_python(PRELUDE + textwrap.dedent(program), env=variables).stdout


# Each task of a stream takes up to so many microseconds: long enough to see what does not wait.
LATE = {"HOLOGRAM_TEST_CUDA_DELAY": 20_000}

if __name__ == "__main__":
    build_driver()
