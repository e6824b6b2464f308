"""Compiles kernel text of the dialect for the CPU, and runs it.

    library = compile_library(text, prelude="metal")
    library.launch("add", grid=2, block=64, buffers=[x, y], params=numpy.uint32(100).tobytes())

As a program it makes a shared library for hg_library_open() of emulator.h:

    python emulator.py --prelude cuda kernels.hgk
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:  # the command does without
    import numpy as np

HERE = Path(__file__).resolve().parent
DIALECT = HERE.parent.parent / "csrc" / "gpu" / "dialect"
sys.path.insert(0, str(HERE))

from source_pass import SourceError, transform  # noqa: E402  (a neighbour, not a package)

COMPILER = "clang++-19"
ORDERS = {"forward": 0, "reverse": 1, "seeded": 2}

# What clang can say of the rules of the languages.
LINT = [
    "-Werror=implicit-float-conversion",
    "-Werror=double-promotion",
    "-Wno-implicit-int-float-conversion",
    "-Werror=vla",
    "-Werror=uninitialized",
    "-Werror=return-type",
    "-Wno-unknown-pragmas",
    "-fno-lax-vector-conversions",
]
CODE = ["-fPIC", "-shared", "-march=x86-64-v3", "-ffp-contract=off", "-fno-exceptions"]
# Without the start-up files and C++'s library: linking would take longer than compiling.
LINK = ["-nostdlib", "-lm", "-lc", "-lgcc"]
LANGUAGE = {
    # MSL is C++14. Its literals are float; here they are double, so that the lint finds those that
    # would be so in CUDA.
    "metal": ["-std=c++14", "-Werror=c++17-extensions"],
    "cuda": ["-std=c++17"],
}
DEFINED = {"metal": ["-D__METAL__", "-D__METAL_VERSION__=310"], "cuda": ["-DHG_EMULATED=1"]}
SANITIZE = ["-fsanitize=address", "-shared-libasan", "-g", "-fno-omit-frame-pointer"]
SANITIZE += ["-DHGEMU_FLAT"]
# Whether kernels are compiled with the address sanitizer where a caller does not say.
SANITIZED = os.environ.get("HOLOGRAM_EMULATOR_ASAN") == "1"


class EmulatorError(Exception):
    """Text that does not compile, or a launch that went wrong."""


def compiler() -> str:
    found = shutil.which(COMPILER)
    if found is None:
        raise EmulatorError(f"{COMPILER} is not installed (Debian's package clang-19)")
    return found


def cache_folder() -> Path:
    default = Path(tempfile.gettempdir()) / f"hologram-emulator-{os.getuid()}"
    folder = Path(os.environ.get("HOLOGRAM_EMULATOR_CACHE", default))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@functools.cache
def sources_hash() -> str:
    """Of everything that what is compiled depends on, but for the text."""
    digest = hashlib.sha256()
    for path in sorted([*HERE.iterdir(), *DIALECT.iterdir()]):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def call_compiler(arguments: Sequence[str], given: str | None = None) -> str:
    # Not with what this process may have been started with: the sanitizer's library.
    environment = {name: its for name, its in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [compiler(), *arguments],
        input=given,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise EmulatorError(done.stderr)
    return done.stdout


def make_cached(name: str, arguments: Sequence[str], given: str | None = None) -> Path:
    """The file `name` of the cache, which the compiler makes unless it is there."""
    path = cache_folder() / name
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")
        call_compiler([*arguments, "-o", str(part)], given)
        part.replace(path)  # at once: others may be making it too
    return path


def runtime(asan: bool = False) -> Path:
    """The shared library of the emulator itself."""
    name = f"runtime-{sources_hash()[:16]}{'-asan' if asan else ''}.so"
    options = ["-std=c++20", "-fPIC", "-shared", *(["-O1", *SANITIZE] if asan else ["-O2"])]
    return make_cached(name, [*options, str(HERE / "emulator.cpp")])


def preprocess(text: str, prelude: str) -> str:
    include = ["-I", str(DIALECT), "-I", str(HERE / "stubs")]
    options = ["-E", "-x", "c++", "-nostdinc", *LANGUAGE[prelude], *DEFINED[prelude]]
    return call_compiler([*options, *include, "-"], f'#line 1 "kernel"\n{text}')


def compile_to_file(
    text: str, prelude: str = "metal", asan: bool = SANITIZED, optimize: int = 2
) -> Path:
    """The shared library of a text's kernels; EmulatorError with what is wrong.

    With `optimize` 0 it takes a sixth of the time to compile, and several times as long to run."""
    if prelude not in LANGUAGE:
        raise ValueError(f"prelude is {prelude!r}, expected one of {sorted(LANGUAGE)}")
    key = hashlib.sha256(
        f"{sources_hash()} {prelude} {asan} {optimize} {text}".encode()
    ).hexdigest()
    name = f"kernels-{key[:32]}.so"
    if (cache_folder() / name).exists():
        return cache_folder() / name
    if asan:  # whose Metal has no address spaces: what is wrong there is an error all the same
        compile_to_file(text, prelude, asan=False)
    try:
        source = transform(preprocess(text, prelude), prelude)
    except SourceError as error:
        raise EmulatorError(str(error)) from None
    options = [
        *CODE,
        f"-O{optimize}",
        *LANGUAGE[prelude],
        *DEFINED[prelude],
        *LINT,
        *(SANITIZE if asan else []),
    ]
    shim = ["-I", str(HERE), "-include", f"shim_{prelude}.h"]
    inputs = ["-x", "c++", "-", "-x", "none", str(runtime(asan)), *([] if asan else LINK)]
    return make_cached(name, [*options, *shim, *inputs], source)


class Argument(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


@functools.cache
def load_runtime(asan: bool) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(runtime(asan)), mode=ctypes.RTLD_GLOBAL)
    triple = ctypes.POINTER(ctypes.c_uint32)
    loaded.hg_library_open.restype = ctypes.c_void_p
    loaded.hg_library_open.argtypes = [ctypes.c_char_p]
    loaded.hg_library_kernel.restype = ctypes.c_void_p
    loaded.hg_library_kernel.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    loaded.hg_kernel_arguments.argtypes = [ctypes.c_void_p]
    loaded.hg_kernel_role.restype = ctypes.c_char
    loaded.hg_kernel_role.argtypes = [ctypes.c_void_p, ctypes.c_int]
    arguments = (ctypes.POINTER(Argument), ctypes.c_int)
    order = (ctypes.c_int, ctypes.c_uint64)
    loaded.hg_launch.argtypes = (ctypes.c_void_p, triple, triple, *arguments, *order)
    loaded.hg_emulator_error.restype = ctypes.c_char_p
    return loaded


def triple_of(size: int | Sequence[int]) -> ctypes.Array[ctypes.c_uint32]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (ctypes.c_uint32 * 3)(*sizes, *[1] * (3 - len(sizes)))


Buffer = Union["np.ndarray", int]  # or its address


class Library:
    """The kernels of a text."""

    def __init__(self, path: Path, asan: bool) -> None:
        self._runtime = load_runtime(asan)
        self._library = self._checked(self._runtime.hg_library_open(str(path).encode()))
        self._kernels: dict[str, int] = {}

    def _checked(self, handle: int | None) -> int:
        if handle is None:
            raise EmulatorError(self._runtime.hg_emulator_error().decode())
        return handle

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        buffers: Sequence[Buffer] = (),
        params: bytes | Sequence[bytes] = (),
        order: str = "forward",
        seed: int = 0,
        threadgroup: Sequence[int] = (),
    ) -> None:
        """Runs a kernel. Buffers (arrays or addresses), parameters (bytes) and sizes of threadgroup
        memory are its arguments of each kind, in their order."""
        if name not in self._kernels:
            handle = self._runtime.hg_library_kernel(self._library, name.encode())
            self._kernels[name] = self._checked(handle)
        kernel = self._kernels[name]
        rest: dict[bytes, list[Any]] = {
            b"b": list(buffers),
            b"p": [params] if isinstance(params, bytes) else list(params),
            b"t": list(threadgroup),
        }
        arguments, alive = [], []
        for i in range(self._runtime.hg_kernel_arguments(kernel)):
            role = self._runtime.hg_kernel_role(kernel, i)
            if not rest[role]:
                raise EmulatorError(f"{name}: argument {i} is missing")
            given = rest[role].pop(0)
            if isinstance(given, bytes):
                alive.append(ctypes.create_string_buffer(given, len(given)))
                arguments.append(Argument(ctypes.addressof(alive[-1]), len(given)))
            elif role == b"t":
                arguments.append(Argument(None, given))
            elif isinstance(given, int):
                arguments.append(Argument(given, 0))
            else:
                if not given.flags.c_contiguous:
                    raise ValueError("a buffer has to be contiguous")
                arguments.append(Argument(given.ctypes.data, given.nbytes))
        if left := sum(map(len, rest.values())):
            raise EmulatorError(f"{name}: {left} arguments too many")
        packed = (Argument * max(1, len(arguments)))(*arguments)
        sizes = triple_of(grid), triple_of(block)
        code = ORDERS[order]
        if self._runtime.hg_launch(kernel, *sizes, packed, len(arguments), code, seed) != 0:
            raise EmulatorError(self._runtime.hg_emulator_error().decode())

    def launch_in_all_orders(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        buffers: Sequence[np.ndarray],
        params: bytes | Sequence[bytes] = (),
        threadgroup: Sequence[int] = (),
    ) -> None:
        """Runs a kernel with its threads in three orders, from the same buffers each time; an
        EmulatorError if results differ, which is a race."""
        before = [b.copy() for b in buffers]
        results = []
        for order in ORDERS:
            for buffer, its in zip(buffers, before, strict=True):
                buffer[...] = its
            self.launch(name, grid, block, buffers, params, order, 1, threadgroup)
            results.append([b.tobytes() for b in buffers])
        if any(r != results[0] for r in results):
            raise EmulatorError(f"{name}: a race: results depend on the order of threads")


def compile_library(text: str, prelude: str = "metal", asan: bool = SANITIZED) -> Library:
    """Compiles kernel text, or takes what an earlier call made; EmulatorError if it is wrong.

    With `asan` the process has to have been started in sanitizer_environment()."""
    return Library(compile_to_file(text, prelude, asan), asan)


def sanitizer_environment() -> dict[str, str]:
    """For a process whose kernels are compiled with the address sanitizer. It ends the process at
    the first access that is wrong, with exit status 86."""
    library = call_compiler(["-print-file-name=libclang_rt.asan-x86_64.so"]).strip()
    if not os.path.isabs(library):
        raise EmulatorError("clang's sanitizers are not installed (Debian's libclang-rt-19-dev)")
    return {
        "HOLOGRAM_EMULATOR_ASAN": "1",
        "LD_PRELOAD": library,
        # Python never gives all of its memory back, and fibers are no stacks that it knows.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:exitcode=86",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--prelude", choices=sorted(LANGUAGE), default="metal")
    parser.add_argument("--optimize", type=int, choices=(0, 1, 2), default=2)
    parser.add_argument("--runtime", action="store_true", help="print the emulator's library first")
    parser.add_argument(
        "--asan-environment", action="store_true", help="print it, for a process, and nothing else"
    )
    options = parser.parse_args()
    if (options.text is None) != options.asan_environment:
        parser.error("a text is needed, or --asan-environment")
    try:
        if options.asan_environment:
            print(" ".join(f"{name}={its}" for name, its in sanitizer_environment().items()))
            return
        if options.runtime:
            print(runtime(SANITIZED))
        text = options.text.read_text()
        print(compile_to_file(text, options.prelude, optimize=options.optimize))
    except EmulatorError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
