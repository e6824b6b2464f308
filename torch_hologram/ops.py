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

# The declared functions get their bodies from _operation():
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.nn import functional as torch_functional

from torch_hologram.executor import Buffer, Executor, address_of

__all__ = [
    "BUFFERS",
    "binary_cross_entropy_loss",
    "cross_entropy_loss",
    "exp",
    "fill",
    "gelu",
    "gemm",
    "log",
    "mad",
    "matvec",
    "memcpy",
    "mse_loss",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "scalar_add",
    "scalar_mul",
    "sigmoid",
    "softmax",
    "sqrt",
    "tanh",
    "vector_abs",
    "vector_add",
    "vector_add_i32",
    "vector_clip",
    "vector_div",
    "vector_div_i32",
    "vector_max",
    "vector_min",
    "vector_mul",
    "vector_mul_i32",
    "vector_neg",
    "vector_relu",
    "vector_sub",
    "vector_sub_i32",
]

_FLOAT = torch.float32
_INT = torch.int32

# How many buffers each function takes.
BUFFERS: dict[str, int] = {"gemm": 3, "matvec": 3}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _operation(code: str) -> Callable[[_Function], _Function]:
    """Gives a function of this module its body.

    The function declares parameters and result, for readers and type checkers. What it does is
    written around ``code`` and compiled: ``code`` is of tensors, which have the names of the
    buffers. It is the result where the function returns a float, and writes the last buffer where
    it returns nothing. What is called stands in the function itself, and buffers of equal lengths
    are asked one question each: small operations are as quick as torch's.
    """

    def define(declared: _Function) -> _Function:
        name = declared.__name__
        signature = inspect.signature(declared)
        parameters = signature.parameters.values()
        buffers = [p.name for p in parameters if p.annotation == "Buffer"]
        returns = signature.return_annotation == "float"
        dtype, length = (_INT, "_i32") if name.endswith("_i32") else (_FLOAT, "_f32")
        of = buffers[0] if returns else buffers[-1]
        equal = " == ".join(f"{buffer}.{length}" for buffer in buffers)
        pairs = ", ".join(f'("{buffer}", {buffer})' for buffer in buffers)
        names = [p.name if p.default is p.empty else f"{p.name}=None" for p in parameters]
        text = f"""
def {name}({", ".join(names)}):
    try:
        quick = n is None and executor._open and {equal} >= 0
    except AttributeError:  # something else than an executor and buffers
        quick = False
    if quick:
        {"; ".join(f"{buffer} = {buffer}._tensor" for buffer in buffers)}
    else:
        {", ".join(buffers)}, = checked("{name}", executor, dtype, ({pairs},), n, {of!r})
    {"return " if returns else ""}{code}
"""
        namespace: dict[str, Any] = {**_NAMES, "checked": checked, "dtype": dtype}
        exec(compile(text, f"<{__name__}.{name}>", "exec"), namespace)
        BUFFERS[name] = len(buffers)
        functools.update_wrapper(namespace[name], declared)
        written: _Function = namespace[name]
        return written

    return define


def checked(
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
        if quick:
            x, y, z = a._tensor, b._tensor, c._tensor
            assert x is not None and y is not None and z is not None
            first, second, product = x.view(m, k), y.view(k, n), z.view(m, n)
    except (AttributeError, TypeError):  # something else than an executor, buffers and integers
        quick = False
    if quick:
        torch.mm(first, second, out=product)
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
        if quick:
            first, vector, out = a._tensor, x._tensor, y._tensor
            assert first is not None and vector is not None and out is not None
            matrix, column = first.view(m, n), vector
    except (AttributeError, TypeError):
        quick = False
    if quick:
        torch.mv(matrix, column, out=out)
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


# What the code of an operation calls.
_NAMES = {
    "torch": torch,
    "functional": torch_functional,
    "divide": _divide,
    "extreme": _extreme,
    "gelu_tanh": torch._C._nn.gelu,
}


# ---- element by element ----


@_operation("torch.add(a, b, out=c)")
def vector_add(executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = a + b``."""


@_operation("torch.sub(a, b, out=c)")
def vector_sub(executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = a - b``."""


@_operation("torch.mul(a, b, out=c)")
def vector_mul(executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = a * b``."""


@_operation("torch.div(a, b, out=c)")
def vector_div(executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = a / b``."""


@_operation("torch.minimum(a, b, out=c)")
def vector_min(executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = min(a, b)``, NaN where either operand is."""


@_operation("torch.maximum(a, b, out=c)")
def vector_max(executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = max(a, b)``, NaN where either operand is."""


@_operation("torch.abs(a, out=c)")
def vector_abs(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = |a|``."""


@_operation("torch.neg(a, out=c)")
def vector_neg(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = -a``."""


@_operation("c.copy_(torch.relu(a))")
def vector_relu(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = max(a, 0)``, NaN of NaN."""


@_operation("torch.clamp(a, low, high, out=c)")
def vector_clip(
    executor: Executor, a: Buffer, c: Buffer, low: float, high: float, n: int | None = None
) -> None:
    """``c = min(max(a, low), high)``, NaN of NaN."""


@_operation("torch.add(a, value, out=c)")
def scalar_add(
    executor: Executor, a: Buffer, c: Buffer, value: float, n: int | None = None
) -> None:
    """``c = a + value``."""


@_operation("torch.mul(a, value, out=c)")
def scalar_mul(
    executor: Executor, a: Buffer, c: Buffer, value: float, n: int | None = None
) -> None:
    """``c = a * value``."""


@_operation("torch.sqrt(a, out=c)")
def sqrt(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = sqrt(a)``, NaN below 0."""


@_operation("torch.exp(a, out=c)")
def exp(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = e**a``."""


@_operation("torch.log(a, out=c)")
def log(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = log(a)``, the natural logarithm: -inf of 0, NaN below."""


@_operation("torch.add(torch.mul(a, b), c, out=d)")
def mad(
    executor: Executor, a: Buffer, b: Buffer, c: Buffer, d: Buffer, n: int | None = None
) -> None:
    """``d = a * b + c``, the product rounded before the sum."""


@_operation("c.copy_(a)")
def memcpy(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = a``."""


@_operation("c.fill_(value)")
def fill(executor: Executor, c: Buffer, value: float, n: int | None = None) -> None:
    """``c = value``."""


# ---- activations ----


@_operation("torch.sigmoid(a, out=c)")
def sigmoid(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = 1 / (1 + exp(-a))``."""


@_operation("torch.tanh(a, out=c)")
def tanh(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = tanh(a)``."""


@_operation('gelu_tanh(a, approximate="tanh", out=c)')
def gelu(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = 0.5 * a * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 * a**3)))``.

    The tanh form, ``torch.nn.functional.gelu(a, approximate="tanh")``, from Hendrycks and Gimpel,
    Gaussian Error Linear Units, arXiv:1606.08415.
    """


@_operation("torch.softmax(a, 0, out=c)")
def softmax(executor: Executor, a: Buffer, c: Buffer, n: int | None = None) -> None:
    """``c = exp(a - max(a)) / sum(exp(a - max(a)))``: all elements are one row."""


# ---- numbers ----


@_operation("a.sum().item()")
def reduce_sum(executor: Executor, a: Buffer, n: int | None = None) -> float:
    """Returns the sum, 0 of none."""


@_operation('extreme("reduce_min", torch.amin, a)')
def reduce_min(executor: Executor, a: Buffer, n: int | None = None) -> float:
    """Returns the smallest element, NaN where there is one.

    Raises:
        RuntimeError: there is no element.
    """


@_operation('extreme("reduce_max", torch.amax, a)')
def reduce_max(executor: Executor, a: Buffer, n: int | None = None) -> float:
    """Returns the largest element, NaN where there is one.

    Raises:
        RuntimeError: there is no element.
    """


@_operation("functional.mse_loss(predictions, targets).item()")
def mse_loss(
    executor: Executor, predictions: Buffer, targets: Buffer, n: int | None = None
) -> float:
    """Returns the mean of ``(predictions - targets)**2``, NaN of none."""


@_operation("-(targets * torch.log(predictions).clamp(min=-100)).mean().item()")
def cross_entropy_loss(
    executor: Executor, predictions: Buffer, targets: Buffer, n: int | None = None
) -> float:
    """Returns ``-sum(targets * log(predictions)) / n``, NaN of none.

    Predictions are probabilities; the logarithm is -100 at least, as of
    :class:`torch.nn.BCELoss`.
    """


@_operation("functional.binary_cross_entropy(predictions, targets).item()")
def binary_cross_entropy_loss(
    executor: Executor, predictions: Buffer, targets: Buffer, n: int | None = None
) -> float:
    """Returns ``-sum(t * log(p) + (1 - t) * log(1 - p)) / n``, NaN of none.

    As :class:`torch.nn.BCELoss`: the logarithms are -100 at least.

    Raises:
        RuntimeError: a prediction is not from 0 to 1.
    """


# ---- integers of 32 bits ----


@_operation("torch.add(a, b, out=c)")
def vector_add_i32(
    executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None
) -> None:
    """``c = a + b``, wraps."""


@_operation("torch.sub(a, b, out=c)")
def vector_sub_i32(
    executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None
) -> None:
    """``c = a - b``, wraps."""


@_operation("torch.mul(a, b, out=c)")
def vector_mul_i32(
    executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None
) -> None:
    """``c = a * b``, wraps."""


@_operation("divide(a, b, c)")
def vector_div_i32(
    executor: Executor, a: Buffer, b: Buffer, c: Buffer, n: int | None = None
) -> None:
    """``c = a / b`` towards zero; ``-2**31 / -1`` wraps to ``-2**31``.

    Raises:
        RuntimeError: an element of ``b`` is 0; ``c`` is as it was.
    """
