"""Making a failing program short."""

from __future__ import annotations

from collections.abc import Callable

from programs.comparison import Mismatch
from programs.line import Line
from programs.modes import check


def shrink(lines: list[Line], fails: Callable[[list[Line]], bool]) -> list[Line]:
    """Leaves out lines while the program fails: halves first, then ever smaller parts."""
    size = len(lines) // 2
    while size >= 1:
        start, shorter = 0, False
        while start < len(lines):
            candidate = lines[:start] + lines[start + size :]
            if candidate and fails(candidate):
                lines, shorter = candidate, True
            else:
                start += size
        size = size if shorter and size == 1 else size // 2
    return lines


def fails_alike(with_cpu: bool) -> Callable[[list[Line]], bool]:
    """Whether a program still has different results; one that does not run at all has not."""

    def fails(lines: list[Line]) -> bool:
        for _ in range(3):  # what depends on the moment at which another thread frees
            try:
                check(lines, with_cpu)
            except Mismatch:
                return True
            except Exception:
                return False
        return False

    return fails
