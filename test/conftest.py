"""Hooks of every test.

HOLOGRAM_TEST_SHARD=i/n leaves the i-th of n parts of them, 1 <= i <= n. Where torch finds no NVIDIA
GPU those marked `cuda` are left out; where the host cannot touch the device's memory, those marked
`host_memory`, whose number is printed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

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
ON_HOST_MEMORY = pytest.StashKey[int]()


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
    # Where torch's own devices are tested the package is not loaded.
    own_memory = (
        hasattr(torch, "hologram") and not torch.hologram.get_device_properties(0).host_addressable
    )

    def runs(item: pytest.Item) -> bool:
        if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
            return False
        if own_memory and item.get_closest_marker("host_memory") is not None:
            return False
        return shard_of(item.nodeid, count) == index

    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (kept if runs(item) else left).append(item)
    if left:
        items[:] = kept
        config.hook.pytest_deselected(items=left)
    if own_memory:
        count = sum(item.get_closest_marker("host_memory") is not None for item in left)
        config.stash[ON_HOST_MEMORY] = count
        if hasattr(config, "workeroutput"):
            config.workeroutput["on_host_memory"] = count


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # All workers collect the same tests.
    count = getattr(node, "workeroutput", {}).get("on_host_memory")
    if count is not None:
        node.config.stash[ON_HOST_MEMORY] = count


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    count = config.stash.get(ON_HOST_MEMORY, None)
    if count is not None:
        terminalreporter.write_line(
            f"{count} tests about device memory that the host can touch were left out: "
            f"it cannot touch that of {torch.hologram.get_device_name(0)}"
        )
