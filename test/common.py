"""What the test files share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_leaves, tree_map

from torch_hologram import _C

ROOT = Path(__file__).resolve().parent.parent


def run_python(
    source: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    timeout: float = 120,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a fresh interpreter.

    Args:
        source: the program; indentation common to all lines is removed.
        *arguments: its ``sys.argv[1:]``.
        env: variables set in addition to this process's.
        timeout: seconds.
        check: fail unless it exits with 0.

    Returns:
        the finished process, with ``stdout`` and ``stderr`` as text.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and process.returncode != 0:
        raise AssertionError(
            f"the program exited with {process.returncode}\n--- stdout\n{process.stdout}"
            f"\n--- stderr\n{process.stderr}"
        )
    return process


# What executes, by its name: "cpu", or "sim" (test/sim).
BACKEND = _C.device_backend(0)
# Of all devices.
BACKENDS = {_C.device_backend(index) for index in range(torch.hologram.device_count())}
# Whether the host can touch the device's memory; how a call of torch's CPU kernel is counted.
HOST_MEMORY = torch.hologram.get_device_properties(0).host_addressable
DELEGATED = "copied" if _C.delegate_target(0)[0] == "copied" else "delegated"
# Whether torch's CUDA kernels run for what is not recorded: their results are not the CPU's bit for
# bit, and what they refuse, and in which words, is torch's for CUDA.
CUDA_KERNELS = _C.delegate_target(0)[1].startswith("cuda")
# Whether matrix products are the device's own, whose results are not those of torch's CPU kernels
# bit for bit either.
OWN_PRODUCTS = BACKEND == "metal"
# Whether it computes while the host goes on.
ASYNCHRONOUS = torch.hologram.get_device_properties(0).asynchronous
# How many GPUs the devices are of; 0 where they are none, or those of the driver of test/cuda.
GPUS = torch.cuda.device_count() if BACKEND == "cuda" and torch.cuda.is_available() else 0


def several_devices(count: int) -> dict[str, str]:
    """The variables with which a fresh process has so many devices, whatever executes.

    Where two backends do, the last device is the second one's. Where there are not so many GPUs,
    the devices behind them are the CPU's.
    """
    first, *others = os.environ.get("HOLOGRAM_BACKENDS", BACKEND).split(",")
    if GPUS and first == "cuda":
        gpus = min(GPUS, count)
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(GPUS))))
        return {
            "HOLOGRAM_BACKENDS": "cuda,cpu" if count > gpus else "cuda",
            "HOLOGRAM_CPU_DEVICES": str(max(count - gpus, 1)),
            "CUDA_VISIBLE_DEVICES": ",".join(shown.split(",")[:gpus]),
        }
    if first == "metal":  # there is one
        return {
            "HOLOGRAM_BACKENDS": "metal,cpu" if count > 1 else "metal",
            "HOLOGRAM_CPU_DEVICES": str(max(count - 1, 1)),
        }
    backends = [first, *others[:1]] if count > 1 else [first]
    numbers = {
        "cpu": "HOLOGRAM_CPU_DEVICES",
        "sim": "HOLOGRAM_TEST_SIM_DEVICES",
        "cuda": "HOLOGRAM_TEST_CUDA_DEVICES",  # of the driver of test/cuda
    }
    counts = [count - len(backends) + 1, 1]
    return {
        "HOLOGRAM_BACKENDS": ",".join(backends),
        **{numbers[name]: str(n) for name, n in zip(backends, counts, strict=False)},
    }


def as_torch(compare: Callable[[str], None]) -> None:
    """compare("cpu") passes; or compare("cuda"), where torch's CUDA kernels run for the device.

    What compare() calls uses no autograd: torch has it for one accelerator of a process.
    """
    try:
        compare("cpu")
    except AssertionError:
        if not CUDA_KERNELS:
            raise
        compare("cuda")


class HologramTestCase(TestCase):
    """Every test ends with a computation on the device: no failure may leave it unusable."""

    def setUp(self) -> None:
        super().setUp()
        torch.hologram.init()  # statistics are empty before the first use

    def tearDown(self) -> None:
        left = torch.arange(6.0, device="hologram").reshape(2, 3)
        self.assertEqual((left @ left.t()).cpu(), torch.tensor([[5.0, 14.0], [14.0, 50.0]]))
        super().tearDown()


# A test that compares them runs on each.
DEVICES = ("cpu", "hologram")


class DevicesMasks(TorchFunctionMode):
    """On the CPU, dropout that drops what the device would: to compare models in training.

    The masks are drawn on the device, in the order of the calls, so both have to begin in one state
    of its generator.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.nn.functional.dropout:
            return dropped(*args, **kwargs)
        attends = function is torch.nn.functional.scaled_dot_product_attention
        if attends and kwargs.get("dropout_p"):
            return attention(*args, **kwargs)
        return function(*args, **kwargs)


def dropped(x, p=0.5, training=True, inplace=False):
    """Dropout of a CPU tensor with the mask that the device draws for it."""
    if not training or p == 0:
        return x
    mask = torch.native_dropout(x.detach().to("hologram"), p, True)[1].cpu()
    return x.mul_(mask).div_(1 - p) if inplace else x * mask / (1 - p)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None):
    """torch's formula, with `dropped` where it drops."""
    scores = q @ k.transpose(-2, -1) * (q.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return dropped(scores.softmax(-1), dropout_p) @ v


def here(*values):
    """Copies of the tensors on the device."""
    return tree_map(lambda v: v.hologram() if isinstance(v, torch.Tensor) else v, values)


class DelegateTestCase(HologramTestCase):
    def check(self, function, *arguments, exact=True, what=""):
        """function gives on the device what it gives on the CPU.

        Exact: bit for bit, unless CUDA's kernels compute. Every tensor of the result is on the
        device.
        """
        copies = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, arguments)
        wanted, mine = tree_leaves(function(*copies)), tree_leaves(function(*here(*arguments)))
        self.assertEqual(len(mine), len(wanted), msg=what)
        tolerance = {"rtol": 0, "atol": 0} if exact and not CUDA_KERNELS else {}
        for a, b in zip(mine, wanted, strict=True):
            if isinstance(b, torch.Tensor):
                self.assertEqual(a.device, torch.device("hologram", 0), msg=what)
                self.assertEqual(a.stride(), b.stride(), msg=what)
                self.assertEqual(a.is_conj(), b.is_conj(), msg=what)
                self.assertEqual(a.is_neg(), b.is_neg(), msg=what)
                self.assertEqual(a.cpu(), b, **tolerance, equal_nan=True, msg=what)
            else:
                self.assertEqual(a, b, msg=what)
