"""What the benchmarks of whole models are made of; they themselves take minutes."""

from __future__ import annotations

import sys

import pytest
import torch
from common import ROOT
from torch import nn

sys.path.append(str(ROOT / "benchmarks"))  # after test/, which has a common.py as well
import account
import same_draws
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
