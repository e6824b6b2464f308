"""The loops fused by hand, compiled and called."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from chains.paths import BUILD, ROOT

FOLDER = ROOT / "benchmarks" / "reference"
FLAGS = [
    "-std=c++20",
    "-O3",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
]


class Reference:
    """The loops fused by hand, compiled for this machine."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(self.compile()))
        self.function = library.hologram_reference
        self.function.restype = ctypes.c_bool
        self.function.argtypes = [
            ctypes.c_char_p,
            ctypes.c_bool,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_long,
            ctypes.c_long,
            ctypes.POINTER(ctypes.c_float),
            ctypes.c_int,
            ctypes.c_long,
        ]
        self.rows_function = library.hologram_reference_rows
        self.rows_function.restype = ctypes.c_bool
        self.rows_function.argtypes = [
            ctypes.c_char_p,
            ctypes.c_bool,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.POINTER(ctypes.c_long),
            ctypes.c_long,
        ]
        self.width = int(library.hologram_reference_width())

    @staticmethod
    def compile() -> Path:
        """Returns the library, built anew where a source is newer."""
        BUILD.mkdir(parents=True, exist_ok=True)
        output = BUILD / "libreference.so"
        core = ROOT / "csrc"
        sources = [*FOLDER.iterdir(), *core.glob("cpu/*.h"), *core.glob("atlas/*.h")]
        if output.exists() and output.stat().st_mtime > max(s.stat().st_mtime for s in sources):
            return output
        command = [os.environ.get("CXX", "c++"), *FLAGS, "-I", str(ROOT / "csrc")]
        subprocess.run([*command, *map(str, FOLDER.glob("*.cpp")), "-o", str(output)], check=True)
        return output

    def contender(
        self,
        chain: str,
        numbers: tuple[float, ...],
        operands: Sequence[Sequence[torch.Tensor]],
        threads: int,
    ) -> Callable[[int], float]:
        """seconds(number) of a loop over `operands`, which the host can read, in its order."""
        flat = [tensor for group in zip(*operands, strict=True) for tensor in group]
        pointers = (ctypes.c_void_p * len(flat))(*(tensor.data_ptr() for tensor in flat))
        scalars = (ctypes.c_float * 8)(*numbers)
        half = flat[0].dtype == torch.bfloat16
        name, tensors, count = chain.encode(), len(operands[0]), flat[0].numel()

        def run(number: int) -> bool:
            known: bool = self.function(
                name, half, pointers, tensors, count, scalars, threads, number
            )
            return known

        return timed(chain, run, flat)

    def rows_contender(
        self,
        program: str,
        sizes: tuple[int, int, int],
        operands: Sequence[torch.Tensor],
        clock: Callable[[], float] = time.perf_counter,
    ) -> Callable[[int], float]:
        """seconds(number) of a program over rows, on one thread."""
        pointers = (ctypes.c_void_p * len(operands))(*(tensor.data_ptr() for tensor in operands))
        numbers = (ctypes.c_long * 3)(*sizes)
        half = operands[0].dtype == torch.bfloat16
        name = program.encode()

        def run(number: int) -> bool:
            known: bool = self.rows_function(name, half, pointers, numbers, number)
            return known

        return timed(program, run, operands, clock)


def timed(
    name: str,
    run: Callable[[int], bool],
    operands: Sequence[torch.Tensor],
    clock: Callable[[], float] = time.perf_counter,
) -> Callable[[int], float]:
    """seconds(number) of a loop that says whether it is known."""

    def seconds(number: int) -> float:
        start = clock()
        known = run(number)
        elapsed = clock() - start
        if not known:
            raise RuntimeError(f"no reference loop for {name}")
        return elapsed

    seconds.keep = operands  # type: ignore[attr-defined]  # the pointers' owners
    return seconds


def compiler() -> str:
    command = [os.environ.get("CXX", "c++"), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return output.splitlines()[0]
