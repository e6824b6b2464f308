"""tools/note_failures.py: what it notes, and that the tests go on when the GPU is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT

CONFTEST = """
import note_failures

note_failures.gpu_in_use = lambda: {gpu}
"""
TESTS = """
import os
import pytest

processes = []

def run():
    processes.append(os.getpid())
    return len(processes)

def test_one(): run()
def test_lost():
    run()
    raise RuntimeError("device-side assert triggered (CUDA_ERROR_ASSERT)")
def test_next(): assert run() == {next}
def test_wrong():
    raise ValueError("this")
@pytest.fixture
def broken():
    yield
    raise ValueError("of the teardown")
def test_teardown(broken): pass
def test_crash(): os._exit(3)
def test_last(): run()
"""


@pytest.mark.parametrize("gpu", [True, False])
def test_failures_are_noted_once_and_a_worker_ends_without_its_gpu(
    tmp_path: Path, gpu: bool
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(gpu=gpu))
    # In a process of its own, or in that of the tests before.
    (tmp_path / "test_them.py").write_text(TESTS.replace("{next}", "1" if gpu else "3"))
    failures = tmp_path / "failures.txt"
    options = ["-q", "-p", "no:cacheprovider", "-p", "note_failures", "-n", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--dist", "worksteal", str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "tools"),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "HOLOGRAM_TEST_FAILURES": str(failures),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    noted = [line.split("::", 1)[1] for line in failures.read_text().splitlines()]
    assert noted == [
        "test_lost [call] RuntimeError: device-side assert triggered (CUDA_ERROR_ASSERT)",
        "test_wrong [call] ValueError: this",
        "test_teardown [teardown] ValueError: of the teardown",
        "test_crash [???] worker 'gw1' crashed while running 'test_them.py::test_crash'"
        if gpu
        else "test_crash [???] worker 'gw0' crashed while running 'test_them.py::test_crash'",
    ], done.stdout
    assert ("1 workers restarted" in done.stdout) == gpu, done.stdout
