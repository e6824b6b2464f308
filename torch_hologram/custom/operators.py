"""Operators of torch that compute expressions, and the function that defines them."""

from __future__ import annotations

import itertools
import keyword
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from torch_hologram import _C
from torch_hologram.custom.evaluate import evaluate
from torch_hologram.custom.gradients import Derivative, Gradient, derived, given
from torch_hologram.custom.graph import Graph, Program
from torch_hologram.custom.parse import IDENTIFIER, Parser
from torch_hologram.custom.rows import ROWS, count

NAMESPACE = "hologram_custom"

# Defines one operator at a time. Reentrant, for an operator of a gradient may be asked for while
# another one is defined.
_lock = threading.RLock()
_libraries: dict[str, torch.library.Library] = {}
_defined: dict[str, PointwiseOperator] = {}
_is_traced = torch.compiler.is_dynamo_compiling


class _Operator:
    """An operator of torch that computes a program."""

    def __init__(self, name: str, program: Program, gradients: tuple[Gradient, ...]) -> None:
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
            return evaluate(self.program, operands)

    def gradient_operator(self, i: int) -> str:
        """The name of the operator of a gradient, defined when it is first needed."""
        program = self.gradients[i].program
        assert program is not None
        space, short = self.name.split("::")
        name = f"{space}::_{short.lstrip('_')}_backward_{self.program.operands[i]}"
        with _lock:
            if not _is_defined(name):
                _Operator(name, program, derived(program))
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


def _device_code(program: Program) -> tuple[list[float], list[tuple[str, list[int]]]]:
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
                f"{function} takes {count(len(self.operands))}, but {len(operands)} were given"
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
    graph = Graph()
    what = f"expression of {name}"
    allowed = None if operands is None else _names(name, operands)
    result = Parser(what, expression, graph, allowed).parse()
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
        gradients = derived(program)
    else:
        gradients = given(name, program, derivative)
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
        if not IDENTIFIER.match(part) or keyword.iskeyword(part):
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
        if not IDENTIFIER.match(operand) or keyword.iskeyword(operand) or operand in ROWS:
            raise ValueError(f"{name}: {operand!r} cannot be the name of an operand")
        if operand in operands[:i]:
            raise ValueError(f"{name}: the operand {operand!r} is named twice")
    return tuple(operands)
