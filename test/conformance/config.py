"""What the suite runs on and how much of it: every environment variable is read here.

HOLOGRAM_TEST_DEVICE       device under test: "hologram" (default), "cpu" or a vendor's, "cuda".
                           With "cpu" the suite judges itself: every unit that fails must be listed
                           in UNJUDGED of expected_failures.py. With "cuda" it says which units
                           torch's own device passes: the package is not loaded, since torch's
                           autograd works on one accelerator of a process, and nothing is listed.
HOLOGRAM_TEST_TIMES        how often a unit is run on a vendor's device (default 1).
HOLOGRAM_TEST_FULL=1       every dtype an entry supports instead of DEFAULT_DTYPES, every sample.
HOLOGRAM_CONFORMANCE_JSON  file to which one JSON line per unit and phase is appended.
HOLOGRAM_TEST_SIM_EMITTED  "later": the simulated device computes on cold GPU kernels, until the
                           emitted ones are compiled; a unit is run with both.
HOLOGRAM_TEST_TIMEOUT      seconds after which a single test is killed (default 300).
"""

from __future__ import annotations

import os

import torch

DEVICE = os.environ.get("HOLOGRAM_TEST_DEVICE", "hologram")
TIMES = int(os.environ.get("HOLOGRAM_TEST_TIMES", "1"))
FULL = os.environ.get("HOLOGRAM_TEST_FULL", "0") == "1"
JSON_PATH = os.environ.get("HOLOGRAM_CONFORMANCE_JSON")
KERNELS_COME_LATER = os.environ.get("HOLOGRAM_TEST_SIM_EMITTED") == "later"
TIMEOUT_SECONDS = float(os.environ.get("HOLOGRAM_TEST_TIMEOUT", "300"))

IS_VENDORS = DEVICE not in ("hologram", "cpu")
if IS_VENDORS and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
    raise RuntimeError(f"TORCH_DEVICE_BACKEND_AUTOLOAD=0 is needed to test torch's {DEVICE}")
if DEVICE == "hologram":
    # Before torch.testing._internal looks which devices there are, and not by autoload alone: an
    # error inside that would leave no device and therefore no tests.
    import torch_hologram  # noqa: F401

# Every kind of arithmetic once; float32 is what the conformance figures are about.
DEFAULT_DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.bool,
)
# In which a device's kernels compute, whatever it is; a GPU may have no float64.
KERNEL_DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
# An entry that supports none of the wanted dtypes is tested in the first of these that it supports.
FALLBACK_DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.complex64,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex128,
    torch.int32,
    torch.bool,
    torch.float8_e4m3fn,
)

# Entries of which a run takes this many samples, evenly over the list, instead of all: those that
# would otherwise take a tenth of the whole suite's time each. HOLOGRAM_TEST_FULL=1 takes all.
SAMPLE_CAPS = {
    "grid_sampler_3d": 8,  # of 30, volumes of up to five million elements
    "nn.LinearCrossEntropyLoss": 200,  # of 857, every combination of seven options
}

# Seeds that a result is computed with to see whether it changes; random numbers are to be what
# those of all seeds are. So many have to be, or it may be a coincidence.
OTHER_SEEDS = 40
MANY = 16

SEED = 20_240_229
