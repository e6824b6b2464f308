"""What the stream makes of a piece of code: recorded, canonical, in passes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE, lazy_init
from torch_hologram.tables import html_table, preformatted

__all__ = ["Explanation", "FlushExplanation", "PassExplanation", "explain"]


@dataclass(frozen=True)
class PassExplanation:
    """One traversal of an iteration space, or of several with the same code.

    Attributes:
        space: class of arithmetic and number of elements: ``"f32[1000]"``, or, of several tensors
            of different sizes, ``"f32[9] to f32[4096]"``.
        tensors: number of equal groups that run in this pass.
        bytes_loaded, bytes_stored: of all of them.
        code: one line per node, with the operands of the first group.
    """

    space: str
    tensors: int
    bytes_loaded: int
    bytes_stored: int
    code: tuple[str, ...]

    def __str__(self) -> str:
        tensors = f"{self.tensors} tensors of " if self.tensors > 1 else ""
        return f"{tensors}{self.space}, {self.bytes_loaded} B loaded, {self.bytes_stored} B stored"


@dataclass(frozen=True)
class FlushExplanation:
    """One program that was flushed.

    Attributes:
        device: index of its device.
        reason: as in :func:`torch.hologram.stream_stats`; ``"end"`` for what was still recorded
            when the function returned.
        origin: the line that made it necessary, such as ``"model.py:12"``, or the autograd
            function.
        recorded: one line per instruction. A block of memory is ``b0``, ``b1`` ... in the order of
            first use, or ``t2`` if nobody can read it after the program. ``b0+16:f32[4]`` is 4
            elements from byte 16 of it, ``b0:f32[]`` one that is broadcast,
            ``b0:f32[2, 3]{1, 2}`` has strides.
        origins: where each instruction comes from.
        passes: what was executed, in order.
    """

    device: int
    reason: str
    origin: str
    recorded: tuple[str, ...]
    origins: tuple[str, ...]
    passes: tuple[PassExplanation, ...]

    @property
    def bytes_moved(self) -> int:
        return sum(part.bytes_loaded + part.bytes_stored for part in self.passes)


@dataclass(frozen=True, repr=False)
class Explanation:
    """What :func:`explain` returns; shown as text.

    Attributes:
        result: what the function returned.
        flushes: the programs, in the order in which they were flushed on each device.
        hint: where nothing was recorded, why that may be; else empty.
    """

    result: Any
    flushes: tuple[FlushExplanation, ...]
    hint: str = ""

    @property
    def instructions(self) -> int:
        """Number of instructions recorded."""
        return sum(len(flush.recorded) for flush in self.flushes)

    @property
    def passes(self) -> int:
        """Number of passes over memory."""
        return sum(len(flush.passes) for flush in self.flushes)

    @property
    def bytes_moved(self) -> int:
        """Bytes loaded and stored."""
        return sum(flush.bytes_moved for flush in self.flushes)

    def text(self, lines: bool = True) -> str:
        """Returns everything as text.

        Args:
            lines: whether to say which line of Python each instruction comes from.
        """
        out: list[str] = []
        several = len({flush.device for flush in self.flushes}) > 1
        for number, flush in enumerate(self.flushes, 1):
            where = f" on hologram:{flush.device}" if several else ""
            cause = f" at {flush.origin}" if lines and flush.reason != "end" else ""
            out.append(
                f"flush {number}{where} ({flush.reason}{cause}): "
                f"{_count(len(flush.recorded), 'instruction')} in "
                f"{_count(len(flush.passes), 'pass', 'passes')}, {flush.bytes_moved} B moved"
            )
            out.append("  recorded:")
            width = max((len(line) for line in flush.recorded), default=0)
            for line, origin in zip(flush.recorded, flush.origins, strict=True):
                out.append(f"    {line:{width}}  # {origin}" if lines else f"    {line}")
            out.append("  executed:")
            for index, part in enumerate(flush.passes, 1):
                out.append(f"    pass {index}: {part}")
                out += [f"      {line}" for line in part.code]
        out.append(
            f"total: {_count(len(self.flushes), 'flush', 'flushes')}, "
            f"{_count(self.instructions, 'instruction')}, "
            f"{_count(self.passes, 'pass', 'passes')}, {self.bytes_moved} B moved"
        )
        if self.hint:
            out.append(self.hint)
        return "\n".join(out)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        header = ("flush", "reason", "instructions", "passes", "bytes moved")
        rows: list[tuple[object, ...]] = [
            (number, flush.reason, len(flush.recorded), len(flush.passes), flush.bytes_moved)
            for number, flush in enumerate(self.flushes, 1)
        ]
        rows.append(("total", "", self.instructions, self.passes, self.bytes_moved))
        return html_table(header, rows) + preformatted(self.text())


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def _folder(module: Any) -> str:
    return os.path.join(os.path.dirname(module.__file__), "")


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Calls a function and shows what the stream made of its operations.

    The programs of all threads are seen, so that a backward pass is explained too. What is recorded
    before is flushed first. Nothing else changes: results and passes are those of an ordinary call.

    Args:
        function: called once, with the arguments.

    Returns:
        the programs as recorded and as executed, with passes and bytes, and the function's result.
        ``print`` it.

    Raises:
        RuntimeError: there is no device, or explain is called within explain.
        Exception: whatever the function raises.
    """
    lazy_init()
    global _explaining
    if _explaining:
        raise RuntimeError("explain cannot be called within explain")
    import torch_hologram

    # torch's and our own frames say nothing about the user's code.
    skipped = [_folder(torch), _folder(torch_hologram)]
    devices = range(_C.device_count())
    rows: list[tuple[int, dict[str, Any]]] = []
    _explaining = True
    try:
        for index in devices:
            _C.start_capture(index, skipped)
        result = function(*args, **kwargs)
    finally:
        _explaining = False
        for index in devices:
            rows += [(index, row) for row in _C.end_capture(index)]
    flushes = tuple(_flush_of(index, row) for index, row in rows)
    hint = "" if flushes else _why_nothing(result, args, kwargs)
    return Explanation(result, flushes, hint)


def _why_nothing(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensors = [part for part in (*args, *kwargs.values(), result) if isinstance(part, torch.Tensor)]
    elsewhere = [tensor.device for tensor in tensors if tensor.device.type != DEVICE_TYPE]
    if elsewhere:
        return (
            f"nothing was recorded: there is a tensor on {elsewhere[0]}, and only operations on "
            f'{DEVICE_TYPE} tensors are, see .to("{DEVICE_TYPE}")'
        )
    return (
        f"nothing was recorded: no pointwise operation ran on a {DEVICE_TYPE} tensor; "
        "torch.hologram.fallback_report() says what did"
    )


_explaining = False


def _flush_of(device: int, row: dict[str, Any]) -> FlushExplanation:
    passes = tuple(
        PassExplanation(
            part["space"], part["tensors"], part["loaded"], part["stored"], tuple(part["code"])
        )
        for part in row["passes"]
    )
    return FlushExplanation(
        device,
        row["reason"],
        row["origin"],
        tuple(row["recorded"]),
        tuple(row["origins"]),
        passes,
    )
