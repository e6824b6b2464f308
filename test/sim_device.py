"""Programs on the simulated device of test/sim, in processes of their own."""

from __future__ import annotations

import fcntl
import subprocess
import textwrap

from common import ROOT, run_python

FOLDER = ROOT / "build" / "sim"


def build_sim() -> str:
    """The folder of the simulated device's library, which is brought up to date."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that share the tests
        done = subprocess.run(
            ["make", "-s", "build/sim/libhologram_sim.so"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return str(FOLDER)


# What programs may use: values that the queue works on for some time, and what a call raises.
PRELUDE = """
import torch
def message(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")

def submit_additions(x, times):
    for _ in range(times):
        x = x + 1
        torch.hologram.flush()
    return x
"""


def run_on_sim(program: str, backends: str = "sim", **env: object) -> str:
    """What the program prints where `backends` are the devices."""
    variables = {"HOLOGRAM_BACKENDS": backends, "HOLOGRAM_BACKEND_PATH": build_sim()}
    variables |= {name: str(value) for name, value in env.items()}
    return run_python(PRELUDE + textwrap.dedent(program), env=variables).stdout


# Each task of a queue takes up to so many microseconds: long enough to see what does not wait.
LATE = {"HOLOGRAM_TEST_SIM_DELAY": 20_000}
