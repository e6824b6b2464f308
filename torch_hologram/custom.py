"""Pointwise operators defined at run time: ``torch_hologram.pointwise("swish", "x * sigmoid(x)")``.

An expression is parsed into rows of the op table. On the device a call records all of them at once,
so that they fuse with what is around them; everywhere else the rows are operations of torch.
Gradients are expressions too, derived from the rows one after the other or given by the caller, and
operators of their own: so they fuse, and have gradients in their turn.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import keyword
import math
import operator
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from torch_hologram import _C

__all__ = ["PointwiseOperator", "pointwise"]

NAMESPACE = "hologram_custom"

# What `derivative` may be.
Derivative: TypeAlias = str | Sequence[str] | Mapping[str, str] | None

_MOST_OPERATIONS = 512
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class _Row:
    """A row of the op table."""

    arity: int
    predicate: bool  # the result is a truth value
    logical: bool  # so are the operands


# fma is left out: torch has no operation to say it with.
_ROWS = {
    name: _Row(arity, predicate, logical)
    for name, arity, predicate, logical in _C.op_rows()
    if name != "fma"
}

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.BitAnd: "logical_and",
    ast.BitOr: "logical_or",
    ast.BitXor: "logical_xor",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
# Rows that are operators of Python, which take numbers on either side.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
    **{name: getattr(operator, name) for name in _COMPARISONS.values()},
}
# Functions of numbers alone, worked out in double precision when the expression is parsed.
_OF_NUMBERS: dict[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in "sqrt exp expm1 log log2 log1p tanh erf".split()},
    **{name: getattr(math, name) for name in "sin cos floor ceil trunc".split()},
    **{name: _OPERATORS[name] for name in "add sub mul div pow neg abs".split()},
    "reciprocal": lambda x: 1 / x,
    "maximum": max,
    "minimum": min,
    "round": round,
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
_MODULES = ("F", "math", "np", "numpy", "torch", "torch.nn.functional")
# Names that are numbers elsewhere.
_CONSTANTS = {"inf": "1e999", "pi": repr(math.pi), "tau": repr(math.tau)}

Number: TypeAlias = int | float


def _meant(function: str) -> str:
    """The function of the op table that a name resembles, or the name."""
    close = difflib.get_close_matches(function, _ROWS, 1)
    return _SYNONYMS.get(function) or (close[0] if close else function)


@dataclass(frozen=True)
class _Program:
    """An expression as values, numbered: operands, numbers, then the result of each step.

    The last step is the result. ``conditions`` are the operands that have to be bool.
    """

    operands: tuple[str, ...]
    numbers: tuple[Number, ...]
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    conditions: frozenset[int]

    @property
    def predicate(self) -> bool:
        return _ROWS[self.steps[-1][0]].predicate


# ---- expressions ----


class _Graph:
    """Values of an expression while it grows. Equal values are one."""

    def __init__(self, operands: Sequence[str] = ()) -> None:
        self.operands: list[str] = []
        self.values: list[tuple[str, tuple[Any, ...]]] = []  # row, or "operand" or "number"
        self.known: dict[Any, int] = {}
        for name in operands:
            self.operand(name)

    def _add(self, key: Any, row: str, parts: tuple[Any, ...]) -> int:
        found = self.known.setdefault(key, len(self.values))
        if found == len(self.values):
            self.values.append((row, parts))
        return found

    def operand(self, name: str) -> int:
        if name not in self.operands:
            self.operands.append(name)
        return self._add(name, "operand", (name,))

    def number(self, value: Number) -> int:
        return self._add((type(value), repr(value)), "number", (value,))

    def number_of(self, value: int) -> Number | None:
        row, parts = self.values[value]
        number: Number | None = parts[0] if row == "number" else None
        return number

    def apply(self, row: str, *parts: int) -> int:
        # As Python does it, with torch's tensors.
        if row == "div" and self.number_of(parts[0]) is not None:
            return self.apply("mul", self.apply("reciprocal", parts[1]), parts[0])
        return self._add((row, parts), row, parts)

    def is_truth(self, value: int) -> bool | None:
        """Whether a value is a truth value; ``None`` of an operand, which says so at a call."""
        row = self.values[value][0]
        if row == "operand":
            return None
        return row != "number" and _ROWS[row].predicate

    def program(self, result: int, operands: Sequence[str]) -> _Program:
        """Returns what is needed for one value. ``operands`` gives their order."""
        needed, left = {result}, [result]
        while left:
            row, parts = self.values[left.pop()]
            for part in parts if row not in ("operand", "number") else ():
                if part not in needed:
                    needed.add(part)
                    left.append(part)
        order = sorted(needed)
        kind = {value: self.values[value][0] for value in order}
        named = {self.values[v][1][0]: v for v in order if kind[v] == "operand"}
        used = [name for name in operands if name in named]
        numbers = [value for value in order if kind[value] == "number"]
        steps = [value for value in order if kind[value] not in ("operand", "number")]
        place = {
            value: i for i, value in enumerate([*(named[name] for name in used), *numbers, *steps])
        }
        code, conditions = [], set()
        for value in steps:
            row, parts = self.values[value]
            code.append((row, tuple(place[part] for part in parts)))
            conditions |= {place[part] for part in _truths(row, parts) if place[part] < len(used)}
        return _Program(
            tuple(used),
            tuple(self.values[value][1][0] for value in numbers),
            tuple(code),
            frozenset(conditions),
        )


def _truths(row: str, parts: tuple[int, ...]) -> tuple[int, ...]:
    """The operands of a row that are truth values."""
    if row == "where":
        return parts[:1]
    return parts if _ROWS[row].logical else ()


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


class _Parser:
    """Adds an expression to a graph.

    Args:
        what: what the expression is, for messages.
        allowed: the names of operands, or ``None`` where any may come.
    """

    def __init__(
        self, what: str, text: str, graph: _Graph, allowed: Sequence[str] | None = None
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
                if name in _ROWS:
                    self._refuse(node, f"{name!r} is a function: {name}(...)")
                if self.allowed is None and name in _CONSTANTS:
                    self._refuse(
                        node,
                        f"{name!r} would be an operand: write the number {_CONSTANTS[name]}, or "
                        "name all operands in operands=",
                    )
                if self.allowed is not None and name not in self.allowed:
                    names = ", ".join(self.allowed)
                    self._refuse(node, f"unknown operand {name!r}: the operands are {names}")
                if not _IDENTIFIER.match(name):
                    self._refuse(node, f"the operand {name!r} is not in ASCII")
                return self.graph.operand(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._apply(node, "neg", self._value(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._value(operand)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self._apply(node, "logical_not", self._value(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._apply(node, _BINARY[type(op)], self._value(left), self._value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                row = _COMPARISONS[type(op)]
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
                if ast.unparse(value) not in _MODULES:
                    operands.insert(0, ast.unparse(value))
                call = f"{_meant(name)}({', '.join(operands)})"
                self._refuse(node, f"calls have no dots: write {call}")
        kind = type(node.op if isinstance(node, ast.BinOp) else node).__name__
        self._refuse(node, f"{kind} is not supported: expressions have names, numbers, operators")

    def _call(self, node: ast.Call, name: str) -> int:
        if name not in _ROWS:
            meant = _meant(name)
            known = f"there are {', '.join(sorted(_ROWS))}"
            hint = known if meant == name else f"did you mean {meant}?"
            self._refuse(node, f"unknown function {name!r}: {hint}")
        if node.keywords or any(isinstance(part, ast.Starred) for part in node.args):
            self._refuse(node, f"{name}() takes its operands by position")
        arity = _ROWS[name].arity
        if len(node.args) != arity:
            self._refuse(node, f"{name}() takes {_count(arity)}, not {len(node.args)}")
        return self._apply(node, name, *map(self._value, node.args))

    def _apply(self, node: ast.expr, row: str, *parts: int) -> int:
        graph = self.graph
        numbers = [graph.number_of(part) for part in parts]
        if all(number is not None for number in numbers):
            return graph.number(self._of_numbers(node, row, numbers))
        for part in _truths(row, parts):
            if graph.is_truth(part) is False:
                self._refuse(node, f"{row} needs a condition, such as x > 0, or a bool operand")
        if len(graph.values) > _MOST_OPERATIONS:
            self._refuse(node, f"an expression has at most {_MOST_OPERATIONS} operations")
        return graph.apply(row, *parts)

    def _of_numbers(self, node: ast.expr, row: str, numbers: list[Any]) -> Number:
        if row not in _OF_NUMBERS:
            self._refuse(node, f"{row} of numbers alone: there is nothing to compute")
        try:
            value = _OF_NUMBERS[row](*numbers)
            if type(value) not in (int, float):
                raise ValueError("the result is no real number")
            float(value)
        except (ArithmeticError, ValueError) as error:
            self._refuse(node, f"{row} of numbers: {error}")
        return value


def _count(operands: int) -> str:
    return "1 operand" if operands == 1 else f"{operands} operands"


# ---- gradients ----


class _Chain:
    """Derives the gradients of an expression's operands, as torch derives those of its operations.

    The formulas, and the order of their operations, are those of torch's derivatives.yaml and
    FunctionsManual.cpp.

    Args:
        program: the expression.
        grad: the name of the gradient of its result, an operand of those of the operands.
    """

    def __init__(self, program: _Program, grad: str) -> None:
        self.graph = _Graph((grad, *program.operands))
        self.of: dict[int, int] = {}  # value -> its gradient
        values = [self.graph.operand(name) for name in program.operands]
        values += [self.graph.number(number) for number in program.numbers]
        for row, parts in program.steps:
            values.append(self.graph.apply(row, *(values[part] for part in parts)))
        self.operands = values[: len(program.operands)]
        self.of[values[-1]] = self.graph.operand(grad)
        steps = values[len(program.operands) + len(program.numbers) :]
        # In reverse: all uses of a value come after it.
        for value in sorted(set(steps), reverse=True):
            if value in self.of:
                self._step(value, self.of[value])

    def _give(self, value: int, gradient: int) -> None:
        if self.graph.number_of(value) is None:
            known = self.of.get(value)
            self.of[value] = gradient if known is None else self.apply("add", known, gradient)

    def apply(self, row: str, *parts: int | float) -> int:
        """The value of an operation whose operands are values (int) and numbers (float)."""
        graph = self.graph
        return graph.apply(row, *(graph.number(p) if type(p) is float else int(p) for p in parts))

    def _step(self, r: int, g: int) -> None:
        """Gives the operands of the value ``r``, whose gradient is ``g``, theirs."""
        f, give = self.apply, self._give
        row, parts = self.graph.values[r]
        x, y, z = (*parts, 0, 0)[:3] if len(parts) < 3 else parts
        if row in _ROWS and _ROWS[row].predicate:
            return
        match row:
            case "floor" | "ceil" | "round" | "trunc":
                return
            case "add":
                give(x, g)
                give(y, g)
            case "sub":
                give(x, g)
                give(y, f("neg", g))
            case "mul":
                give(x, f("mul", g, y))
                give(y, f("mul", g, x))
            case "div":
                give(x, f("div", g, y))
                give(y, f("mul", f("neg", g), f("div", f("div", x, y), y)))
            case "neg":
                give(x, f("neg", g))
            case "abs":  # the sign of 0, and of NaN, is 0
                sign = f("where", f("gt", x, 0.0), 1.0, f("where", f("lt", x, 0.0), -1.0, 0.0))
                give(x, f("mul", g, sign))
            case "relu":
                give(x, f("where", f("le", x, 0.0), 0.0, g))
            case "reciprocal":
                give(x, f("mul", f("neg", g), f("mul", r, r)))
            case "sqrt":
                give(x, f("div", g, f("mul", r, 2.0)))
            case "rsqrt":
                give(x, f("mul", f("mul", g, -0.5), f("pow", r, 3.0)))
            case "exp":
                give(x, f("mul", g, r))
            case "exp2":
                give(x, f("mul", f("mul", g, r), math.log(2)))
            case "expm1":
                give(x, f("mul", g, f("add", r, 1.0)))
            case "log":
                give(x, f("div", g, x))
            case "log2":
                give(x, f("div", g, f("mul", x, math.log(2))))
            case "log1p":
                give(x, f("div", g, f("add", x, 1.0)))
            case "tanh":
                give(x, f("mul", g, f("sub", 1.0, f("mul", r, r))))
            case "sigmoid":
                give(x, f("mul", f("mul", g, f("sub", 1.0, r)), r))
            case "erf":
                bell = f("exp", f("neg", f("mul", x, x)))
                give(x, f("mul", f("mul", bell, 2 / math.sqrt(math.pi)), g))
            case "sin":
                give(x, f("mul", g, f("cos", x)))
            case "cos":
                give(x, f("mul", g, f("neg", f("sin", x))))
            case "pow":
                self._power(r, g, x, y)
            case "maximum" | "minimum":  # both have half of it where they are equal
                half = f("where", f("eq", x, y), f("mul", g, 0.5), g)
                less = "lt" if row == "maximum" else "gt"
                give(x, f("where", f(less, x, y), 0.0, half))
                give(y, f("where", f(less, y, x), 0.0, half))
            case "where":
                give(y, f("where", x, g, 0.0))
                give(z, f("where", x, 0.0, g))
            case "clamp":
                self._clamp(g, x, y, z)
            case _:
                raise NotImplementedError(f"derivative for {row} is not implemented")

    def _clamp(self, g: int, x: int, y: int, z: int) -> None:
        """As torch does it, also where bounds are in the wrong order or NaN."""
        f, give = self.apply, self._give
        if not _C.clamp_shares_ties:
            inside = f("logical_and", f("ge", x, y), f("le", x, z))
            give(x, f("where", inside, g, 0.0))
            below = f("logical_and", f("lt", x, y), f("lt", y, z))
            give(y, f("where", below, g, 0.0))
            above = f("logical_or", f("gt", x, z), f("lt", z, y))
            give(z, f("where", above, g, 0.0))
        elif self.graph.number_of(y) is not None and self.graph.number_of(z) is not None:
            inside = f("logical_and", f("gt", x, y), f("lt", x, z))
            give(x, f("where", inside, g, 0.0))
        else:
            half, ordered, reaches = f("mul", g, 0.5), f("lt", y, z), f("le", y, z)
            lowest = f("logical_and", ordered, f("eq", x, y))
            highest = f("logical_and", ordered, f("eq", x, z))
            shared = f("where", f("logical_or", lowest, highest), half, g)
            outside = f("logical_or", f("lt", x, y), f("gt", x, z))
            give(x, f("where", outside, 0.0, shared))
            below = f("logical_and", f("lt", x, y), reaches)
            give(y, f("where", below, g, f("where", lowest, half, 0.0)))
            above = f("logical_or", f("gt", y, z), f("logical_and", f("gt", x, z), reaches))
            give(z, f("where", above, g, f("where", highest, half, 0.0)))

    def _power(self, r: int, g: int, x: int, y: int) -> None:
        f, give = self.apply, self._give
        base, exponent = self.graph.number_of(x), self.graph.number_of(y)
        if exponent is not None:
            if exponent != 0:
                lower = f("pow", x, float(exponent) - 1)
                give(x, f("mul", g, f("mul", lower, float(exponent))))
            return
        slope = f("mul", y, f("pow", x, f("sub", y, 1.0)))
        give(x, f("where", f("eq", y, 0.0), 0.0, f("mul", g, slope)))
        if base is None:
            zero = f("logical_and", f("eq", x, 0.0), f("ge", y, 0.0))
            give(y, f("mul", g, f("where", zero, 0.0, f("mul", r, f("log", x)))))
        elif base == 0:
            give(y, f("where", f("ge", y, 0.0), 0.0, f("mul", g, f("mul", r, -math.inf))))
        else:
            log = math.log(base) if base > 0 else math.nan
            give(y, f("mul", g, f("mul", r, log)))


@dataclass(frozen=True)
class _Gradient:
    """Of one operand: a program, or where there is none that of the result, or zero.

    ``uses``: what the program's operands are; 0 is the gradient of the result, i + 1 operand i.
    """

    program: _Program | None
    uses: tuple[int, ...] = ()


def _gradient(graph: _Graph, value: int | None, names: tuple[str, ...]) -> _Gradient:
    if value is None:
        return _Gradient(None)
    if graph.values[value][0] == "operand":
        return _Gradient(None, (0,))
    program = graph.program(value, names)
    return _Gradient(program, tuple(names.index(name) for name in program.operands))


def _name_of_grad(operands: Sequence[str]) -> str:
    name = "grad"
    while name in operands:
        name += "_"
    return name


def _derived(program: _Program) -> tuple[_Gradient, ...]:
    """The gradients of an expression's operands; none where a row has no derivative."""
    if program.predicate:
        return ()
    names = (_name_of_grad(program.operands), *program.operands)
    try:
        chain = _Chain(program, names[0])
    except NotImplementedError:
        return ()
    return tuple(_gradient(chain.graph, chain.of.get(v), names) for v in chain.operands)


def _given(what: str, program: _Program, derivative: Derivative) -> tuple[_Gradient, ...]:
    """The gradients from expressions of the derivatives."""
    operands = program.operands
    if isinstance(derivative, str):
        texts: dict[str, str] = {}
        if len(operands) != 1:
            raise ValueError(
                f"{what}: one derivative for {_count(len(operands))} ({', '.join(operands)})"
            )
        texts = {operands[0]: derivative}
    elif isinstance(derivative, Mapping):
        texts = dict(derivative)
        for name in texts:
            if name not in operands:
                raise ValueError(
                    f"{what}: a derivative for {name!r}, but the operands are {', '.join(operands)}"
                )
    elif isinstance(derivative, Sequence):
        texts = dict(zip(operands, derivative, strict=False))
        if len(derivative) != len(operands):
            raise ValueError(
                f"{what}: {len(derivative)} derivatives for {_count(len(operands))} "
                f"({', '.join(operands)})"
            )
    else:
        raise TypeError(
            f"{what}: derivative must be a string, a sequence of strings or a mapping from "
            f"operands to strings, not {type(derivative).__name__}"
        )
    if program.predicate:
        raise ValueError(f"{what}: the result is bool, which has no derivative")
    for i, name in enumerate(operands):
        if name not in texts and i not in program.conditions:
            raise ValueError(f"{what}: no derivative for the operand {name!r}")
    names = (_name_of_grad(operands), *operands)
    gradients = []
    for name in operands:
        graph = _Graph(names)
        value: int | None = None
        if name in texts:
            value = _Parser(f"{what}, derivative for {name}", texts[name], graph, operands).parse()
            number = graph.number_of(value)
            grad = graph.operand(names[0])
            if number == 0:
                value = None
            else:
                value = grad if number == 1 else graph.apply("mul", grad, value)
        gradients.append(_gradient(graph, value, names))
    return tuple(gradients)


# ---- evaluation by torch ----


def _evaluate(program: _Program, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result by operations of torch: on any device, and for fake tensors.

    Operands are converted to their common dtype; half precision is computed in float32 and rounded
    once. What is not floating is computed operation by operation, each promoting as it does.
    """
    compute, common = elementwise_dtypes(
        *operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    )
    floating = common.is_floating_point
    values: list[Any] = [*operands, *program.numbers]
    truths = [False] * len(values)
    result = operands[0]

    @functools.cache
    def as_number(i: int) -> Any:
        if i < len(operands):
            return values[i].to(compute) if floating else values[i]
        return values[i].to(compute if floating else common) if truths[i] else values[i]

    def as_tensor(i: int) -> torch.Tensor:
        value = as_number(i)
        if isinstance(value, torch.Tensor):
            return value
        dtype = compute if floating else None
        return torch.scalar_tensor(
            value, dtype=dtype or (torch.int64 if type(value) is int else None)
        )

    for row, parts in program.steps:
        if _ROWS[row].logical:
            result = getattr(torch, row)(*(values[part] for part in parts))
        elif row == "where":
            result = torch.where(values[parts[0]], as_tensor(parts[1]), as_tensor(parts[2]))
        elif row in _OPERATORS:
            result = _OPERATORS[row](*map(as_number, parts))
        elif row == "clamp" and all(type(as_number(part)) in (int, float) for part in parts[1:]):
            result = torch.clamp(*map(as_number, parts))
        else:
            result = getattr(torch, row)(*map(as_tensor, parts))
        values.append(result)
        truths.append(_ROWS[row].predicate)
    if floating and not program.predicate:
        result = result.to(common)
    return result


# ---- operators ----

# Defines one operator at a time. Reentrant, for an operator of a gradient may be asked for while
# another one is defined.
_lock = threading.RLock()
_libraries: dict[str, torch.library.Library] = {}
_defined: dict[str, PointwiseOperator] = {}
_is_traced = torch.compiler.is_dynamo_compiling


class _Operator:
    """An operator of torch that computes a program."""

    def __init__(self, name: str, program: _Program, gradients: tuple[_Gradient, ...]) -> None:
        """Defines it; ``name`` is qualified. The caller holds the lock.

        Raises:
            ValueError: torch has an operator of that name, or refuses the name of an operand.
        """
        self.name, self.program, self.gradients = name, program, gradients
        space, short = name.split("::")
        parameters = ", ".join(f"Tensor {operand}" for operand in program.operands)
        schema = f"{short}({parameters}) -> Tensor"
        if _is_defined(name):
            raise ValueError(f"there is an operator {name} already")
        try:
            torch._C.parse_schema(f"{space}::{schema}")
        except RuntimeError:
            raise ValueError(f"torch allows no such operator: {schema}") from None
        library = _libraries.get(space)
        if library is None:
            library = _libraries[space] = torch.library.Library(space, "FRAGMENT")
        library.define(schema, tags=(torch.Tag.pointwise, torch.Tag.pt2_compliant_tag))
        _C.flush_before(name, False)  # its kernel records
        numbers, steps = _device_code(program)
        _C.define_pointwise(
            name,
            len(program.operands),
            numbers,
            steps,
            sorted(program.conditions),
            [(gradient.program is not None, list(gradient.uses)) for gradient in gradients],
            self.evaluate,
            self.gradient_operator,
        )
        library.impl(short, self.evaluate, "CompositeExplicitAutograd")
        torch.library.register_fake(name, self.evaluate, lib=library)
        torch.library.register_vmap(name, self.batched, lib=library)
        self.overload: torch._ops.OpOverload = getattr(getattr(torch.ops, space), short).default

    def evaluate(self, *operands: torch.Tensor) -> torch.Tensor:
        with torch._C._DisableAutocast():  # the dtype is that of the operands
            return _evaluate(self.program, operands)

    def gradient_operator(self, i: int) -> str:
        """The name of the operator of a gradient, defined when it is first needed."""
        program = self.gradients[i].program
        assert program is not None
        space, short = self.name.split("::")
        name = f"{space}::_{short.lstrip('_')}_backward_{self.program.operands[i]}"
        with _lock:
            if not _is_defined(name):
                _Operator(name, program, _derived(program))
        return name

    def batched(
        self, info: Any, in_dims: tuple[int | None, ...], *operands: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """vmap: the batch becomes the first dimension, and the others line up from the right."""
        each = [t if d is None else t.select(d, 0) for t, d in zip(operands, in_dims, strict=True)]
        _, common = elementwise_dtypes(
            *each, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        )
        rank = max(one.dim() for one in each)
        moved = []
        for tensor, d, one in zip(operands, in_dims, each, strict=True):
            # A 0-dim operand has less say in the dtype than the batch of them.
            if common.is_floating_point and tensor.dtype != torch.bool:
                tensor = tensor.to(common)
            if d is not None:
                tensor = tensor.movedim(d, 0)
                index = (slice(None), *(None,) * (rank - one.dim()))
                tensor = tensor[index]
            moved.append(tensor)
        return self.overload(*moved), 0


def _is_defined(name: str) -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(name))


def _device_code(program: _Program) -> tuple[list[float], list[tuple[str, list[int]]]]:
    """The program for the device, where torch computes some operations by simpler ones."""
    first, numbers = len(program.operands), [float(number) for number in program.numbers]
    count = first + len(numbers)  # the place of the next step
    place = list(range(count))
    steps: list[tuple[str, list[int]]] = []

    def add(row: str, *parts: int) -> int:
        steps.append((row, list(parts)))
        return count + len(steps) - 1

    for row, parts in program.steps:
        x, *others = (place[part] for part in parts)
        constant = [numbers[part - first] if first <= part < count else None for part in parts]
        if row == "clamp" and None in constant[1:]:
            place.append(add("minimum", add("maximum", x, others[0]), others[1]))
            continue
        match constant[1] if row == "pow" else None:
            case 2.0:
                x = add("mul", x, x)
            case 3.0:
                x = add("mul", add("mul", x, x), x)
            case -2.0:
                x = add("reciprocal", add("mul", x, x))
            case 0.5:
                x = add("sqrt", x)
            case -0.5:
                x = add("rsqrt", x)
            case -1.0:
                x = add("reciprocal", x)
            case _:
                x = add(row, x, *others)
        place.append(x)
    return numbers, steps


class PointwiseOperator:
    """A pointwise operator that :func:`pointwise` has defined. Call it with one tensor per operand.

    It can be pickled, and is defined anew where it is loaded, unless it is there.

    Attributes:
        name: ``"namespace::name"``.
        expression: what it computes.
        operands: their names, in order.
        derivative: as it was given.
        op: the operator of torch, ``torch.ops.namespace.name.default``. Its own name ends in
            ``__definition_2`` and so on where the name was defined before.
    """

    __slots__ = ("_call", "derivative", "expression", "name", "op", "operands")

    def __init__(
        self,
        name: str,
        expression: str,
        operands: tuple[str, ...],
        derivative: Derivative,
        op: torch._ops.OpOverload,
    ) -> None:
        self.name, self.expression, self.operands = name, expression, operands
        self.derivative, self.op = derivative, op
        self._call = op._op  # without the layers of Python in between

    def __call__(self, *operands: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """Computes the expression.

        Args:
            *operands: tensors of any dtype, strides and shapes that broadcast.
            **named: operands by name.

        Returns:
            a tensor of the broadcast shape, of the operands' common dtype, or bool.

        Raises:
            TypeError: there are more or fewer operands than names, or one is no tensor.
            RuntimeError: what torch's operations raise: of shapes that do not broadcast, or
                operands on several devices.
        """
        result: torch.Tensor
        if _is_traced():
            result = self.op(*operands, **named)  # what dynamo knows
            return result
        try:
            result = self._call(*operands, **named)
        except RuntimeError:
            self._check(operands, named)
            raise
        return result

    def _check(self, operands: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raises what is wrong with the operands, if it is their number or type."""
        given = dict(zip(self.operands, operands, strict=False))
        function = f"{self.name.split('::')[1]}({', '.join(self.operands)})"
        if len(operands) > len(self.operands):
            raise TypeError(
                f"{function} takes {_count(len(self.operands))}, but {len(operands)} were given"
            ) from None
        for name in named:
            if name not in self.operands:
                raise TypeError(f"{function} has no operand {name!r}") from None
            if name in given:
                raise TypeError(f"{function} got the operand {name!r} twice") from None
        given.update(named)
        for name in self.operands:
            if name not in given:
                raise TypeError(f"{function} is missing the operand {name!r}") from None
            if not isinstance(given[name], torch.Tensor):
                kind = type(given[name]).__name__
                raise TypeError(f"{function}: {name} must be a tensor, not {kind}") from None

    def _is(self, expression: str, operands: tuple[str, ...], derivative: Derivative) -> bool:
        ours = self.expression, self.operands, self.derivative
        return ours == (expression, operands, derivative)

    def __repr__(self) -> str:
        return f"<pointwise {self.name}({', '.join(self.operands)}) = {self.expression}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> PointwiseOperator:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.name, self.expression, self.operands, self.derivative)


def _restore(
    name: str, expression: str, operands: tuple[str, ...], derivative: Derivative
) -> PointwiseOperator:
    """What a pickle calls: the operator of that definition."""
    with _lock:
        known = _defined.get(name)
        if known is None:
            return pointwise(name, expression, derivative=derivative, operands=operands)
    if not known._is(expression, operands, derivative):
        raise ValueError(f"the operator {name} is defined otherwise here: {known}")
    return known


def pointwise(
    name: str,
    expression: str,
    *,
    derivative: Derivative = None,
    operands: Sequence[str] | None = None,
) -> PointwiseOperator:
    """Defines a pointwise operator by an expression.

    A name can be defined again, as when the cell of a notebook is run twice. The same definition
    gives the operator that is there; with another one the name, also in ``torch.ops``, stands for
    that from now on. What was made before goes on computing what it was made for.

    An expression has names of operands, numbers, ``+ - * / **``, unary ``-``, comparisons, which
    ``& | ^ ~`` join, and the functions of the op table: ``abs``, ``clamp``, ``cos``, ``erf``,
    ``exp``, ``log``, ``maximum``, ``minimum``, ``pow``, ``relu``, ``rsqrt``, ``sigmoid``, ``sin``,
    ``sqrt``, ``tanh``, ``where`` and others, which the error for an unknown one lists. It means
    what the same line of Python means with torch's functions. Where a number is wanted, a
    comparison counts as 0 or 1.

    Operands are converted to their common dtype (:func:`torch.result_type`). float32 and float64
    have the bits of the expression operation by operation; bfloat16 and float16 are computed in
    float32 and rounded once. If none is floating, every operation promotes as torch's does.

    On hologram a call is recorded as a whole, and fuses with what is around it. On other devices,
    and for fake tensors, it is operations of torch. Autocast leaves it alone.

    Args:
        name: ``"swish"`` for ``torch.ops.hologram_custom.swish``, or ``"mylib::swish"`` for
            ``torch.ops.mylib.swish``.
        expression: such as ``"x * sigmoid(beta * x)"``.
        derivative: the derivative of the expression with respect to each operand: a string if there
            is one operand, else a sequence in their order, or a mapping from their names. Operands
            that are only conditions may be left out of a mapping. By default it is derived from the
            expression; with the convention of torch for each operation. Either way there are
            gradients of gradients, derived from the expressions of the first.
        operands: their names in the order in which they are passed, by default in that in which
            they come in the expression.

    Returns:
        what to call.

    Raises:
        ValueError: the name is no identifier, or one of an operator that this function has not
            defined; the expression, or a derivative, is not
            in the grammar, has an unknown function, an unknown operand, or none; an operand is
            named but not used; or there are more or fewer derivatives than operands. The message
            says where.
        TypeError: an argument is of another type.
    """
    qualified = _qualified(name)
    graph = _Graph()
    what = f"expression of {name}"
    allowed = None if operands is None else _names(name, operands)
    result = _Parser(what, expression, graph, allowed).parse()
    if not graph.operands:
        raise ValueError(f"{what}: no operand in {expression!r}")
    if graph.values[result][0] == "operand":
        raise ValueError(f"{what}: no operation in {expression!r}")
    order = tuple(graph.operands) if allowed is None else allowed  # the parser goes left to right
    program = graph.program(result, order)
    for operand in order:
        if operand not in program.operands:
            raise ValueError(f"{what}: the operand {operand!r} is not used in {expression!r}")
    if derivative is None:
        gradients = _derived(program)
    else:
        gradients = _given(name, program, derivative)
    with _lock:
        known = _defined.get(qualified)
        if known is not None and known._is(expression, program.operands, derivative):
            return known
        made = _Operator(qualified if known is None else _next(qualified), program, gradients)
        public = PointwiseOperator(
            qualified, expression, program.operands, derivative, made.overload
        )
        _defined[qualified] = public
        if known is not None:  # torch.ops.namespace.name is the newest one too
            space, short = qualified.split("::")
            setattr(getattr(torch.ops, space), short, made.overload.overloadpacket)
    return public


def _next(name: str) -> str:
    """The name, in torch, of another definition of an operator. torch keeps the first for good."""
    return next(
        other for i in itertools.count(2) if not _is_defined(other := f"{name}__definition_{i}")
    )


def _qualified(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of an operator must be a string, not {type(name).__name__}")
    space, colons, short = name.rpartition("::")
    space = space if colons else NAMESPACE
    for part in (space, short):
        if not _IDENTIFIER.match(part) or keyword.iskeyword(part):
            raise ValueError(
                f"{name!r} is no name of an operator: it must be an identifier in ASCII, such as "
                "'swish' or 'mylib::swish'"
            )
    return f"{space}::{short}"


def _names(name: str, operands: Sequence[str]) -> tuple[str, ...]:
    if isinstance(operands, str) or not isinstance(operands, Sequence):
        raise TypeError(
            f"{name}: operands must be a sequence of strings, not {type(operands).__name__}"
        )
    for i, operand in enumerate(operands):
        if not isinstance(operand, str):
            raise TypeError(f"{name}: an operand must be a string, not {type(operand).__name__}")
        if not _IDENTIFIER.match(operand) or keyword.iskeyword(operand) or operand in _ROWS:
            raise ValueError(f"{name}: {operand!r} cannot be the name of an operand")
        if operand in operands[:i]:
            raise ValueError(f"{name}: the operand {operand!r} is named twice")
    return tuple(operands)
