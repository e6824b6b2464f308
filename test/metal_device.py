"""Programs on the Metal backend without a Mac, in processes of their own: Metal is test/metal."""

from __future__ import annotations

import textwrap

from common import ROOT, run_python
from sim_device import PRELUDE, made

LIBRARY = ROOT / "build" / "metal" / "libhologram_metal.so"

# How often groups were run by which code, and what became of kernels and command buffers.
COUNTS = """
def counts():
    torch.hologram.synchronize()
    return {
        name: count
        for name, count in torch.hologram.stream_stats().items()
        if name.startswith(("groups.", "kernels.", "buffers."))
    }
"""


def run_on_metal(program: str, backends: str = "metal", **env: object) -> str:
    """What the program prints where `backends` are the devices."""
    with made(LIBRARY):
        pass
    variables = {"HOLOGRAM_BACKENDS": backends, "HOLOGRAM_METAL_EMULATION": "1"}
    variables |= {name: str(value) for name, value in env.items()}
    return run_python(PRELUDE + COUNTS + textwrap.dedent(program), env=variables).stdout
