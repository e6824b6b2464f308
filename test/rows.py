"""The rows of the op table by what tests can ask of them. A new row is in these lists by itself."""

from __future__ import annotations

from torch_hologram import _C
from torch_hologram.custom.rows import NO_FUNCTIONS

ROWS = {row["name"]: row for row in _C.op_rows()}


def _rows(**wanted: object) -> list[str]:
    return [
        name
        for name, row in ROWS.items()
        if all(row[column] == value for column, value in wanted.items())
    ]


# Of torch's functions.
COMPARISONS = tuple(name for name in _rows(predicate=True, logical=False))
LOGICAL = tuple(_rows(logical=True, arity=2))
UNARY = tuple(name for name in _rows(arity=1, logical=False) if name not in NO_FUNCTIONS)
# What goes through a function of csrc/cpu/math.h, or is of truth values, has no bits of torch's to
# be compared with in every dtype; its values are compared within ulps.
_OF_TORCH = [
    name
    for name in _rows(predicate=False, condition=False)
    if "math_" not in ROWS[name]["expression"] and ROWS[name]["arity"] <= 2
]
SAME_BITS_UNARY = tuple(name for name in _OF_TORCH if ROWS[name]["arity"] == 1)
SAME_BITS_BINARY = tuple(name for name in _OF_TORCH if ROWS[name]["arity"] == 2)
# Functions that give whole numbers are exact though they have a helper of their own.
EXACT_UNARY = SAME_BITS_UNARY + tuple(name for name in UNARY if ROWS[name]["derivative"] == ["0"])
