"""Fixtures and hooks of the conformance suite."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator

import pytest
import torch

from . import config
from .op_phases import PHASES

# Reserved before pytest's capture replaces file descriptor 2: a timeout has to be seen.
_STDERR = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")


def pytest_unconfigure() -> None:
    _STDERR.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Kills the process when a test hangs; under xdist the test is reported as the crashed one."""
    faulthandler.dump_traceback_later(config.TIMEOUT_SECONDS, exit=True, file=_STDERR)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the phases of one unit side by side, so that they share its samples."""

    def unit(item: pytest.Item) -> str:
        # test_forward_nn_functional_gelu_hologram_float32 without its phase
        name = item.name.removeprefix("test_")
        phases = (phase for phase in PHASES if name.startswith(f"{phase}_"))
        phase = max(phases, key=len, default="")
        return name.removeprefix(phase)

    files = ("test_ops.py", "test_foreach.py")
    places = [index for index, item in enumerate(items) if item.path.name in files]
    ordered = sorted((items[index] for index in places), key=unit)
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


@pytest.fixture(autouse=True, scope="module")
def one_thread_per_worker() -> Iterator[None]:
    """Under xdist every process computes on one thread: together they fill the machine."""
    threads = torch.get_num_threads()
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
