"""The language of expressions: text into values of a graph."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from torch_hologram.custom.graph import Graph
from torch_hologram.custom.rows import (
    BINARY,
    COMPARISONS,
    CONSTANTS,
    MODULES,
    OF_NUMBERS,
    ROWS,
    Number,
    count,
    meant_row,
    truths,
)

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_parsing = threading.RLock()


def _tree(text: str) -> ast.Expression:
    """``ast.parse``, in any number of threads.

    Some versions of CPython, 3.11 among them, count the depth of all threads' trees in one place:
    where a finalizer lets another thread run while a tree is made, both raise SystemError
    (python/cpython#106905).
    The lock keeps our own threads apart; trying again is for others that parse.
    """
    with _parsing:
        for _ in range(100):
            try:
                return ast.parse(text, mode="eval")
            except SystemError:
                pass
        return ast.parse(text, mode="eval")


class Parser:
    """Adds an expression to a graph.

    Args:
        what: what the expression is, for messages.
        allowed: the names of operands, or ``None`` where any may come.
    """

    most_operations = 512

    def __init__(
        self, what: str, text: str, graph: Graph, allowed: Sequence[str] | None = None
    ) -> None:
        if not isinstance(text, str):
            raise TypeError(f"{what} must be a string, not {type(text).__name__}")
        self.what, self.text, self.graph, self.allowed = what, text.strip(), graph, allowed

    def parse(self) -> int:
        try:
            tree = _tree(self.text)
        except SyntaxError as error:
            if error.offset:
                raise ValueError(self._at(error.msg, error.lineno or 1, error.offset - 1)) from None
            lines = self.text.splitlines() or [""]  # it has no offset where the text ends too early
            message = f"{error.msg}, the expression is not complete"
            raise ValueError(self._at(message, len(lines), len(lines[-1]))) from None
        except (RecursionError, MemoryError):
            raise ValueError(f"{self.what} is nested too deeply") from None
        except ValueError as error:  # such as a null character
            raise ValueError(f"{self.what}: {error}") from None
        try:
            return self._value(tree.body)
        except RecursionError:
            raise ValueError(f"{self.what} is nested too deeply") from None

    def _at(self, message: str, line: int, column: int) -> str:
        lines = self.text.splitlines() or [""]
        shown = lines[min(line, len(lines)) - 1]
        place = f"column {column + 1}" if len(lines) == 1 else f"line {line}, column {column + 1}"
        return f"{self.what}: {message} ({place})\n  {shown}\n  {' ' * column}^"

    def _refuse(self, node: ast.expr, message: str) -> NoReturn:
        # ast counts bytes.
        line = self.text.splitlines()[node.lineno - 1].encode()
        column = len(line[: node.col_offset].decode(errors="ignore"))
        raise ValueError(self._at(message, node.lineno, column))

    def _value(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=value):
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    self._refuse(node, f"{value!r} is no number")
                try:
                    float(value)
                except OverflowError:
                    self._refuse(node, "the number is too large")
                return self.graph.number(value)
            case ast.Name(id=name):
                if name in ROWS:
                    self._refuse(node, f"{name!r} is a function: {name}(...)")
                if self.allowed is None and name in CONSTANTS:
                    self._refuse(
                        node,
                        f"{name!r} would be an operand: write the number {CONSTANTS[name]}, or "
                        "name all operands in operands=",
                    )
                if self.allowed is not None and name not in self.allowed:
                    names = ", ".join(self.allowed)
                    self._refuse(node, f"unknown operand {name!r}: the operands are {names}")
                if not IDENTIFIER.match(name):
                    self._refuse(node, f"the operand {name!r} is not in ASCII")
                return self.graph.operand(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._apply(node, "neg", self._value(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._value(operand)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self._apply(node, "logical_not", self._value(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return self._apply(node, BINARY[type(op)], self._value(left), self._value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
                row = COMPARISONS[type(op)]
                return self._apply(node, row, self._value(left), self._value(right))
            case ast.Compare(ops=[_, _, *_]):
                self._refuse(node, "a chain of comparisons: write (a < b) & (b < c)")
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                self._refuse(node, "'and', 'or' and 'not' are of Python: write &, | and ~")
            case ast.IfExp():
                self._refuse(node, "'if' is of Python: write where(condition, x, y)")
            case ast.Call(func=ast.Name(id=name)):
                return self._call(node, name)
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                operands = [ast.unparse(part) for part in node.args]
                if ast.unparse(value) not in MODULES:
                    operands.insert(0, ast.unparse(value))
                call = f"{meant_row(name)}({', '.join(operands)})"
                self._refuse(node, f"calls have no dots: write {call}")
        kind = type(node.op if isinstance(node, ast.BinOp) else node).__name__
        self._refuse(node, f"{kind} is not supported: expressions have names, numbers, operators")

    def _call(self, node: ast.Call, name: str) -> int:
        if name not in ROWS:
            meant = meant_row(name)
            known = f"there are {', '.join(sorted(ROWS))}"
            hint = known if meant == name else f"did you mean {meant}?"
            self._refuse(node, f"unknown function {name!r}: {hint}")
        if node.keywords or any(isinstance(part, ast.Starred) for part in node.args):
            self._refuse(node, f"{name}() takes its operands by position")
        arity = ROWS[name].arity
        if len(node.args) != arity:
            self._refuse(node, f"{name}() takes {count(arity)}, not {len(node.args)}")
        return self._apply(node, name, *map(self._value, node.args))

    def _apply(self, node: ast.expr, row: str, *parts: int) -> int:
        graph = self.graph
        numbers = [graph.number_of(part) for part in parts]
        if all(number is not None for number in numbers):
            return graph.number(self._of_numbers(node, row, numbers))
        for part in truths(row, parts):
            if graph.is_truth(part) is False:
                self._refuse(node, f"{row} needs a condition, such as x > 0, or a bool operand")
        if len(graph.values) > self.most_operations:
            self._refuse(node, f"an expression has at most {self.most_operations} operations")
        return graph.apply(row, *parts)

    def _of_numbers(self, node: ast.expr, row: str, numbers: list[Any]) -> Number:
        if row not in OF_NUMBERS:
            self._refuse(node, f"{row} of numbers alone: there is nothing to compute")
        try:
            value = OF_NUMBERS[row](*numbers)
            if type(value) not in (int, float):
                raise ValueError("the result is no real number")
            float(value)
        except (ArithmeticError, ValueError) as error:
            self._refuse(node, f"{row} of numbers: {error}")
        return value
