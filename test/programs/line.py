"""The lines that a program consists of."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A line of a program.

    `target` is the variable whose tensor it writes, None if none. Against the CPU its bits are
    compared if `check` is "bits", its numbers if "values" (zeros of either sign), none if "drawn"
    (random ones), else with torch's tolerances, relative to the greatest value on the way: the
    expression `scale`.
    """

    text: str
    target: str | None = None
    check: str = "bits"
    scale: str = ""


def text_of(lines: list[Line]) -> str:
    return "\n".join(line.text for line in lines) + "\n"
