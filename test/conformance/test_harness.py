"""The harness itself: every kind of difference is found, and the rules of the verdict hold."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from about_torch import DTYPES, HAS_LINEAR_CROSS_ENTROPY
from expected_failures import EXPECTED, REFEREED, UNJUDGED
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.testing._internal.common_utils import TestCase

from . import config, module_phases, op_phases, optim_phases, trace_phases, verdict
from .compare import RESIZE_WARNING, Comparison, Tolerance, Vacuous, aliasing
from .more_modules import EVERY_MODULE
from .transfer import Transfer
from .units import FOREACH_DB, capped, dtype_name, op_db
from .verdict import Key, conclude

CPU = torch.device("cpu")


def compare(on_cpu: Callable[[], Any], on_device: Callable[[], Any], **options: Any) -> Comparison:
    """Compares two functions as if they were one on the CPU and on a device that is the CPU too."""
    comparison = Comparison(TestCase(), CPU, Tolerance(torch.float32))
    calls = itertools.chain([on_cpu, on_device], itertools.repeat(on_cpu))  # with other seeds
    comparison.run("case", lambda device: next(calls)(), **options)
    return comparison


def fail(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def warned() -> torch.Tensor:
    warnings.warn(RESIZE_WARNING, stacklevel=1)
    return torch.ones(2)


BASE = torch.arange(6.0).reshape(2, 3)

DIFFERENCES = {
    "Tensor-likes are not close": (lambda: BASE, lambda: BASE + 1),
    "Scalars are not equal": (lambda: 1, lambda: 2),
    "dtype": (lambda: BASE, lambda: BASE.double()),
    "shape": (lambda: BASE, lambda: BASE.reshape(3, 2)),
    "strides": (lambda: BASE, lambda: BASE.t().contiguous().t()),
    "layout": (lambda: BASE, lambda: BASE.to_sparse()),
    "device is meta": (lambda: BASE, lambda: BASE.to("meta")),
    "requires_grad": (lambda: BASE, lambda: BASE.clone().requires_grad_()),
    "neg bit": (lambda: BASE, lambda: torch._neg_view(-BASE)),
    "conj bit": (lambda: BASE * 1j, lambda: torch.conj(BASE * -1j)),
    "1 items instead of 2": (lambda: [BASE, BASE], lambda: [BASE]),
    "keys": (lambda: {"a": BASE}, lambda: {"b": BASE}),
    "instead of <class 'list'>": (lambda: [BASE], lambda: (BASE,)),
    "the device returns": (fail(RuntimeError("no")), lambda: BASE),
    "the device raises": (lambda: BASE, fail(RuntimeError("no"))),
    r"the device NotImpl": (fail(RuntimeError("no")), fail(NotImplementedError("no"))),
    "warning of a resized": (lambda: torch.ones(2), warned),
}


@pytest.mark.parametrize("message", DIFFERENCES)
def test_a_difference_is_found(message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        compare(*DIFFERENCES[message])


def test_equal_results_pass_and_count() -> None:
    comparison = compare(lambda: {"x": [BASE, 1, None]}, lambda: {"x": [BASE.clone(), 1, None]})
    assert (comparison.samples, comparison.refusals, comparison.exact) == (1, 0, True)


def test_nan_equals_nan_but_not_a_number() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert compare(lambda: nan, nan.clone).exact
    with pytest.raises(AssertionError):
        compare(lambda: nan, lambda: torch.tensor([0.0, 1.0]))


def test_close_results_pass_but_are_not_exact() -> None:
    comparison = compare(lambda: BASE, lambda: BASE * (1 + 1e-6))
    assert comparison.samples == 1
    assert not comparison.exact


def test_undefined_values_are_compared_in_everything_else() -> None:
    assert compare(lambda: BASE, lambda: BASE + 1, values=False).samples == 1
    with pytest.raises(AssertionError, match="strides"):
        compare(lambda: BASE, lambda: BASE.t().contiguous().t(), values=False)


def test_draws_are_seeded_alike() -> None:
    assert compare(lambda: torch.rand(5), lambda: torch.rand(5)).exact


def test_random_numbers_are_compared_in_kind() -> None:
    def draw(fill: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: fill(torch.empty(100))

    def other(fill: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: fill(torch.empty(100)).flip(0)

    assert compare(draw(torch.Tensor.uniform_), other(torch.Tensor.uniform_)).samples == 1
    assert compare(draw(torch.Tensor.normal_), other(torch.Tensor.normal_)).samples == 1
    for wrong, what in (
        (lambda x: x.uniform_() * 2, "at most 1"),
        (lambda x: x.uniform_() - 0.5, "not negative"),
        (lambda x: x.uniform_() / 0, "finite"),
    ):
        with pytest.raises(AssertionError, match=f"random numbers are not .*{what}"):
            compare(draw(torch.Tensor.uniform_), draw(wrong))
    with pytest.raises(AssertionError, match="whole"):
        compare(draw(lambda x: x.bernoulli_()), draw(torch.Tensor.uniform_))
    with pytest.raises(AssertionError, match="dtype"):
        compare(draw(torch.Tensor.uniform_), draw(lambda x: x.uniform_().double()))
    with pytest.raises(AssertionError, match="not close"):
        compare(lambda: BASE, lambda: BASE + torch.rand(6).reshape(2, 3) + 1)


def test_nothing_compared_is_a_failure() -> None:
    comparison = compare(fail(RuntimeError("cannot")), fail(RuntimeError("cannot")))
    with pytest.raises(Vacuous, match="cannot"):
        comparison.result()
    assert comparison.result(refusals_count=True) is comparison
    with pytest.raises(Vacuous):
        compare(fail(AssertionError()), fail(AssertionError())).result(refusals_count=True)


def test_aliasing_tells_views_from_copies() -> None:
    x = torch.zeros(4)
    assert aliasing([x, x[1:], x.clone()], [x]) == [
        "no view in the storage of 0 at offset 0, is 0",
        "view in the storage of 0 at offset 1",
        "own storage",
    ]


def test_transfer_keeps_layout_and_sharing() -> None:
    base = torch.arange(12.0)
    view = base.as_strided((3, 2), (1, 3), 2)
    expanded = base[:1].expand(5)
    moved = Transfer(config.DEVICE)([base, view, expanded, base])
    assert [t.stride() for t in moved] == [t.stride() for t in (base, view, expanded, base)]
    assert moved[3] is moved[0]
    assert moved[0].device.type == torch.device(config.DEVICE).type
    moved[0].fill_(7)
    assert moved[1].tolist() == [[7, 7]] * 3
    assert moved[2].tolist() == [7] * 5
    assert base.tolist() == list(range(12))


def test_transfer_keeps_bits_flags_and_plain_values() -> None:
    source = torch.conj(torch.tensor([1 + 2j]))
    moved = Transfer(config.DEVICE)({"z": source, "device": "cpu", "n": (1, "x", None)})
    assert moved["z"].is_conj()
    assert moved["z"].tolist() == [1 - 2j]
    assert torch.device(moved["device"]).type == torch.device(config.DEVICE).type
    assert moved["n"] == (1, "x", None)
    assert Transfer(config.DEVICE)(torch.ones(2).requires_grad_()).requires_grad


def test_samples_are_capped_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SAMPLE_CAPS", {"some.op": 3})
    monkeypatch.setattr(config, "FULL", False)
    assert capped("some.op", list(range(11))) == [0, 5, 10]
    assert capped("some.op", [1, 2]) == [1, 2]
    assert capped("other.op", list(range(11))) == list(range(11))
    monkeypatch.setattr(config, "FULL", True)
    assert capped("some.op", list(range(11))) == list(range(11))


KEY = Key("ops", "some.op", "float32", "forward")
GOOD = Comparison(TestCase(), CPU, Tolerance(torch.float32))


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict, dict]]:
    """Empty lists in place of the real ones, and "meta" as the name of the device under test."""
    expected: dict[str, str] = {}
    unjudged: dict[str, str] = {}
    monkeypatch.setattr(verdict, "EXPECTED", expected)
    monkeypatch.setattr(verdict, "UNJUDGED", unjudged)
    monkeypatch.setattr(config, "DEVICE", "meta")
    monkeypatch.setattr(config, "JSON_PATH", None)
    yield expected, unjudged


def broken(*device_types: str) -> Callable[[torch.device], Comparison]:
    """A unit that fails on these devices."""

    def run(device: torch.device) -> Comparison:
        if device.type in device_types:
            raise ValueError("broken")
        return GOOD

    return run


def test_verdict_passes_what_passes(lists: tuple[dict, dict]) -> None:
    conclude(KEY, broken())


def test_verdict_of_a_fault_of_the_device(lists: tuple[dict, dict]) -> None:
    with pytest.raises(ValueError, match="broken"):
        conclude(KEY, broken("meta"))
    lists[0]["ops:some.op:*:forward"] = "known"
    with pytest.raises(pytest.xfail.Exception, match="known"):
        conclude(KEY, broken("meta"))


def test_verdict_of_what_cannot_be_judged(lists: tuple[dict, dict]) -> None:
    with pytest.raises(AssertionError, match="cannot be judged"):
        conclude(KEY, broken("meta", "cpu"))
    lists[1][str(KEY)] = "random"
    with pytest.raises(pytest.xfail.Exception, match="not judged: random"):
        conclude(KEY, broken("meta", "cpu"))


@pytest.mark.parametrize("which", [0, 1])
def test_verdict_is_strict(lists: tuple[dict, dict], which: int) -> None:
    lists[which][str(KEY)] = "outdated"
    with pytest.raises(pytest.fail.Exception, match="take it off"):
        conclude(KEY, broken())


def every_key() -> Iterator[Key]:
    dtypes = [dtype_name(dtype) for dtype in DTYPES]
    for database, names, phases in (
        ("ops", [op.full_name for op in op_db], op_phases.PHASES),
        ("foreach", [op.full_name for op in FOREACH_DB], op_phases.FOREACH_PHASES),
        ("modules", [info.name for info in module_db], module_phases.PHASES),
        ("traced", [info.name for info in EVERY_MODULE], trace_phases.PHASES),
        ("optims", [info.name for info in optim_db], optim_phases.PHASES),
    ):
        for name in names:
            for dtype in dtypes:
                for phase in phases:
                    yield Key(database, name, dtype, phase)


def exists(pattern: str, keys: list[Key]) -> bool:
    """Whether there are units that a pattern matches, or an older torch cannot have any."""
    is_newer = "LinearCrossEntropy" in pattern or "linear_cross_entropy" in pattern
    if is_newer and not HAS_LINEAR_CROSS_ENTROPY:
        return True
    return any(verdict.listed({pattern: "x"}, key) for key in keys)


def test_every_listed_unit_exists() -> None:
    keys = list(every_key())
    for pattern in (*EXPECTED, *UNJUDGED):
        assert exists(pattern, keys), pattern


def test_every_refereed_unit_exists() -> None:
    keys = list(every_key())
    for pattern in REFEREED:
        assert exists(f"{pattern}:*", keys), pattern


def test_few_failures_are_expected() -> None:
    keys = list(every_key())
    assert sum(verdict.listed(EXPECTED, key) is not None for key in keys) <= 0.005 * len(keys)
