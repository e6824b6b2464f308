"""Decides what the result of a unit means, and records it.

A unit is (database, entry, dtype) and is run in phases. The rules, all strict:

* It fails on the device and passes with the CPU in the device's place: the device is at fault. It
  is a test failure unless EXPECTED lists it.
* It fails with the CPU in the device's place too: the test says nothing about the device, the unit
  is "not judged". It is a test failure unless UNJUDGED lists it.
* It is listed and the reason is gone: a test failure, so that the lists stay true.
* Run on the vendor's device itself (HOLOGRAM_TEST_DEVICE): what fails there fails, listed or not.
  Its kernels may add up in any order: a unit that is run there several times (HOLOGRAM_TEST_TIMES)
  fails where one of them does.
* On a device whose operators run the kernels of a vendor's device, CUDA's, and with that device in
  its place the unit fails too: "not judged". What the vendor's device does not have, or does
  otherwise than the CPU, the device has and does likewise.
"""

from __future__ import annotations

import fnmatch
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from expected_failures import EXPECTED, UNJUDGED

from . import config
from .units import is_recorded


@dataclass(frozen=True)
class Key:
    """One unit in one phase. `database` is "ops", "modules", "optims" ..."""

    database: str
    name: str
    dtype: str
    phase: str

    def __str__(self) -> str:
        return f"{self.database}:{self.name}:{self.dtype}:{self.phase}"


def listed(entries: dict[str, str], key: Key) -> str | None:
    """The reason under which `entries` lists `key`; its keys are patterns for str(key)."""
    text = str(key)
    exact = entries.get(text)
    if exact is not None:
        return exact
    return next(
        (why for pattern, why in entries.items() if fnmatch.fnmatchcase(text, pattern)), None
    )


def conclude(key: Key, run: Callable[[torch.device], Any]) -> None:
    """Runs `run(device under test)` and applies the rules above.

    `run` raises when the unit fails and returns a Comparison. Raises what makes the test fail, or
    pytest's xfail for a listed unit.
    """
    _record(key, "started")
    begin = time.perf_counter()

    def record(status: str, **details: Any) -> None:
        _record(key, status, seconds=round(time.perf_counter() - begin, 4), **details)

    if config.IS_VENDORS:
        for _ in range(config.TIMES):
            run(torch.device(config.DEVICE))
        return record("passed")
    why_unjudged = listed(UNJUDGED, key)
    if why_unjudged is not None:
        try:
            run(torch.device("cpu"))
        except Exception:
            record("unjudged", reason=why_unjudged)
            pytest.xfail(f"not judged: {why_unjudged}")
        record("failed", error="passes cpu against cpu but is listed in UNJUDGED")
        pytest.fail(f"{key} passes cpu against cpu: take it off UNJUDGED")

    why_expected = listed(EXPECTED, key)
    _reset_operators()
    try:
        comparison = run(torch.device(config.DEVICE))
    except Exception as error:
        judge_error = error if config.DEVICE == "cpu" else _error_of(run, torch.device("cpu"))
        if judge_error is not None:
            record("failed", error=f"not judged and not listed: {_one_line(judge_error)}")
            raise AssertionError(
                f"{key} fails cpu against cpu, so it cannot be judged; if that is so upstream, "
                f"list it in UNJUDGED with the reason. The error: {judge_error}"
            ) from judge_error
        if why_expected is not None:
            record("expected_failure", reason=why_expected, error=_one_line(error))
            pytest.xfail(why_expected)
        vendor_error = _vendor_error(run)
        if vendor_error is not None:
            record("unjudged", reason=f"the vendor's device: {_one_line(vendor_error)}")
            pytest.xfail(f"not judged: the vendor's device fails: {_one_line(vendor_error)}")
        record("failed", error=_one_line(error))
        raise
    if why_expected is not None:
        record("failed", error="passes but is listed in EXPECTED")
        pytest.fail(f"{key} passes: take it off EXPECTED")
    if _runs_in_eager_mode_too(key):
        try:
            with torch.hologram.eager():
                run(torch.device(config.DEVICE))
        except Exception as error:
            record("failed", error=f"in eager mode: {_one_line(error)}")
            raise AssertionError(f"{key} fails in eager mode only: {error}") from error
    if config.KERNELS_COME_LATER and _compile_kernels() > 0:
        try:
            run(torch.device(config.DEVICE))
            with torch.hologram.eager():
                run(torch.device(config.DEVICE))
        except Exception as error:
            record("failed", error=f"on emitted kernels: {_one_line(error)}")
            raise AssertionError(f"{key} fails on emitted kernels only: {error}") from error
    record(
        "passed",
        samples=comparison.samples,
        refusals=comparison.refusals,
        exact=comparison.exact,
        operators=_operators(),
    )


def _error_of(run: Callable[[torch.device], Any], device: torch.device) -> Exception | None:
    try:
        run(device)
    except Exception as error:
        return error
    return None


def _vendor_error(run: Callable[[torch.device], Any]) -> Exception | None:
    """What the unit raises on the device whose kernels the device's operators run.

    None where these are the CPU's, or where torch itself has no verdict: autograd works on one
    accelerator of a process alone (docs/installed.md).
    """
    if config.DEVICE == "cpu":
        return None
    from torch_hologram import _C

    vendor = torch.device(_C.delegate_target(0)[1])
    if vendor.type == "cpu":
        return None
    error = _error_of(run, vendor)
    return None if error is not None and "INTERNAL ASSERT" in str(error) else error


def _compile_kernels() -> int:
    from sim_device import compile_kernels  # which loads the package

    return compile_kernels()


def _runs_in_eager_mode_too(key: Key) -> bool:
    """Whether a unit that passed is run a second time, each operation executed at once.

    In a full run every unit; else those of the operators that are recorded. The others meet the
    stream only through copies and their operands.
    """
    if config.DEVICE == "cpu" or torch.hologram.is_eager():
        return False
    return config.FULL or is_recorded(key.name)


def _reset_operators() -> None:
    if config.JSON_PATH is not None and config.DEVICE == "hologram":
        torch.get_device_module(config.DEVICE).reset_fallback_report()


def _operators() -> list[tuple[str, str]]:
    """(overload, "native" | "delegated" | "copied") of every operator the unit has run."""
    if config.JSON_PATH is None or config.DEVICE != "hologram":
        return []
    rows = torch.get_device_module(config.DEVICE).fallback_report()
    return [(row.operator, row.kind) for row in rows]


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def _record(key: Key, status: str, **details: Any) -> None:
    if config.JSON_PATH is None:
        return
    line = {
        "database": key.database,
        "name": key.name,
        "dtype": key.dtype,
        "phase": key.phase,
        "status": status,
        **details,
    }
    # One write to a file opened for appending: lines of several processes do not mix.
    descriptor = os.open(config.JSON_PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)
