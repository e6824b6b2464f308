"""A plugin of pytest's: each failure at once, a line in the file HOLOGRAM_TEST_FAILURES.

HOLOGRAM_TEST_ONLY names a file with the tests that are run, a line each; all, where it is not set.

A failed assertion of a CUDA kernel takes the GPU from its process. A worker of pytest-xdist ends
after such a test, and another one goes on with the rest: they are not judged by what is left of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

# What the device says then, and what torch says.
LOST = (
    "device-side assert triggered",
    "illegal memory access",
    "cannot be used any more by this process",
)
# Of this process: whether it is a worker, tests that have failed, whether one of them lost the GPU.
worker = False
noted: set[str] = set()
lost = False


def gpu_in_use() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    if "HOLOGRAM_TEST_ONLY" not in os.environ:
        return
    wanted = set(Path(os.environ["HOLOGRAM_TEST_ONLY"]).read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
    items[:] = [item for item in items if item.nodeid in wanted]


def pytest_configure(config: Any) -> None:
    global worker
    worker = hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    # The worker has ended after the test, whose failure is noted.
    report.restarted = crashitem in noted


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    if getattr(report, "restarted", False):
        return "workers restarted", "w", "WORKER RESTARTED"
    return None


def pytest_runtest_logreport(report: Any) -> None:
    global lost
    if not report.failed:
        return
    text = str(report.longrepr)
    if worker:  # the process of the controller hears of it, and of crashes too
        lost = lost or any(words in text for words in LOST)
        return
    if getattr(report, "restarted", False):
        return
    noted.add(report.nodeid)
    if "HOLOGRAM_TEST_FAILURES" not in os.environ:
        return
    reasons = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
    # The last line is that of a program that failed.
    reasons = list(dict.fromkeys([*reasons[:3], *reasons[3:][-1:]]))
    reason = " | ".join(filter(None, reasons)) or text[-300:].replace("\n", " ")
    with open(os.environ["HOLOGRAM_TEST_FAILURES"], "a") as file:
        file.write(f"{report.nodeid} [{report.when}] {reason[:400]}\n")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    # The reports are sent; the controller takes it that the process died in this test.
    if lost and worker and gpu_in_use():
        os._exit(1)
