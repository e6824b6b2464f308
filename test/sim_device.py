"""Programs on the simulated device of test/sim, in processes of their own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from common import ROOT, run_python

FOLDER = ROOT / "build" / "sim"


@contextmanager
def made(target: Path) -> Iterator[None]:
    """A library of the Makefile's, brought up to date; no other process is at it meanwhile."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that share the tests
        done = subprocess.run(
            ["make", "-s", str(target.relative_to(ROOT))],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        yield


def build_sim() -> str:
    """The folder of the simulated device's library, which is brought up to date."""
    with made(FOLDER / "libhologram_sim.so"):
        return str(FOLDER)


# Freed memory is poisoned after the work that still used it, before that of the next owner.
FREED_MEMORY = """
x = torch.ones(100_000, device="hologram")
torch.hologram.synchronize()
place = x.data_ptr()
y = submit_additions(x, 1)
del x
z = torch.empty(100_000, device="hologram")
assert z.data_ptr() == place
assert z.isnan().all().item()
assert y.sum().item() == 200_000
"""

# What programs may use: values that the queue works on for some time, and what a call raises.
PRELUDE = '''
import torch
def message(call, kind=RuntimeError):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")

def submit_additions(x, times):
    for _ in range(times):
        x = x + 1
        torch.hologram.flush()
    return x

def in_threads(work, count):
    """Calls work(number) in so many threads; none may raise."""
    import threading
    errors = []
    def run(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
'''


def after_host_access(variables: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """A process with these variables that has read the device's memory on the host."""
    # AddressSanitizer would report the fault in place of the signal.
    options = [os.environ.get("ASAN_OPTIONS", ""), "handle_segv=0"]
    program = (
        "import ctypes, torch; x = torch.ones(8, device='hologram'); "
        "ctypes.c_float.from_address(x.data_ptr()).value"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables | {"ASAN_OPTIONS": ":".join(filter(None, options))},
        capture_output=True,
        check=False,
    )


def run_on_sim(program: str, backends: str = "sim", **env: object) -> str:
    """What the program prints where `backends` are the devices."""
    variables = {"HOLOGRAM_BACKENDS": backends, "HOLOGRAM_BACKEND_PATH": build_sim()}
    variables |= {name: str(value) for name, value in env.items()}
    return run_python(PRELUDE + textwrap.dedent(program), env=variables).stdout


def _library() -> ctypes.CDLL:
    """That of this process's simulated device, whose work is done."""
    torch.hologram.synchronize()
    return ctypes.CDLL(f"{os.environ['HOLOGRAM_BACKEND_PATH']}/libhologram_sim.so")


def compile_kernels() -> int:
    """Compiles the GPU kernels that this process's simulated device would have liked to have.

    Returns:
        how many there were.
    """
    count: int = _library().sim_compile_kernels()
    if count < 0:
        raise RuntimeError("emitted kernels do not compile; standard error says why")
    return count


def runs_of_groups() -> tuple[int, int, int]:
    """How many of this process were those of emitted GPU kernels, of cold ones, and of the CPU."""
    library = _library()
    counters = [getattr(library, f"sim_runs_by_{code}") for code in ("emitted", "cold", "cpu")]
    for counter in counters:
        counter.restype = ctypes.c_uint64
    emitted, cold, cpu = (counter() for counter in counters)
    return emitted, cold, cpu


def refusals() -> list[str]:
    """Why the CPU's code has run groups that were to be GPU kernels."""
    library = _library()
    library.sim_refusals.restype = ctypes.c_char_p
    lines: list[str] = library.sim_refusals().decode().splitlines()
    return lines


def unexpected_refusals() -> list[str]:
    """refusals() but for known limits.

    These are groups that compute in float64, which Metal has not, and the places that cold kernels
    have for values, numbers and operands.
    """
    known = [r".* without compiling it: it has too many (values|numbers|buffers|scans|picks)"]
    if os.environ["HOLOGRAM_TEST_SIM_KERNELS"] == "metal":
        known.append(r".* on the device: it has no f64")
    return [why for why in refusals() if not re.fullmatch("|".join(known), why)]


# Each task of a queue takes up to so many microseconds: long enough to see what does not wait.
LATE = {"HOLOGRAM_TEST_SIM_DELAY": 20_000}
