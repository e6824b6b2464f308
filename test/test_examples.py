"""Every script in examples/ runs, succeeds, and explains itself with --help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUN = [
    pytest.param(path, marks=[pytest.mark.host_memory] if path.name == "zero_copy_numpy.py" else [])
    for path in EXAMPLES
]

# The demo's picture and its twenty passes are `make demo`'s; here it runs a short time.
ARGUMENTS = {"train_digits.py": ["--epochs", "6"]}


def run(example: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(example), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_there_are_examples() -> None:
    assert {"train_digits.py", "pytorch_training.py", "zero_copy_numpy.py"} <= {
        example.name for example in EXAMPLES
    }


@pytest.mark.parametrize("example", RUN, ids=lambda path: path.name)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    done = run(example, tmp_path, *ARGUMENTS.get(example.name, []))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_explains_itself(example: Path, tmp_path: Path) -> None:
    done = run(example, tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {example.name}")
    assert not list(tmp_path.iterdir())
