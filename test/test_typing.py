"""What a type checker, an editor and `import *` see of the package."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from common import ROOT, run_python

import torch_hologram

# A user's file. Lines that mypy has to complain of end in its error code, the others are right.
PROGRAM = """
import numpy as np
import torch
import torch_hologram as hg
from torch_hologram import ops

executor = hg.Executor("cpu", device="hologram:0")
a, b = executor.allocate(3), executor.allocate(3)
ops.vector_add(executor, a, b, a)
ops.vector_clip(executor, a, b, -1.0, 1.0, n=2)
ops.gemm(executor, a, b, b, 1, 3, 1)
total: float = ops.reduce_sum(executor, a)
swish: hg.PointwiseOperator = hg.pointwise("swish", "x * sigmoid(x)")
tensor: torch.Tensor = swish(hg.from_numpy(np.zeros(3)))
buffer: hg.Buffer = hg.tensor_to_buffer(executor, tensor)
model = torch.nn.Sequential(hg.nn.Linear(executor, 3, 4), hg.nn.ReLU(executor))
loss: float = hg.train_step(
    model, torch.optim.SGD(model.parameters()), hg.nn.MSELoss(executor), tensor, buffer
)
same: bool = hg.get_default_backend() == "cpu"
version: str = hg.__version__
reveal_type(hg.Executor)  # torch_hologram.backend.BackendType
reveal_type(hg.from_numpy)  # torch._tensor.Tensor
reveal_type(ops.mse_loss)  # -> float

hg.nonexistent  # [attr-defined]
hg.Executor(3)  # [arg-type]
executor.allocate("3")  # [arg-type]
hg.pointwise("f")  # [call-arg]
hg.from_numpy("array")  # [arg-type]
ops.vector_add(executor, a, b)  # [call-arg]
ops.vector_sum(executor, a)  # [attr-defined]
ops.reduce_sum(executor, a, 2.0)  # [arg-type]
hg.nn.Linear(3, 4)  # [call-arg]
wrong: str = ops.reduce_sum(executor, a)  # [assignment]
"""


def test_mypy_sees_types(tmp_path: Path) -> None:
    """With the project's settings, which are strict, and the cache of `make lint`."""
    pytest.importorskip("mypy")  # not in the environments of other versions of torch
    lines = PROGRAM.strip().splitlines()
    (tmp_path / "user.py").write_text("\n".join(lines))
    command = ("-m", "mypy", "--no-error-summary", "--show-error-codes", "--no-pretty", "user.py")
    options = ("--config-file", ROOT / "pyproject.toml", "--cache-dir", ROOT / ".mypy_cache")
    process = subprocess.run(
        [sys.executable, *command, *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1, process.stdout + process.stderr
    said: dict[int, list[str]] = {}
    for message in process.stdout.splitlines():
        place, _, text = message.partition(" ")
        said.setdefault(int(place.split(":")[1]), []).append(text)
    for number, line in enumerate(lines, 1):
        _, _, expected = line.partition("  # ")
        got = " ".join(said.pop(number, []))
        if expected:
            assert expected in got, (line, got)
        else:
            assert not got, (line, got)
    assert not said


def test_the_types_are_in_the_package() -> None:
    for name in ("py.typed", "_C.pyi"):
        assert resources.files(torch_hologram).joinpath(name).is_file()


def test_names_are_listed() -> None:
    written = set(torch_hologram.__all__)
    assert written == {*torch_hologram._LAZY, "__version__", "flush_before", "include_path"}
    assert written <= set(dir(torch_hologram))
    for name in written:
        assert getattr(torch_hologram, name) is not None


def test_import_star_and_laziness() -> None:
    run_python(
        """
        import sys, torch
        lazy = {"executor", "backend", "ops", "functional", "nn", "compat", "custom", "interop"}
        def loaded():
            return {name.split(".")[1] for name in sys.modules if "torch_hologram." in name}
        assert "hologram" in torch._C._get_privateuse1_backend_name()
        import torch_hologram
        dir(torch_hologram)
        assert not loaded() & lazy, loaded() & lazy
        from torch_hologram import *
        assert lazy <= loaded()
        assert Executor is torch_hologram.Executor and ops.vector_add and pointwise and nn.Linear
        """
    )
