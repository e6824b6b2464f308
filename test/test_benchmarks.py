"""What the benchmarks of whole models are made of; they themselves take minutes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from common import ROOT
from torch import nn

sys.path.append(str(ROOT / "benchmarks"))  # after test/, which has a common.py as well
import account
import same_draws
import steps
import torchvision_stand_in
import zoo


def kinds(run, device: str) -> dict[str, float]:
    return account.account(run, torch.device(device), 1e6)


@pytest.mark.parametrize("device", ["cpu", "hologram"])
def test_account(device: str) -> None:
    """Products, torch's other kernels and what is neither are told apart, and sum to the time."""
    x = torch.rand(384, 384, device=device)
    product = kinds(lambda: x @ x, device)
    assert product["products"] > 20 * product["torch's others"]
    other = kinds(lambda: x.flip(0), device)
    assert other["torch's others"] > 20 * other["products"]
    nothing = kinds(lambda: x.t().view_as(x.t()), device)
    assert nothing["products"] == nothing["torch's others"] == nothing["ours"] == 0
    for total in (product, other, nothing):
        assert sum(total.values()) == pytest.approx(1e6)


def test_account_of_what_is_delegated_as_a_whole() -> None:
    """The sigmoids inside a delegated GRU are torch's kernels, although the device has its own."""
    network, x = nn.GRU(64, 128).hologram(), torch.rand(16, 8, 64, device="hologram")
    with torch.inference_mode():
        total = kinds(lambda: network(x), "hologram")
    assert total["products"] > 0
    assert total["torch's others"] > 0
    assert account._kind_of("aten::sigmoid_", "", cpu=True) is account.Kind.OTHERS
    assert account._kind_of("aten::sigmoid_", "", cpu=False) is account.Kind.NEITHER
    assert account._kind_of("hologram::pass (add)", "", cpu=False) is account.Kind.OURS


def test_models_are_equal_on_every_device() -> None:
    """Those that need no more than the test environment; `make bench-models` compares all."""
    chosen = [model for model in zoo.MODELS if model.name in ("MLP", "GRU", "LSTM")]
    assert len(chosen) == 3
    for model in chosen:
        cpu, mine = (model.make(torch.device(device)) for device in ("cpu", "hologram"))
        for wanted, got in zip(cpu.predict(), mine.predict(), strict=True):
            torch.testing.assert_close(got.cpu(), wanted)
        torch.testing.assert_close(mine.loss().cpu(), cpu.loss())


def test_same_draws() -> None:
    """Dropout, in training and not, and what layers are left out drop the same everywhere."""
    network = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.4), nn.Tanh(), nn.Dropout(inplace=True))
    results = []
    for device in ("cpu", "hologram"):
        with same_draws.SameDraws(3):
            y = network.to(device)(torch.linspace(-1, 1, 8 * 16, device=device).reshape(8, 16))
            layers = y.new_empty(8, 1).bernoulli_(0.5)
            attention = nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.3)
        results.append([t.detach().cpu() for t in (y, layers, attention)])
    torch.testing.assert_close(results[0], results[1])
    assert 0 < (results[0][0] == 0).double().mean() < 1


def test_stand_in_refuses_to_be_used() -> None:
    transforms = torchvision_stand_in._StandIn("torchvision.transforms")
    assert not isinstance(nn.Linear(1, 1), transforms.Compose)
    with pytest.raises(ImportError, match=r"torchvision\.transforms\.Compose is not there"):
        transforms.Compose([])


def test_operators_of_a_step() -> None:
    """Those that torch's CPU kernels compute: no views, no products, no counters of steps."""
    w = torch.rand(8, 8, requires_grad=True)
    x = torch.rand(4, 8)
    counter = torch.zeros(())

    def run() -> None:
        counter.add_(1)
        y = (x @ w.t()).view(2, 16).exp() + torch.empty(2, 16).fill_(1.0)
        y.relu().sum().backward()
        y.detach().sum().item()

    # The gradient of the sum is made of ones and expanded, and that of w is a product.
    wanted = "exp fill_ add relu sum sum ones_like threshold_backward mul".split()
    found = steps.operators_of(run, [counter]).found
    assert sorted(name.split(".")[1] for name in found.elements()) == sorted(wanted)
    w.grad = None
    with_counter = steps.operators_of(run)
    assert with_counter.found.total() == len(wanted) + 1
    assert with_counter.on_host == with_counter.found


def test_passes_of_a_step() -> None:
    """What is handed to torch's kernels, products apart, is told from passes, and from the host."""
    x, y = torch.rand(64, 64, device="hologram"), torch.zeros(3)
    results = []

    def run() -> None:
        results.append((x @ x).exp().add(1).sqrt())
        results.append(x.flip(0))
        results.append(y + 1)

    run()
    results.clear()
    counted = steps.passes_of(run)
    assert (counted.passes, counted.others) == (1, {"aten::flip": 1})
    assert counted.programs >= 1
    assert steps.operators_of(run).on_host == {"aten.add.Tensor": 1}


def test_figures_of_a_step() -> None:
    """A figure misses its bound by its ratio, or by itself; a slack is added to the CPU's."""
    assert steps.Figure("m", "w", "", 100, 25, 0.25).verdict == "pass"
    assert steps.Figure("m", "w", "", 100, 26, 0.25).verdict == "FAIL"
    assert steps.Figure("m", "w", "", None, 2, 2).verdict == "pass"
    assert steps.Figure("m", "w", "", None, 3, 2).verdict == "FAIL"
    assert steps.Figure("m", "w", "MiB", 10, 30, 1.1, slack=20).verdict == "pass"
    assert steps.Figure("m", "w", "MiB", 10, 31, 1.1, slack=20).verdict == "FAIL"
    assert steps.Figure("m", "w", "", 1, 9, None).verdict == ""


@pytest.mark.skipif(
    torch.hologram.get_device_properties(0).backend != "cpu",
    reason="products end a program where they are no part of one",
)
def test_steps_of_a_perceptron() -> None:
    figures = {figure.what: figure for figure in steps.count("MLP")}
    # Six parameters; seven operators for each of them, not counting what counts the steps.
    assert figures["step()"].cpu == 6 * 7
    assert figures["step()"].verdict == figures["programs"].verdict == "pass"
    assert figures["whole step"].cpu == figures["step()"].cpu + figures["forward+backward"].cpu
    # Parameters, gradients and two moments are held at the end of a step: 28.4 MiB on any device.
    assert 28.4 < steps.peak_memory("MLP", torch.device("cpu"))["total"] < 45
    assert steps.peak_memory("MLP", torch.device("hologram"))["allocated"] > 28.4


@pytest.mark.full
def test_steps_run_whole() -> None:
    """On one model, with a process for each of its figures."""
    written = (steps.RESULTS / "steps.json", steps.RESULTS / "steps.md")
    before = [path.stat().st_mtime_ns if path.exists() else None for path in written]
    command = [sys.executable, steps.__file__, "--quick", "-k", "mlp"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == ("FAIL" in run.stdout), run.stderr
    for what in ("forward+backward", "step()", "whole step", "programs", "first step", "peak"):
        assert f"\nMLP    {what} " in run.stdout
    assert before == [path.stat().st_mtime_ns if path.exists() else None for path in written]
