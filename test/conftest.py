"""Hooks of every test.

HOLOGRAM_TEST_SHARD=i/n leaves the i-th of n parts of them, 1 <= i <= n. Where torch finds no NVIDIA
GPU those marked `cuda` are left out. What the device is leaves out others, whose numbers are
printed: `left_out` says which. Where there is a GPU, too, the device is the CPU unless
HOLOGRAM_BACKENDS says otherwise.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if Path("/dev/nvidiactl").exists():  # torch reads it when it is imported
    os.environ.setdefault("HOLOGRAM_BACKENDS", "cpu")

import pytest
import torch

# Where torch's CUDA kernels run for the device they are compared with the CPU's. At once: what
# torch's own tests use forbids it later.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def parse_shard(text: str) -> tuple[int, int]:
    """(i, n) for "i/n"; raises pytest.UsageError unless 1 <= i <= n."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise pytest.UsageError(
            f"HOLOGRAM_TEST_SHARD is {text!r}, expected i/n with 1 <= i <= n, for example 2/4"
        )
    return int(index), int(count)


def shard_of(test_id: str, count: int) -> int:
    """The shard from 1 to `count` that a test is in: by its id alone, whatever else is collected.

    A checksum and not hash(), which differs from one process to the next.
    """
    return 1 + zlib.crc32(test_id.encode()) % count


SHARD = pytest.StashKey[tuple[int, int]]()
# Of each marker that leaves tests out here, how many.
LEFT_OUT = pytest.StashKey[dict[str, int]]()


def left_out() -> dict[str, str]:
    """The markers whose tests are left out on this machine, each with what is printed of them."""
    if not hasattr(torch, "hologram"):  # where torch's own devices are tested
        return {}
    from common import CUDA_KERNELS, HOST_MEMORY

    name = torch.hologram.get_device_name(0)
    found = {}
    if not HOST_MEMORY:
        found["host_memory"] = (
            "about device memory that the host can touch were left out: "
            f"it cannot touch that of {name}"
        )
    if CUDA_KERNELS:
        found["cpu_kernels"] = (
            "about what torch's CPU kernels do that its CUDA kernels do otherwise were left out: "
            f"those run for {name}"
        )
        found["device_assert"] = (
            "that make a CUDA kernel assert were left out: it would take "
            f"{name} from the process (test/test_cuda_asserts.py makes such calls)"
        )
    if torch.cuda.device_count() == 1:
        found["two_gpus"] = "that need two GPUs were left out: this machine has one"
    return found


@pytest.fixture(autouse=True, scope="session")
def groups_are_kernels() -> Iterator[None]:
    """Where the simulated device's groups are GPU kernels, what it has run is no other code."""
    yield
    if os.environ.get("HOLOGRAM_TEST_SIM_KERNELS"):
        from sim_device import unexpected_refusals

        assert unexpected_refusals() == []


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("HOLOGRAM_TEST_SIM_VENDOR") == "mtia":
        from vendor import load_vendor

        load_vendor()  # before a device is used
    config.stash[SHARD] = parse_shard(os.environ.get("HOLOGRAM_TEST_SHARD", "1/1"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    index, count = config.stash[SHARD]
    reasons = left_out()

    def marker_of(item: pytest.Item) -> str | None:
        """The first that leaves it out."""
        return next((name for name in reasons if item.get_closest_marker(name) is not None), None)

    def runs(item: pytest.Item) -> bool:
        if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
            return False
        return marker_of(item) is None and shard_of(item.nodeid, count) == index

    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (kept if runs(item) else left).append(item)
    if left:
        items[:] = kept
        config.hook.pytest_deselected(items=left)
    markers = [marker_of(item) for item in left]
    counts = {name: markers.count(name) for name in reasons}
    config.stash[LEFT_OUT] = counts
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = counts


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # All workers collect the same tests.
    counts = getattr(node, "workeroutput", {}).get("left_out")
    if counts is not None:
        node.config.stash[LEFT_OUT] = counts


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    counts = config.stash.get(LEFT_OUT, {})
    for name, reason in left_out().items() if counts else ():
        if counts[name] or name == "host_memory":
            terminalreporter.write_line(f"{counts[name]} tests {reason}")
