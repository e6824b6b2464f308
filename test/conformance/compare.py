"""Runs a call on two devices and compares everything that can be observed of it."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from expected_failures import REFEREED
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_utils import TestCase

from .config import DEVICE, MANY, OTHER_SEEDS, SEED
from .transfer import in_float64, tensors_of

RESIZE_WARNING = "An output with one or more elements was resized"

# torch's CPU kernels compute float16 in float32 and round once where they are vectorised, but round
# after each step in the elements that remain and in strided tensors: `a + alpha * b` depends on
# where an element lies. The device rounds once everywhere. With rtol, 1e-3 by default, this is what
# test_compare_cpu of PyTorch's test_ops.py allows between a device and the CPU.
FLOAT16_ATOL = 1e-3

# Of the same cancelling sum in two orders, the greatest of a few dozen rounding errors differ by up
# to so much by chance.
SPREAD = 5

CPU = torch.device("cpu")


class Vacuous(AssertionError):
    """No sample of a unit led to a comparison."""


@dataclass
class Outcome:
    """What a call did: its value or its exception, and whether it warned of a resized output."""

    value: Any = None
    error: Exception | None = None
    resize_warning: bool = False


def _seed(seed: int) -> None:
    """`torch.manual_seed` for the two devices compared; it also visits those that are not here."""
    torch.default_generator.manual_seed(seed)
    if DEVICE != "cpu":
        torch.get_device_module(DEVICE).manual_seed_all(seed)


def observe(call: Callable[[], Any], seed: int = SEED) -> Outcome:
    """Runs `call` with freshly seeded generators and returns what happened; never raises."""
    _seed(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = Outcome(value=call())
        except Exception as error:
            # Without its traceback: that would keep every tensor of the failed call alive.
            outcome = Outcome(error=error.with_traceback(None))
    outcome.resize_warning = any(RESIZE_WARNING in str(item.message) for item in caught)
    return outcome


class NotClose(AssertionError):
    """Numbers differ by more than the tolerance."""


def referee_of(unit: str, dtype: torch.dtype) -> torch.dtype | None:
    """The dtype of a unit whose numbers float64 decides on, see REFEREED; None for all others."""
    key = f"{unit}:{str(dtype).removeprefix('torch.')}"
    return dtype if any(fnmatch.fnmatchcase(key, pattern) for pattern in REFEREED) else None


@dataclass
class Tolerance:
    """atol and rtol as for `TestCase.assertEqual`.

    None takes PyTorch's default for the dtype of the result or for `dtype`, in which the unit
    computes, whichever is larger: a float32 computation stored as float64 is no more exact for it.
    """

    dtype: torch.dtype
    atol: float | None = None
    rtol: float | None = None

    def of(self, result: Any) -> tuple[float | None, float | None]:
        """(atol, rtol) for comparing `result`; (None, None) leaves both to assertEqual."""
        if self.atol is not None or not isinstance(result, torch.Tensor):
            return self.atol, self.rtol
        rtol, atol = default_tolerances(result.dtype, self.dtype)
        if torch.float16 in (result.dtype, self.dtype):
            atol = max(atol, FLOAT16_ATOL)
        return atol, rtol


@dataclass
class Comparison:
    """Compares results of the device under test with the CPU's.

    `values=False` leaves out the numbers (uninitialised memory) and keeps the rest: device, dtype,
    layout, shape, strides, conj and neg bits, requires_grad, aliasing. Numbers that differ from the
    CPU's and change with its seed are random: of these the kind is compared (`_kind`).
    `exact` stays true while all numbers were equal, not merely close; `samples` counts the calls
    that returned on both devices and were equal, `refusals` those that both refused with an error.
    """

    test: TestCase
    device: torch.device
    tolerance: Tolerance
    samples: int = 0
    refusals: int = 0
    exact: bool = True
    last_error: Exception | None = None

    def run(
        self,
        what: str,
        attempt: Callable[[torch.device], Any],
        *,
        reference: Callable[[torch.device], Any] | None = None,
        values: bool = True,
        strides: bool = True,
        on_device: bool = True,
        referee: torch.dtype | None = None,
    ) -> None:
        """Runs `attempt(device)` on the CPU and on the device and compares what the two return.

        An attempt makes its own copies of its inputs, and returns nested tensors and plain values,
        or None when there is nothing to compare. `reference`: what the CPU runs in its place.
        `values=False`: the numbers are undefined. `strides`: whether they have to be the same.
        `on_device`: whether the tensors belong on the device. `referee`: where numbers of this
        dtype differ by more than the tolerance, what the CPU computes in float64 decides. Raises
        AssertionError at the first difference.
        """
        expected = observe(lambda: (reference or attempt)(CPU))
        actual = observe(lambda: attempt(self.device))
        if not self.outcomes(expected, actual, what) or expected.value is None:
            return

        def compare(values: bool) -> None:
            self.trees(
                expected.value,
                actual.value,
                what,
                values=values,
                strides=strides,
                on_device=on_device,
            )

        try:
            compare(values)
        except NotClose:
            others = _with_other_seeds(lambda: (reference or attempt)(CPU))
            if not all(self._same_values(expected.value, other) for other in others):
                compare(values=False)
                self._kinds([expected.value, *others], actual.value, what)
            elif referee is None:
                raise
            else:
                with in_float64(referee):
                    exact = observe(lambda: (reference or attempt)(CPU))
                if exact.error is not None or not self._is_as_exact(
                    expected.value, actual.value, exact.value
                ):
                    raise
        self.samples += 1

    def _same_values(self, one: Any, other: Any) -> bool:
        try:
            for a, b in zip(tensors_of(one), tensors_of(other), strict=True):
                self.test.assertEqual(a, b, atol=0, rtol=0, equal_nan=True)
        except (AssertionError, ValueError):
            return False
        return True

    def _kinds(self, expected: list[Any], actual: Any, what: str) -> None:
        """Checks that random numbers are what all of the CPU's are, whatever the seed."""
        all_of_them = zip(*(tensors_of(one) for one in expected), strict=True)
        for theirs, mine in zip(all_of_them, tensors_of(actual), strict=True):
            missing = set.intersection(*(_kind(one) for one in theirs)) - _kind(mine)
            if missing:
                raise AssertionError(f"{what}: random numbers are not {sorted(missing)}")

    def _is_as_exact(self, expected: Any, actual: Any, exact: Any) -> bool:
        """Whether the device is within the tolerance of float64, or no further off than the CPU.

        Of each tensor the greatest error counts, times SPREAD for the CPU.
        """
        for cpu, device, truth in zip(
            tensors_of(expected), tensors_of(actual), tensors_of(exact), strict=True
        ):
            # The memory behind an `out` of float64 is another; its values are compared as results.
            if not truth.is_floating_point() or truth.shape != cpu.shape:
                continue
            truth = truth.detach()
            cpu, device = (one.detach().cpu().double() for one in (cpu, device))
            finite = truth.isfinite()
            if not torch.equal(cpu[~finite].nan_to_num(), device[~finite].nan_to_num()):
                return False
            atol, rtol = default_tolerances(self.tolerance.dtype, self.tolerance.dtype)
            error = (device - truth)[finite].abs()
            allowed = atol + rtol * truth[finite].abs()
            if bool((error <= allowed).all()):
                continue
            if not bool(error.max() <= SPREAD * (cpu - truth)[finite].abs().max()):
                return False
        return True

    def result(self, *, refusals_count: bool = False) -> Comparison:
        """This comparison; raises Vacuous when no sample got as far as being compared.

        With `refusals_count`, samples that both devices refuse with a RuntimeError are enough: some
        operators have no in-place form in some dtypes, and the device has to say so too.
        """
        if self.samples == 0 and not (refusals_count and self.refusals):
            raise Vacuous(f"nothing to compare; the CPU's last error: {self.last_error!r}")
        return self

    def outcomes(self, expected: Outcome, actual: Outcome, what: str) -> bool:
        """Checks that both returned or both raised the same exception type.

        Returns True when there are values to compare; raises AssertionError, or the device's own
        exception where only the device raised.
        """
        if expected.error is not None:
            self.last_error = expected.error
            if actual.error is None:
                raise AssertionError(
                    f"{what}: the CPU raises {expected.error!r}, the device returns"
                )
            if type(actual.error) is not type(expected.error):
                raise AssertionError(
                    f"{what}: the CPU raises {expected.error!r}, the device {actual.error!r}"
                )
            self.refusals += isinstance(expected.error, RuntimeError)
            return False
        if actual.error is not None:
            raise AssertionError(
                f"{what}: the device raises {type(actual.error).__name__}: {actual.error}"
            ) from actual.error
        if expected.resize_warning != actual.resize_warning:
            raise AssertionError(
                f"{what}: warning of a resized output: {expected.resize_warning} on the CPU, "
                f"{actual.resize_warning} on the device"
            )
        return True

    def trees(
        self,
        expected: Any,
        actual: Any,
        what: str,
        *,
        values: bool = True,
        strides: bool = True,
        on_device: bool = True,
    ) -> None:
        """Compares nested results leaf by leaf; `on_device` says where the tensors must be."""
        if type(expected) is not type(actual):
            raise AssertionError(f"{what}: {type(actual)} instead of {type(expected)}")
        if isinstance(expected, torch.Tensor):
            self._tensors(expected, actual, what, values, strides, on_device)
        elif isinstance(expected, dict):
            if list(expected) != list(actual):
                raise AssertionError(f"{what}: keys {list(actual)} instead of {list(expected)}")
            for key in expected:
                self.trees(
                    expected[key],
                    actual[key],
                    f"{what}[{key!r}]",
                    values=values,
                    strides=strides,
                    on_device=on_device,
                )
        elif isinstance(expected, (list, tuple)) and not isinstance(expected, torch.Size):
            if len(expected) != len(actual):
                raise AssertionError(f"{what}: {len(actual)} items instead of {len(expected)}")
            for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
                self.trees(
                    one,
                    other,
                    f"{what}[{index}]",
                    values=values,
                    strides=strides,
                    on_device=on_device,
                )
        elif isinstance(expected, torch.device):
            if actual.type != (self.device.type if on_device else expected.type):
                raise AssertionError(f"{what}: {actual!r} instead of {self.device!r}")
        elif values and not _identical(expected, actual):
            self._numbers(expected, actual, what)

    def _tensors(
        self,
        expected: torch.Tensor,
        actual: torch.Tensor,
        what: str,
        values: bool,
        strides: bool,
        on_device: bool,
    ) -> None:
        wanted = self.device.type if on_device and expected.device.type == "cpu" else None
        wanted = wanted or expected.device.type
        for attribute, one, other in (
            ("device", wanted, actual.device.type),
            ("dtype", expected.dtype, actual.dtype),
            ("layout", expected.layout, actual.layout),
            ("shape", expected.shape, actual.shape),
            ("requires_grad", expected.requires_grad, actual.requires_grad),
            ("conj bit", expected.is_conj(), actual.is_conj()),
            ("neg bit", expected.is_neg(), actual.is_neg()),
        ):
            if one != other:
                raise AssertionError(f"{what}: {attribute} is {other}, on the CPU {one}")
        if strides and expected.layout is torch.strided and not expected.is_nested:
            # The stride of a dimension of size 0 or 1 addresses nothing and may be anything.
            if not _same_strides(expected, actual):
                raise AssertionError(
                    f"{what}: strides are {actual.stride()}, on the CPU {expected.stride()} "
                    f"(shape {tuple(expected.shape)})"
                )
        if values:
            self._numbers(expected.detach(), actual.detach(), what)

    def _numbers(self, expected: Any, actual: Any, what: str) -> None:
        if isinstance(expected, torch.Tensor):
            if expected.device.type == "meta":
                return
            actual = actual.cpu()
            dense = expected.layout is torch.strided and not expected.is_nested
            # Two orders of magnitude faster than assertEqual, and true for nearly every result.
            if dense and not expected.is_quantized and _equal(expected, actual):
                return
        try:
            self.test.assertEqual(actual, expected, atol=0, rtol=0, equal_nan=True)
        except AssertionError:
            self.exact = False
            atol, rtol = self.tolerance.of(expected)
            try:
                self.test.assertEqual(
                    actual,
                    expected,
                    atol=atol,
                    rtol=rtol,
                    equal_nan=True,
                    msg=lambda text: f"{what}: {text}",
                )
            except AssertionError as error:
                raise NotClose(str(error)) from None


def _identical(expected: Any, actual: Any) -> bool:
    """Whether two values that are no tensors are the same without PyTorch's tolerant comparison."""
    return expected is actual or (isinstance(expected, (bool, int, str)) and expected == actual)


def _with_other_seeds(call: Callable[[], Any]) -> list[Any]:
    """What a call returns on the CPU with other seeds, also where it seeds by itself."""
    values = []
    manual_seed = torch.manual_seed
    for step in range(1, OTHER_SEEDS + 1):
        with mock.patch.object(torch, "manual_seed", lambda s, k=step: manual_seed(s + k)):
            outcome = observe(call, SEED + step)
        if outcome.error is None:
            values.append(outcome.value)
    return values


def _kind(tensor: torch.Tensor) -> set[str]:
    """What random numbers are that is no coincidence: the range that they lie in, and whole."""
    few = tensor.layout is not torch.strided or tensor.is_nested or tensor.numel() < MANY
    if few or tensor.is_complex() or tensor.is_quantized:
        return set()
    numbers = tensor.detach().cpu().double()
    tests = {
        "finite": numbers.isfinite(),
        "not negative": numbers >= 0,
        "not positive": numbers <= 0,
        "at most 1": numbers <= 1,
        "at least -1": numbers >= -1,
        "whole": numbers == numbers.round(),
        "zero": numbers == 0,
    }
    return {name for name, holds in tests.items() if bool(holds.all())}


def _same_strides(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    if expected.stride() == actual.stride() or expected.numel() == 0:
        return True
    return all(
        one == other
        for size, one, other in zip(expected.shape, expected.stride(), actual.stride(), strict=True)
        if size > 1
    )


def _equal(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    if expected.dtype is not actual.dtype or expected.shape != actual.shape:
        return False
    try:
        if torch.equal(expected, actual):
            return True
        both_nan = expected.isnan() & actual.isnan()
        return bool(both_nan.any()) and bool(((expected == actual) | both_nan).all())
    except RuntimeError:  # a dtype without comparison
        return False


def aliasing(results: Any, arguments: Any) -> list[str]:
    """How each dense tensor in `results` relates to the memory of those in `arguments`, in words.

    Arguments are numbered from 0, results continue the numbering. Tensors that are not dense have
    no storage of their own and are left out.
    """
    known = list(tensors_of(arguments))
    storages: dict[int, int] = {}
    for index, tensor in enumerate(known):
        storage = _storage_id(tensor)
        if storage is not None:
            storages.setdefault(storage, index)
    relations: list[str] = []
    for offset, tensor in enumerate(tensors_of(results)):
        storage = _storage_id(tensor)
        if storage is None:
            continue
        owner = storages.setdefault(storage, len(known) + offset)
        relation = "own storage"
        # Whether a result is a view of something the caller cannot see makes no difference.
        if owner != len(known) + offset:
            kind = "view" if tensor._is_view() else "no view"
            relation = f"{kind} in the storage of {owner} at offset {tensor.storage_offset()}"
        same = next((i for i, argument in enumerate(known) if argument is tensor), None)
        relations.append(relation if same is None else f"{relation}, is {same}")
    return relations


def _storage_id(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type == "meta":
        return None
    return tensor.untyped_storage()._cdata
