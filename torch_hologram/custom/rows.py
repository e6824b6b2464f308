"""The rows of the op table, and how expressions and torch say them."""

from __future__ import annotations

import ast
import difflib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch_hologram import _C


@dataclass(frozen=True)
class Row:
    """A row of the op table (csrc/atlas/op_table.h, whose columns these are)."""

    arity: int
    predicate: bool  # the result is a truth value
    condition: bool  # the first operand is one
    logical: bool  # all operands are
    derivative: tuple[str, ...]  # of each operand; empty where the row has none


# Torch has no function of that name to say them with.
NO_FUNCTIONS = frozenset({"fma", "gelu", "gelu_tanh"})
ROWS = {
    row["name"]: Row(
        row["arity"],
        row["predicate"],
        row["condition"],
        row["logical"],
        tuple(row["derivative"]),
    )
    for row in _C.op_rows()
    if row["name"] not in NO_FUNCTIONS
}

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.BitAnd: "logical_and",
    ast.BitOr: "logical_or",
    ast.BitXor: "logical_xor",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
# Rows that are operators of Python, which take numbers on either side.
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
    **{name: getattr(operator, name) for name in COMPARISONS.values()},
}
# Functions of numbers alone, worked out in double precision when the expression is parsed.
OF_NUMBERS: dict[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in "sqrt exp expm1 log log2 log1p tanh erf".split()},
    **{name: getattr(math, name) for name in "sin cos floor ceil trunc".split()},
    **{name: OPERATORS[name] for name in "add sub mul div pow neg abs".split()},
    "reciprocal": lambda x: 1 / x,
    "maximum": max,
    "minimum": min,
    "round": round,
    "sign": lambda x: float((x > 0) - (x < 0)),
}

# What other libraries call some of the functions.
_SYNONYMS = {
    "absolute": "abs",
    "clip": "clamp",
    "fabs": "abs",
    "ln": "log",
    "max": "maximum",
    "min": "minimum",
    "negative": "neg",
    "power": "pow",
    "rint": "round",
}
MODULES = ("F", "math", "np", "numpy", "torch", "torch.nn.functional")
# Names that are numbers elsewhere.
CONSTANTS = {"inf": "1e999", "pi": repr(math.pi), "tau": repr(math.tau)}

Number: TypeAlias = int | float


def meant_row(function: str) -> str:
    """The function of the op table that a name resembles, or the name."""
    close = difflib.get_close_matches(function, ROWS, 1)
    return _SYNONYMS.get(function) or (close[0] if close else function)


def truths(row: str, parts: tuple[int, ...]) -> tuple[int, ...]:
    """The operands of a row that are truth values."""
    if ROWS[row].condition:
        return parts[:1]
    return parts if ROWS[row].logical else ()


def count(operands: int) -> str:
    return "1 operand" if operands == 1 else f"{operands} operands"
