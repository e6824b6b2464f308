"""Gradients of expressions: derived from the op table's rows, or given by the caller."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch_hologram import _C
from torch_hologram.custom.graph import Graph, Program
from torch_hologram.custom.parse import Parser
from torch_hologram.custom.rows import OPERATORS, ROWS, Number, count

# What `derivative` may be.
Derivative: TypeAlias = str | Sequence[str] | Mapping[str, str] | None


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


class _Formula(Parser):
    """A derivative of the op table, over values of a graph.

    Beside the language of expressions it has ``is_number(x)`` and ``is_tensor(x)``, and what is
    known when it is parsed decides: ``where(is_number(y), a, b)`` is a or b.

    Args:
        row: whose derivative it is, for messages.
        values: those that the names stand for.
    """

    most_operations = sys.maxsize  # of the expression it is derived from there is a limit

    def __init__(self, row: str, text: str, graph: Graph, values: Mapping[str, int]) -> None:
        super().__init__(f"derivative of {row}", text, graph)
        self.values = dict(values)
        self.values["pi"] = graph.number(math.pi)
        self.values["shares_ties"] = graph.number(int(_C.clamp_shares_ties))

    def _value(self, node: ast.expr) -> int:
        match node:
            case ast.Name(id=name):
                return self.values[name]
            case ast.Call(func=ast.Name(id="is_number" | "is_tensor" as name), args=[operand]):
                is_number = self.graph.number_of(self._value(operand)) is not None
                return self.graph.number(int(is_number == (name == "is_number")))
            case ast.Call(func=ast.Name(id="where"), args=[condition, x, y]):
                known = self.graph.number_of(self._value(condition))
                if known is not None:
                    return self._value(x if known else y)
        return super()._value(node)

    def _of_numbers(self, node: ast.expr, row: str, numbers: list[Any]) -> Number:
        if row == "log":
            return _log(*numbers)
        if ROWS[row].predicate:
            functions = {"logical_and": min, "logical_or": max}
            return int((OPERATORS.get(row) or functions[row])(*numbers))
        return super()._of_numbers(node, row, numbers)


class _Chain:
    """Derives the gradients of an expression's operands, as torch derives those of its operations.

    Args:
        program: the expression.
        grad: the name of the gradient of its result, an operand of those of the operands.

    Raises:
        NotImplementedError: a row of it has no derivative.
    """

    def __init__(self, program: Program, grad: str) -> None:
        self.graph = Graph((grad, *program.operands))
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

    def _step(self, r: int, g: int) -> None:
        """Gives the operands of the value ``r``, whose gradient is ``g``, theirs."""
        graph = self.graph
        row, parts = graph.values[r]
        if row in ("operand", "number") or ROWS[row].predicate:
            return
        if not ROWS[row].derivative:
            raise NotImplementedError(f"derivative for {row} is not implemented")
        names = {**dict(zip("xyz", parts, strict=False)), "r": r, "g": g}
        for part, text in zip(parts, ROWS[row].derivative, strict=True):
            if graph.number_of(part) is not None:
                continue
            gradient = _Formula(row, text, graph, names).parse()
            if graph.number_of(gradient) == 0:
                continue
            known = self.of.get(part)
            self.of[part] = gradient if known is None else graph.apply("add", known, gradient)


@dataclass(frozen=True)
class Gradient:
    """Of one operand: a program, or where there is none that of the result, or zero.

    ``uses``: what the program's operands are; 0 is the gradient of the result, i + 1 operand i.
    """

    program: Program | None
    uses: tuple[int, ...] = ()


def _gradient(graph: Graph, value: int | None, names: tuple[str, ...]) -> Gradient:
    if value is None:
        return Gradient(None)
    if graph.values[value][0] == "operand":
        return Gradient(None, (0,))
    program = graph.program(value, names)
    return Gradient(program, tuple(names.index(name) for name in program.operands))


def _name_of_grad(operands: Sequence[str]) -> str:
    name = "grad"
    while name in operands:
        name += "_"
    return name


def derived(program: Program) -> tuple[Gradient, ...]:
    """The gradients of an expression's operands; none where a row has no derivative."""
    if program.predicate:
        return ()
    names = (_name_of_grad(program.operands), *program.operands)
    try:
        chain = _Chain(program, names[0])
    except NotImplementedError:
        return ()
    return tuple(_gradient(chain.graph, chain.of.get(v), names) for v in chain.operands)


def given(what: str, program: Program, derivative: Derivative) -> tuple[Gradient, ...]:
    """The gradients from expressions of the derivatives."""
    operands = program.operands
    if isinstance(derivative, str):
        texts: dict[str, str] = {}
        if len(operands) != 1:
            raise ValueError(
                f"{what}: one derivative for {count(len(operands))} ({', '.join(operands)})"
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
                f"{what}: {len(derivative)} derivatives for {count(len(operands))} "
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
        graph = Graph(names)
        value: int | None = None
        if name in texts:
            value = Parser(f"{what}, derivative for {name}", texts[name], graph, operands).parse()
            number = graph.number_of(value)
            grad = graph.operand(names[0])
            if number == 0:
                value = None
            else:
                value = grad if number == 1 else graph.apply("mul", grad, value)
        gradients.append(_gradient(graph, value, names))
    return tuple(gradients)
