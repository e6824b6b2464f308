"""Programs on the CUDA backend without a GPU, in processes of their own: the driver of test/cuda.

As a program it makes what a process needs, for `make test-cuda-driver`.
"""

from __future__ import annotations

import os
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
    # What this driver can load is nothing for others.
    return {
        "LD_LIBRARY_PATH": str(FOLDER),
        "HOLOGRAM_CUDA_KERNELS": kernels,
        "HOLOGRAM_CACHE_DIR": "0",
    }


def run_on_cuda(
    program: str, backends: str = "cuda", preload: str | Path | None = None, **env: object
) -> str:
    """What the program prints where `backends` are the devices, with a library before torch's."""
    variables = {"HOLOGRAM_BACKENDS": backends} | build_driver()
    if preload is not None:
        # After those of this process: a sanitizer has to be the first.
        variables["LD_PRELOAD"] = " ".join(
            [*os.environ.get("LD_PRELOAD", "").split(), str(preload)]
        )
    variables |= {name: str(value) for name, value in env.items()}
    return run_python(PRELUDE + textwrap.dedent(program), env=variables).stdout


# Devices of two backends in a process, and how often groups were run by which code.
DEVICES = """
import ctypes
from torch_hologram import _C

cpu, gpu, other_gpu = (f"hologram:{i}" for i in range(3))
backends = [torch.hologram.get_device_properties(i).backend for i in range(3)]
assert backends == ["cpu", "cuda", "cuda"], backends

def runs():
    counts = (ctypes.c_uint64 * 5)()
    torch.hologram.synchronize()
    ctypes.CDLL(_C.__file__).hologram_cuda_runs(counts)
    return dict(zip(("emitted", "pieces", "cold", "cpu", "moves"), counts))

def check(function, *tensors, devices=(gpu,)):
    expected = function(*(x.to(cpu) for x in tensors))
    for device in devices:
        result = function(*(x.to(device) for x in tensors))
        assert result.device == torch.device(device) and result.dtype == expected.dtype
        torch.testing.assert_close(result.cpu(), expected.cpu(), rtol=0, atol=0, equal_nan=True)
"""

# Each task of a stream takes up to so many microseconds: long enough to see what does not wait.
LATE = {"HOLOGRAM_TEST_CUDA_DELAY": 20_000}

if __name__ == "__main__":
    build_driver()
