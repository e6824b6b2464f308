"""cuda_streams.cpp, compiled: the streams of CUDA devices in a torch without CUDA.

As a program it compiles it, in a process that does not keep the library.
"""

from __future__ import annotations

import fcntl
import functools
from pathlib import Path

from common import run_python
from torch.utils import cpp_extension

FOLDER = Path(__file__).resolve().parents[1] / "build" / "cuda_streams"
NAME = "hologram_test_cuda_streams"


def compile_library() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that share the tests
        cpp_extension.load(
            NAME,
            [str(Path(__file__).parent / "cuda_streams.cpp")],
            extra_cflags=["-O0", "-std=c++20"],
            build_directory=str(FOLDER),
            is_python_module=False,
        )


@functools.cache
def streams_library() -> str:
    """Its path. It is loaded before torch, which asks for the hooks of CUDA when it is imported."""
    folder = str(Path(__file__).parent)
    run_python(
        f"import sys; sys.path.insert(0, {folder!r})\n"
        "import cuda_streams\ncuda_streams.compile_library()"
    )
    return str(FOLDER / f"{NAME}.so")
