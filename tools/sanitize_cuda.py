"""Run GPU kernels under NVIDIA's compute-sanitizer, and write down how it went.

usage: make test-cuda-sanitize
       python tools/sanitize_cuda.py [--minutes M] [--programs N]

memcheck (accesses out of bounds, misaligned, of freed memory, leaks of none) and racecheck (hazards
of memory that threads of a block share) watch common programs, whose results are compared with the
CPU's (test/equal_on_devices.py), and random programs (test/programs). All run side by side, after
`make test-cuda` has built. The result is a line for each in benchmarks/results/GPU.md; where the
tool is not there or does not run, the lines say so. The output is in build/sanitize-cuda.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from test_cuda import ROOT, write

FOLDER = ROOT / "build" / "sanitize-cuda"
FOUND = 77  # the exit status for errors


def tool() -> str | None:
    places = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/local/cuda/bin"
    return shutil.which("compute-sanitizer", path=places)


def what_runs(programs: int) -> dict[str, list[str]]:
    return {
        "kernels": ["test/equal_on_devices.py", "--every", "20"],
        "programs": ["test/programs", "0", "--count", str(programs)],
    }


def start(sanitizer: str, check: str, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    backends = "cuda,cpu" if name == "kernels" else "cuda"
    path = [str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH")]
    environment = {
        **os.environ,
        "HOLOGRAM_BACKENDS": backends,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        # Each block of torch's allocator is memory of its own to the tool.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    command = [sanitizer, "--tool", check, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    if check == "memcheck":
        # The driver is asked whether there is a kernel for a group, and may say no.
        command += ["--report-api-errors", "no"]
    with (FOLDER / f"{check}.{name}.log").open("w") as log:
        return subprocess.Popen(
            [*command, sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def summary(check: str, name: str, status: int | None) -> str:
    """A line about a run that has ended, or was stopped where the status is None."""
    text = (FOLDER / f"{check}.{name}.log").read_text(errors="replace")
    errors = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.+)", text)
    did = re.findall(r"^(\d+ programs.*)$", text, re.M)
    said = f"; {did[-1]}" if did else ""
    if status is None:
        return f"stopped: its time was over{said}"
    if errors:
        return f"{errors[-1]}, exit status {status}{said}"
    return f"did not run (exit status {status}): {' '.join(text.split())[-200:]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--programs", type=int, default=200)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU that torch sees", file=sys.stderr)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.get_device_name()
    sanitizer = tool()
    if sanitizer is None:
        print(f"written to {write(gpu, 'sanitizer', 'compute-sanitizer is not installed')}")
        return 1
    end = time.monotonic() + 60 * arguments.minutes
    runs = {
        (check, name): start(sanitizer, check, name, command)
        for check in ("memcheck", "racecheck")
        for name, command in what_runs(arguments.programs).items()
    }
    try:
        while any(its.poll() is None for its in runs.values()) and time.monotonic() < end:
            time.sleep(1)
            left = [" ".join(key) for key, its in runs.items() if its.poll() is None]
            print(
                f"\r{end - time.monotonic():4.0f} s left: {', '.join(left):60}", end="", flush=True
            )
    finally:
        print()
        clean = True
        for (check, name), process in runs.items():
            status = process.poll()
            if status is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            line = summary(check, name, status)
            clean = clean and status == 0
            print(f"{check} {name}: {line}")
            path: Path = write(gpu, f"{check}, {name}", line)
        print(f"written to {path}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
