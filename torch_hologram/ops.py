"""Operations on flat buffers: ``hg.ops.NAME(executor, *buffers, n=None)``.

Every function takes the executor, then buffers that were allocated before, the result last among
them, then numbers. The elements are float32, in the functions that end in ``_i32`` int32. ``n`` is
how many elements take part, from the front; by default as many as the result has or, where the
result is a number, as the first buffer has. Buffers may be longer than ``n``, and the result may be
one of the operands. Results equal those of torch's operator on the device bit for bit.

All functions raise ``ValueError`` where a buffer is too short or ``n`` is negative, ``TypeError``
where an argument is of another type or a buffer of another dtype, and ``RuntimeError`` where the
executor or a buffer is closed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from torch_hologram.executor import Buffer, Executor, address_of

_FLOAT = torch.float32
_INT = torch.int32
_INT_MIN = torch.iinfo(_INT).min


@dataclass(frozen=True)
class _Operation:
    """A function of this module: its text, of which Python makes one with a signature of its own.

    What is called is written into the function, and buffers of equal lengths are asked one question
    each: small operations are as quick as torch's.
    """

    name: str
    buffers: str  # in the order of the parameters; results, if any, last
    code: str  # of the tensors, which have the names of the buffers
    doc: str
    numbers: str = ""  # parameters after the buffers
    returns: bool = False  # `code` is the result, a float; else it writes the last buffer
    dtype: torch.dtype = _FLOAT

    def define(self) -> Callable[..., Any]:
        buffers = self.buffers.split()
        length = "_f32" if self.dtype == _FLOAT else "_i32"
        of = buffers[0] if self.returns else buffers[-1]
        equal = " == ".join(f"{name}.{length}" for name in buffers)
        pairs = ", ".join(f'("{name}", {name})' for name in buffers)
        text = f"""
def {self.name}({", ".join(["executor", *buffers, *self.numbers.split(), "n=None"])}):
    try:
        quick = n is None and executor._open and {equal} >= 0
    except AttributeError:  # something else than an executor and buffers
        quick = False
    if quick:
        {"; ".join(f"{name} = {name}._tensor" for name in buffers)}
    else:
        {", ".join(buffers)}, = checked("{self.name}", executor, dtype, ({pairs},), n, {of!r})
    {"return " if self.returns else ""}{self.code}
"""
        namespace: dict[str, Any] = {**_NAMES, "checked": _checked, "dtype": self.dtype}
        exec(compile(text, f"<{__name__}.{self.name}>", "exec"), namespace)
        function: Callable[..., Any] = namespace[self.name]
        function.__doc__ = self.doc
        function.__module__ = __name__
        return function


def _checked(
    name: str,
    executor: Executor,
    dtype: torch.dtype,
    buffers: Sequence[tuple[str, Buffer]],
    n: int | None,
    of: str,
) -> list[torch.Tensor]:
    """The first ``n`` elements of each buffer; of as many as buffer ``of`` has where it is None."""
    tensors = _tensors(name, executor, dtype, buffers)
    if n is None:
        count = tensors[of].numel()
        because = f"{of} has {count} elements"
    else:
        try:
            count = operator.index(n)
        except TypeError:
            raise TypeError(f"{name}: n must be an integer, not {type(n).__name__}") from None
        if count < 0:
            raise ValueError(f"{name}: n is {count}, which is negative")
        because = f"n is {count}"
    return [_front(name, *pair, count, because) for pair in tensors.items()]


def _tensors(
    name: str, executor: Executor, dtype: torch.dtype, buffers: Sequence[tuple[str, Buffer]]
) -> dict[str, torch.Tensor]:
    """The tensors of buffers, by their names, when all is open and of that dtype."""
    if not isinstance(executor, Executor):
        raise TypeError(f"{name}: expected an Executor first, got {type(executor).__name__}")
    executor._check_open()
    tensors = {}
    for parameter, buffer in buffers:
        if not isinstance(buffer, Buffer):
            raise TypeError(f"{name}: {parameter} must be a Buffer, not {type(buffer).__name__}")
        tensor = tensors[parameter] = buffer._data()
        if tensor.dtype != dtype:
            raise TypeError(
                f"{name}: {parameter} is a buffer of {buffer.dtype}, not of "
                f"{str(dtype).removeprefix('torch.')}"
            )
    return tensors


def _front(name: str, parameter: str, tensor: torch.Tensor, n: int, because: str) -> torch.Tensor:
    if tensor.numel() < n:
        raise ValueError(f"{name}: {because}, but {parameter} has {tensor.numel()} elements")
    return tensor if tensor.numel() == n else tensor[:n]


def _matrices(
    name: str,
    executor: Executor,
    operands: tuple[tuple[str, Buffer, tuple[str, ...]], ...],
    sizes: dict[str, int],
) -> list[torch.Tensor]:
    """Buffers as tensors, each of a shape in names of ``sizes``."""
    tensors = _tensors(name, executor, _FLOAT, [operand[:2] for operand in operands])
    for dimension, size in sizes.items():
        try:
            sizes[dimension] = operator.index(size)
        except TypeError:
            kind = type(size).__name__
            raise TypeError(f"{name}: {dimension} must be an integer, not {kind}") from None
        if sizes[dimension] < 0:
            raise ValueError(f"{name}: {dimension} is {size}, which is negative")
    views = []
    for parameter, _, dimensions in operands:
        shape = [sizes[dimension] for dimension in dimensions]
        count = math.prod(shape)
        because = f"{' * '.join(dimensions)} is {count}"
        views.append(_front(name, parameter, tensors[parameter], count, because).view(shape))
    return views


def _multiply(
    function: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> None:
    start, first, second = address_of(c), address_of(a), address_of(b)
    end = start + 4 * c.numel()
    if (first >= end or first + 4 * a.numel() <= start) and (
        second >= end or second + 4 * b.numel() <= start
    ):
        function(a, b, out=c)
    else:  # torch's products read operands while they write the result
        c.copy_(function(a, b))


def gemm(executor: Executor, a: Buffer, b: Buffer, c: Buffer, m: int, k: int, n: int) -> None:
    """``c[m, n] = a[m, k] @ b[k, n]``, all row-major."""
    try:
        quick = (
            m > 0
            and 0 < m * k == a._f32
            and 0 < k * n == b._f32
            and c._f32 == m * n
            and executor._open
            and (a._own and b._own and c._own and a is not c is not b)
        )
    except (AttributeError, TypeError):  # something else than an executor, buffers and integers
        quick = False
    if quick:
        x, y, z = a._tensor, b._tensor, c._tensor
        assert x is not None and y is not None and z is not None
        torch.mm(x.view(m, k), y.view(k, n), out=z.view(m, n))
    else:
        operands = (("a", a, ("m", "k")), ("b", b, ("k", "n")), ("c", c, ("m", "n")))
        _multiply(torch.mm, *_matrices("gemm", executor, operands, {"m": m, "k": k, "n": n}))


def matvec(executor: Executor, a: Buffer, x: Buffer, y: Buffer, m: int, n: int) -> None:
    """``y[m] = a[m, n] @ x[n]``, ``a`` row-major."""
    try:
        quick = (
            m > 0
            and 0 < m * n == a._f32
            and (x._f32 == n and y._f32 == m and executor._open)
            and (a._own and x._own and y._own and a is not y is not x)
        )
    except (AttributeError, TypeError):
        quick = False
    if quick:
        matrix, vector, out = a._tensor, x._tensor, y._tensor
        assert matrix is not None and vector is not None
        torch.mv(matrix.view(m, n), vector, out=out)
    else:
        operands = (("a", a, ("m", "n")), ("x", x, ("n",)), ("y", y, ("m",)))
        _multiply(torch.mv, *_matrices("matvec", executor, operands, {"m": m, "n": n}))


def _divide(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    # Of 64 bits, where -2^31 / -1 is a number: the processor's division of 32 bits traps. The cast
    # wraps.
    try:
        c.copy_(torch.div(a.long(), b.long(), rounding_mode="trunc"))
    except RuntimeError:
        zeros = torch.nonzero(b.cpu() == 0)
        if len(zeros) == 0:
            raise
        index = int(zeros[0])
        raise RuntimeError(f"vector_div_i32: integer division by zero, b[{index}] is 0") from None


def _extreme(
    name: str, function: Callable[[torch.Tensor], torch.Tensor], a: torch.Tensor
) -> float | int:
    if a.numel() == 0:
        raise RuntimeError(f"{name}: there is no element")
    return function(a).item()


_NAMES = {
    "torch": torch,
    "functional": functional,
    "divide": _divide,
    "extreme": _extreme,
    "gelu_tanh": torch._C._nn.gelu,
}
_NAN = "NaN where either operand is."

_OPERATIONS = (
    _Operation("vector_add", "a b c", "torch.add(a, b, out=c)", "``c = a + b``."),
    _Operation("vector_sub", "a b c", "torch.sub(a, b, out=c)", "``c = a - b``."),
    _Operation("vector_mul", "a b c", "torch.mul(a, b, out=c)", "``c = a * b``."),
    _Operation("vector_div", "a b c", "torch.div(a, b, out=c)", "``c = a / b``."),
    _Operation("vector_min", "a b c", "torch.minimum(a, b, out=c)", f"``c = min(a, b)``, {_NAN}"),
    _Operation("vector_max", "a b c", "torch.maximum(a, b, out=c)", f"``c = max(a, b)``, {_NAN}"),
    _Operation("vector_abs", "a c", "torch.abs(a, out=c)", "``c = |a|``."),
    _Operation("vector_neg", "a c", "torch.neg(a, out=c)", "``c = -a``."),
    _Operation("vector_relu", "a c", "c.copy_(torch.relu(a))", "``c = max(a, 0)``, NaN of NaN."),
    _Operation(
        "vector_clip",
        "a c",
        "torch.clamp(a, low, high, out=c)",
        "``c = min(max(a, low), high)``, NaN of NaN.",
        "low high",
    ),
    _Operation("scalar_add", "a c", "torch.add(a, value, out=c)", "``c = a + value``.", "value"),
    _Operation("scalar_mul", "a c", "torch.mul(a, value, out=c)", "``c = a * value``.", "value"),
    _Operation("sigmoid", "a c", "torch.sigmoid(a, out=c)", "``c = 1 / (1 + exp(-a))``."),
    _Operation("tanh", "a c", "torch.tanh(a, out=c)", "``c = tanh(a)``."),
    _Operation(
        "gelu",
        "a c",
        'gelu_tanh(a, approximate="tanh", out=c)',
        "``c = 0.5 * a * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 * a**3)))``.\n\n"
        '    The tanh form, ``torch.nn.functional.gelu(a, approximate="tanh")``, from Hendrycks\n'
        "    and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415.\n    ",
    ),
    _Operation(
        "softmax",
        "a c",
        "torch.softmax(a, 0, out=c)",
        "``c = exp(a - max(a)) / sum(exp(a - max(a)))``: all elements are one row.",
    ),
    _Operation(
        "mad",
        "a b c d",
        "torch.add(torch.mul(a, b), c, out=d)",
        "``d = a * b + c``, the product rounded before the sum.",
    ),
    _Operation("memcpy", "a c", "c.copy_(a)", "``c = a``."),
    _Operation("fill", "c", "c.fill_(value)", "``c = value``.", "value"),
    _Operation("reduce_sum", "a", "a.sum().item()", "Returns the sum, 0 of none.", returns=True),
    _Operation(
        "reduce_min",
        "a",
        'extreme("reduce_min", torch.amin, a)',
        "Returns the smallest element, NaN where there is one.\n\n"
        "    Raises:\n        RuntimeError: there is no element.\n    ",
        returns=True,
    ),
    _Operation(
        "reduce_max",
        "a",
        'extreme("reduce_max", torch.amax, a)',
        "Returns the largest element, NaN where there is one.\n\n"
        "    Raises:\n        RuntimeError: there is no element.\n    ",
        returns=True,
    ),
    _Operation(
        "mse_loss",
        "predictions targets",
        "functional.mse_loss(predictions, targets).item()",
        "Returns the mean of ``(predictions - targets)**2``, NaN of none.",
        returns=True,
    ),
    _Operation(
        "cross_entropy_loss",
        "predictions targets",
        "-(targets * torch.log(predictions).clamp(min=-100)).mean().item()",
        "Returns ``-sum(targets * log(predictions)) / n``, NaN of none.\n\n"
        "    Predictions are probabilities; the logarithm is -100 at least, as of\n"
        "    :class:`torch.nn.BCELoss`.\n    ",
        returns=True,
    ),
    _Operation(
        "binary_cross_entropy_loss",
        "predictions targets",
        "functional.binary_cross_entropy(predictions, targets).item()",
        "Returns ``-sum(t * log(p) + (1 - t) * log(1 - p)) / n``, NaN of none.\n\n"
        "    As :class:`torch.nn.BCELoss`: the logarithms are -100 at least.\n\n"
        "    Raises:\n        RuntimeError: a prediction is not from 0 to 1.\n    ",
        returns=True,
    ),
    _Operation(
        "vector_add_i32", "a b c", "torch.add(a, b, out=c)", "``c = a + b``, wraps.", dtype=_INT
    ),
    _Operation(
        "vector_sub_i32", "a b c", "torch.sub(a, b, out=c)", "``c = a - b``, wraps.", dtype=_INT
    ),
    _Operation(
        "vector_mul_i32", "a b c", "torch.mul(a, b, out=c)", "``c = a * b``, wraps.", dtype=_INT
    ),
    _Operation(
        "vector_div_i32",
        "a b c",
        "divide(a, b, c)",
        "``c = a / b`` towards zero; ``-2**31 / -1`` wraps to ``-2**31``.\n\n"
        "    Raises:\n        RuntimeError: an element of ``b`` is 0; ``c`` is as it was.\n    ",
        dtype=_INT,
    ),
)

# How many buffers each function takes.
BUFFERS = {
    **{operation.name: len(operation.buffers.split()) for operation in _OPERATIONS},
    "gemm": 3,
    "matvec": 3,
}

globals().update((operation.name, operation.define()) for operation in _OPERATIONS)

__all__ = ["BUFFERS", *BUFFERS]  # noqa: PLE0604
