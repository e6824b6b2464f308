"""Compile the kernels that the package brings for NVIDIA's GPUs.

usage: python tools/build_kernels.py [FOLDER] [--architectures 75,80,90,100,120|native]

Writes FOLDER/torch_hologram/kernels: of each library of kernels, those of common groups
(tools/common_groups.py) among them, machine code for each architecture,
LIBRARY.sm_NN.cubin, and PTX of the newest, LIBRARY.compute_NN.ptx; beside them hologram_gpu.h, with
which the backend compiles others while a program runs. The extension under FOLDER (the
source tree, if it is not given) has their text. The compiler is nvcc where it is on the PATH, else
NVRTC of the package nvidia-cuda-nvrtc. No GPU is needed. Files whose text, headers, architecture
and compiler are those of the last time stay as they are. `native` stands for the GPUs of this
machine, which are asked by nvidia-smi; all architectures where it does not say.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from compile_kernels import (
    ARCHITECTURES,
    DIALECT,
    LANGUAGE,
    ROOT,
    CompileError,
    Nvrtc,
    nvcc,
    nvcc_version,
)

NUMBERS = tuple(int(name.removeprefix("sm_")) for name in ARCHITECTURES)


# Texts that the kernels of common groups are divided into, to be compiled side by side.
GROUP_TEXTS = 16


def texts(folder: Path) -> dict[str, str]:
    """The text of each library, from the extension in a folder.

    Raises CompileError where it does not load.
    """

    def output_of(*command: str) -> Any:
        done = subprocess.run(
            [sys.executable, *command],
            env={
                **os.environ,
                "PYTHONPATH": str(folder),
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                "OMP_NUM_THREADS": "1",
            },
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CompileError(f"the extension in {folder} does not load:\n{done.stderr}")
        return json.loads(done.stdout)

    libraries: dict[str, str] = output_of(
        "-c",
        "import json, sys; from torch_hologram import _C; "
        "json.dump(_C.kernel_libraries(), sys.stdout)",
    )
    groups = output_of(str(ROOT / "tools" / "common_groups.py"), "--texts", str(GROUP_TEXTS))
    return libraries | {f"groups_{i}": text for i, text in enumerate(groups)}


def dialect(name: str = "hologram_gpu.h") -> str:
    """A header of the dialect with those that it includes in their places, as CUDA has them."""

    def included(line: re.Match[str]) -> str:
        return "" if line[1] == "prelude_metal.h" else dialect(line[1])

    return re.sub(r'^#include "(.+)"$', included, (DIALECT / name).read_text(), flags=re.M)


def compiler() -> str:
    """Which one, with its version; raises CompileError where there is none."""
    return f"nvcc {nvcc_version()}" if nvcc() else f"NVRTC {Nvrtc().version}"


def compiled(text: str, name: str, architecture: str) -> bytes:
    """Machine code for an architecture like sm_90, PTX for one like compute_90.

    Raises CompileError with what the compiler says.
    """
    if not nvcc():
        return Nvrtc().compile(text, name, architecture).code
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{name}.cu"
        source.write_text(text)
        output = source.with_suffix(".out")
        kind = "-cubin" if architecture.startswith("sm_") else "-ptx"
        command = [str(nvcc()), *LANGUAGE, f"-arch={architecture}", kind, "-I", str(DIALECT)]
        done = subprocess.run(
            [*command, str(source), "-o", str(output)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CompileError(f"{name} for {architecture}:\n{done.stdout}{done.stderr}")
        return output.read_bytes()


def files(names: list[str], numbers: list[int]) -> dict[str, tuple[str, str]]:
    """What is made of which library for which architecture."""
    wanted = {
        f"{name}.sm_{number}.cubin": (name, f"sm_{number}") for name in names for number in numbers
    }
    newest = max(numbers)
    wanted |= {f"{name}.compute_{newest}.ptx": (name, f"compute_{newest}") for name in names}
    return wanted


def build(folder: Path, numbers: list[int]) -> list[str]:
    """Compiles what has changed; returns the names of the files it has made."""
    libraries = texts(folder)
    output = folder / "torch_hologram" / "kernels"
    output.mkdir(exist_ok=True)
    stamp = output / "made_from.json"
    before = json.loads(stamp.read_text()) if stamp.exists() else {}
    headers = "".join(path.read_text() for path in sorted(DIALECT.glob("*.h")))
    version = compiler()
    wanted = files(list(libraries), numbers)
    made_from = {
        name: hashlib.sha256(
            "\0".join((libraries[library], headers, architecture, version, *LANGUAGE)).encode()
        ).hexdigest()
        for name, (library, architecture) in wanted.items()
    }
    changed = [
        name
        for name in wanted
        if before.get(name) != made_from[name] or not (output / name).exists()
    ]
    with ProcessPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
        running = {
            name: pool.submit(
                compiled, libraries[wanted[name][0]], wanted[name][0], wanted[name][1]
            )
            for name in changed
        }
        for name, code in running.items():
            (output / name).write_bytes(code.result())
            print(f"{name}: {(output / name).stat().st_size} bytes", flush=True)
    header = output / "hologram_gpu.h"
    header.write_text(dialect())
    for path in output.iterdir():
        if path.name not in wanted and path not in (stamp, header):
            path.unlink()
    stamp.write_text(json.dumps(made_from, indent=1) + "\n")
    return changed


def native() -> list[int]:
    """Those of this machine's GPUs that kernels can be built for; all where there is none."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return list(NUMBERS)
    here = {int(line.replace(".", "")) for line in done.stdout.split() if line[0].isdigit()}
    # A GPU runs the code of an older one of its generation, and is served by it.
    served = {n for its in here for n in NUMBERS if n // 10 == its // 10 and n <= its}
    return sorted(served) or list(NUMBERS)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--architectures", default=",".join(map(str, NUMBERS)))
    arguments = parser.parse_args()
    try:
        numbers = (
            native()
            if arguments.architectures == "native"
            else [int(number) for number in arguments.architectures.split(",")]
        )
    except ValueError:
        parser.error(f"--architectures: {arguments.architectures}")
    try:
        changed = build(arguments.folder.resolve(), numbers)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(changed)} files of kernels compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
