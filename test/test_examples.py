"""Every script in examples/ runs and explains itself with --help; train_gpt.py can fail, too."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
from common import BACKEND, GPUS, ROOT
from ranks import run_ranks

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUN = [
    pytest.param(path, marks=[pytest.mark.host_memory] if path.name == "zero_copy_numpy.py" else [])
    for path in EXAMPLES
]

# The demo's picture and its twenty passes are `make demo`'s; here it runs a short time.
ARGUMENTS = {"train_digits.py": ["--epochs", "6"], "train_gpt.py": ["--quick", "--more"]}

# Its processes have a device each, all of one backend; of a single GPU it would be another.
VARIABLES = {
    "train_gpt.py": {
        "HOLOGRAM_BACKENDS": "cpu" if GPUS == 1 else BACKEND,
        "HOLOGRAM_CPU_DEVICES": "2",
        "HOLOGRAM_TEST_SIM_DEVICES": "2",
        "HOLOGRAM_TEST_CUDA_DEVICES": "2",
    }
}


def run(example: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(example), *arguments],
        env={**os.environ, "PYTHONPATH": path, **VARIABLES.get(example.name, {})},
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


@pytest.fixture(scope="module")
def train_gpt():
    return run_path(str(ROOT / "examples" / "train_gpt.py"))


@pytest.mark.parametrize(
    "changed, found",
    [
        ({}, None),
        ({"losses": [5.0, 4.0 + 1e-5, 3.0] + 20 * [2.0]}, None),
        ({"losses": [5.0, 4.0 + 3e-5, 3.0] + 20 * [2.0]}, "the loss of step 2 is off by 3.0e-05 >"),
        ({"losses": [5.0, 4.0, 3.0] + 19 * [2.0] + [2.0 + 2e-3]}, None),  # the twin is off by 1e-4
        ({"losses": [5.0, 4.0, 3.0] + 19 * [2.0] + [2.0 + 4e-3]}, "the loss of step 23 is off by"),
        (
            {"losses": [5.0, 4.0, 3.0] + 19 * [2.0] + [math.nan]},
            "the loss of step 23 is off by nan",
        ),
        ({"losses": 23 * [5.0]}, "the loss fell from 5.000 to 5.000 only"),
        ({"gradient": 2.0}, "the norm of the first gradients is off by 1.0e+00"),
    ],
)
def test_losses_are_compared(train_gpt, changed: dict, found: str | None) -> None:
    def made(name: str, **its: object):
        made = {"losses": [5.0, 4.0, 3.0] + 20 * [2.0], "gradient": 1.0, **its}
        return train_gpt["Run"](name, 1, seconds=1.0, held_bytes=None, peak_bytes=None, **made)

    twin = made("twin", losses=[5.0, 4.0, 3.0] + 19 * [2.0] + [2.0 + 1e-4])
    told = train_gpt["problems"]([made("one"), twin, made("ddp"), made("fsdp2", **changed)])
    assert told == [] if found is None else any(found in line for line in told), told
    assert not any("ddp" in line for line in told)


def test_gradients_that_are_not_averaged_fail(tmp_path: Path) -> None:
    """What DDP does is left out: each process learns from its own part of the batch."""
    program = f"""
        import sys
        sys.path.insert(0, {str(ROOT / "examples")!r})
        import train_gpt
        class Apart(train_gpt.DistributedDataParallel):
            def forward(self, *inputs):
                with self.no_sync():
                    return super().forward(*inputs)
        train_gpt.DistributedDataParallel = Apart
        sys.exit(train_gpt.main())
    """
    arguments = ["--steps", "11", "--output", str(tmp_path / "picture.png")]
    first, second = run_ranks(program, *arguments, env=VARIABLES["train_gpt.py"], check=False)
    assert (first.returncode, second.returncode) == (1, 0), first.stderr + second.stderr
    assert "FAILED: ddp: the loss of step 2 is off by" in first.stderr, first.stderr
    assert "fsdp2: the" not in first.stderr
