"""An expression as numbered values: while it grows, and when it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_hologram.custom.rows import ROWS, Number, truths


@dataclass(frozen=True)
class Program:
    """An expression as values, numbered: operands, numbers, then the result of each step.

    The last step is the result. ``conditions`` are the operands that have to be bool.
    """

    operands: tuple[str, ...]
    numbers: tuple[Number, ...]
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    conditions: frozenset[int]

    @property
    def predicate(self) -> bool:
        return ROWS[self.steps[-1][0]].predicate


class Graph:
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
        return row != "number" and ROWS[row].predicate

    def program(self, result: int, operands: Sequence[str]) -> Program:
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
            conditions |= {place[part] for part in truths(row, parts) if place[part] < len(used)}
        return Program(
            tuple(used),
            tuple(self.values[value][1][0] for value in numbers),
            tuple(code),
            frozenset(conditions),
        )
