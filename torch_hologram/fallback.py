"""Which operators ran natively, which were delegated to torch's CPU kernels, which copied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from torch_hologram import _C
from torch_hologram.tables import html_table, text_table

__all__ = [
    "FallbackReport",
    "FallbackRow",
    "fallback_report",
    "get_fallback_mode",
    "reset_fallback_report",
    "set_fallback_mode",
]

Kind = Literal["native", "delegated", "copied"]
Mode = Literal["allow", "warn", "error"]


@dataclass(frozen=True)
class FallbackRow:
    """How often one operator ran in one way.

    Attributes:
        operator: name and overload, such as ``"aten::add.Tensor"``.
        kind: ``"native"``, a kernel of this package; ``"delegated"``, torch's CPU kernel on the
            same memory; ``"copied"``, torch's CPU kernel on copies.
        calls: since the start or :func:`reset_fallback_report`.
    """

    operator: str
    kind: Kind
    calls: int


@dataclass(frozen=True, repr=False)
class FallbackReport:
    """Calls per operator; shown as a table.

    Attributes:
        rows: copied, delegated, then native ones, and within each the most frequent first.
    """

    rows: tuple[FallbackRow, ...]

    def __iter__(self) -> Iterator[FallbackRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def calls(self, kind: Kind) -> int:
        """Returns the number of calls of a kind, over all operators."""
        return sum(row.calls for row in self.rows if row.kind == kind)

    def operators(self, kind: Kind) -> dict[str, int]:
        """Returns the operators that ran in a way, with the number of calls of each."""
        return {row.operator: row.calls for row in self.rows if row.kind == kind}

    def _total(self) -> str:
        kinds = " ".join(f"{kind} {self.calls(kind)}" for kind in get_args(Kind))
        return f"operator calls: {kinds}"

    def _cells(self) -> list[tuple[object, ...]]:
        return [(row.operator, row.kind, row.calls) for row in self.rows]

    def __repr__(self) -> str:
        if not self.rows:
            return self._total()
        table = text_table(("operator", "kind", "calls"), self._cells())
        rule = table.splitlines()[1]
        return f"{table}\n{rule}\n{self._total()}"

    def _repr_html_(self) -> str:
        return html_table(("operator", "kind", "calls"), self._cells(), self._total())


_ORDER: tuple[Kind, ...] = ("copied", "delegated", "native")


def fallback_report() -> FallbackReport:
    """Returns how often each operator ran natively, delegated and copied.

    A wrapper of this package that calls a CPU kernel counts as delegated.
    """
    rows = [FallbackRow(*row) for row in _C.fallback_report()]
    rows.sort(key=lambda row: (_ORDER.index(row.kind), -row.calls, row.operator))
    return FallbackReport(tuple(rows))


def reset_fallback_report() -> None:
    """Sets all counts of :func:`fallback_report` to zero."""
    _C.reset_fallback_report()


def set_fallback_mode(mode: Mode) -> None:
    """Says what happens when an operator without a native kernel is called.

    Args:
        mode: ``"allow"``, it is delegated silently; ``"warn"``, with one ``UserWarning`` per
            operator that names it; ``"error"``, it raises ``NotImplementedError`` instead.

    Raises:
        ValueError: for any other mode.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"fallback mode must be 'allow', 'warn' or 'error', but got {mode!r}")
    _C.set_fallback_mode(mode)


def get_fallback_mode() -> Mode:
    """Returns the mode of :func:`set_fallback_mode`, ``"allow"`` to begin with."""
    return _C.fallback_mode()
