"""Operations of any shape, differentiable: ``hg.functional.NAME(executor, x, ...)``.

An operand is a tensor of any device, a :class:`~torch_hologram.Buffer`, a NumPy array or, where
torch takes one, a number. What is not on the executor's device is copied there, and gradients flow
back; a buffer is used as it is, as a tensor of one dimension. Results are new tensors on the
executor's device. Shapes broadcast, dtypes are promoted and errors are raised as by torch's
function of that name.

All functions raise ``TypeError`` for an operand of another type, and ``RuntimeError`` where the
executor or a buffer is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from torch_hologram.executor import Buffer, Executor

__all__ = [
    "Operand",
    "abs",
    "add",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "buffer_to_tensor",
    "clip",
    "cross_entropy",
    "div",
    "exp",
    "gelu",
    "linear",
    "log",
    "log_softmax",
    "matmul",
    "maximum",
    "minimum",
    "mse_loss",
    "mul",
    "neg",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "sqrt",
    "sub",
    "tanh",
    "tensor_to_buffer",
    "to_device",
]

Operand: TypeAlias = "torch.Tensor | Buffer | np.ndarray[Any, Any]"
_Number: TypeAlias = "float | int | bool | complex"


def to_device(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns an operand as a tensor on the executor's device.

    A tensor that is there is returned as it is, and a buffer that is there shares its memory. The
    rest is copied; gradients of a tensor flow back.

    Raises:
        TypeError: ``x`` is neither tensor nor buffer nor array, or of a dtype that torch has not.
        RuntimeError: the executor or the buffer is closed.
    """
    if not isinstance(executor, Executor):
        raise TypeError(f"expected an Executor first, got {type(executor).__name__}")
    executor._check_open()
    return as_tensor(executor.device, x)


def as_tensor(device: torch.device, x: Operand) -> torch.Tensor:
    """See :func:`to_device`."""
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if isinstance(x, Buffer):
        return x._data().to(device)
    if isinstance(x, np.ndarray):
        # torch takes no negative strides, and warns of what it may not write.
        return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(device)
    raise TypeError(f"expected a tensor, a Buffer or a numpy array, got {type(x).__name__}")


def tensor_to_buffer(executor: Executor, tensor: torch.Tensor) -> Buffer:
    """Returns a buffer of a tensor's elements, row by row.

    Of a contiguous tensor on the executor's device no copy is made: buffer and tensor share the
    memory, which lives until both are gone, and closing the buffer takes nothing from the tensor.
    Another tensor is copied. Gradients do not flow through a buffer.

    Raises:
        TypeError: ``tensor`` is no strided tensor, or NumPy has no such dtype.
        RuntimeError: the executor is closed.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        kind = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(f"expected a strided tensor, got {kind}")
    data = to_device(executor, tensor.detach()).resolve_conj().resolve_neg().contiguous()
    return executor._buffer_over(data.view(-1))


def buffer_to_tensor(buffer: Buffer, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Returns a tensor that shares a buffer's memory, by default of one dimension.

    The tensor keeps the memory, also when the buffer is closed. autograd does not see what is
    written to the buffer afterwards.

    Args:
        buffer: the buffer.
        shape: of the tensor, as many elements as the buffer has; one dimension may be -1.

    Raises:
        TypeError: ``buffer`` is no buffer.
        RuntimeError: the shape is of another number of elements, or the buffer is closed.
    """
    if not isinstance(buffer, Buffer):
        raise TypeError(f"expected a Buffer, got {type(buffer).__name__}")
    data = buffer._data().detach()
    return data if shape is None else data.view(tuple(shape))


def _apply(
    function: Callable[..., torch.Tensor], executor: Executor, *operands: Any, **options: Any
) -> torch.Tensor:
    # What is on the device, as it mostly is, is found out by trying: asking costs as much as an
    # addition of 100 elements.
    try:
        if executor._open and operands[0].device == executor._device:
            return function(*operands, **options)
    except (AttributeError, RuntimeError, TypeError):
        pass  # and again, with every operand on the device
    return function(*(_moved(executor, operand) for operand in operands), **options)


def _moved(executor: Executor, operand: Any) -> Any:
    if operand is None or isinstance(operand, (bool, int, float, complex)):
        return operand
    return operand.item() if isinstance(operand, np.generic) else to_device(executor, operand)


# ---- element by element ----


def add(executor: Executor, x: Operand, y: Operand | _Number, alpha: _Number = 1) -> torch.Tensor:
    """Returns ``x + alpha * y``."""
    if alpha == 1:
        return _apply(torch.add, executor, x, y)
    return _apply(torch.add, executor, x, y, alpha=alpha)


def sub(executor: Executor, x: Operand, y: Operand | _Number, alpha: _Number = 1) -> torch.Tensor:
    """Returns ``x - alpha * y``."""
    return _apply(torch.sub, executor, x, y, alpha=alpha)


def mul(executor: Executor, x: Operand, y: Operand | _Number) -> torch.Tensor:
    """Returns ``x * y``."""
    return _apply(torch.mul, executor, x, y)


def div(
    executor: Executor, x: Operand, y: Operand | _Number, rounding_mode: str | None = None
) -> torch.Tensor:
    """Returns ``x / y``.

    Args:
        executor: where.
        x: the dividend.
        y: the divisor.
        rounding_mode: ``None``, ``"trunc"`` (towards zero) or ``"floor"``.

    Raises:
        RuntimeError: there is no such rounding mode, or of integers an element of ``y`` is 0.
    """
    return _apply(torch.div, executor, x, y, rounding_mode=rounding_mode)


def minimum(executor: Executor, x: Operand, y: Operand) -> torch.Tensor:
    """Returns the smaller elements, NaN where either is."""
    return _apply(torch.minimum, executor, x, y)


def maximum(executor: Executor, x: Operand, y: Operand) -> torch.Tensor:
    """Returns the larger elements, NaN where either is."""
    return _apply(torch.maximum, executor, x, y)


def abs(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns ``|x|``."""
    return _apply(torch.abs, executor, x)


def neg(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns ``-x``."""
    return _apply(torch.neg, executor, x)


def exp(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns ``e**x``."""
    return _apply(torch.exp, executor, x)


def log(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns the natural logarithm."""
    return _apply(torch.log, executor, x)


def sqrt(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns the square root."""
    return _apply(torch.sqrt, executor, x)


def clip(
    executor: Executor,
    x: Operand,
    low: _Number | None = None,
    high: _Number | None = None,
) -> torch.Tensor:
    """Returns ``min(max(x, low), high)``; ``None`` is no limit.

    Raises:
        RuntimeError: both limits are ``None``.
    """
    return _apply(torch.clamp, executor, x, low, high)


# ---- activations ----


def relu(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns ``max(x, 0)``."""
    return _apply(torch.relu, executor, x)


def sigmoid(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns ``1 / (1 + exp(-x))``."""
    return _apply(torch.sigmoid, executor, x)


def tanh(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns the hyperbolic tangent."""
    return _apply(torch.tanh, executor, x)


def silu(executor: Executor, x: Operand) -> torch.Tensor:
    """Returns ``x * sigmoid(x)``."""
    return _apply(functional.silu, executor, x)


def gelu(executor: Executor, x: Operand, approximate: str = "none") -> torch.Tensor:
    """Returns ``x * Phi(x)``, Phi the normal distribution's (:class:`torch.nn.GELU`).

    Args:
        executor: where.
        x: the operand.
        approximate: ``"none"``, or ``"tanh"`` for the form of ``hg.ops.gelu``.

    Raises:
        RuntimeError: ``approximate`` is something else.
    """
    return _apply(functional.gelu, executor, x, approximate=approximate)


def softmax(executor: Executor, x: Operand, dim: int = -1) -> torch.Tensor:
    """Returns ``exp(x) / sum(exp(x))`` along a dimension, by default the last.

    Raises:
        IndexError: there is no such dimension.
    """
    return _apply(torch.softmax, executor, x, dim=dim)


def log_softmax(executor: Executor, x: Operand, dim: int = -1) -> torch.Tensor:
    """Returns the logarithm of :func:`softmax`.

    Raises:
        IndexError: there is no such dimension.
    """
    return _apply(torch.log_softmax, executor, x, dim=dim)


# ---- matrices ----


def matmul(executor: Executor, x: Operand, y: Operand) -> torch.Tensor:
    """Returns ``x @ y`` with the shapes of :func:`torch.matmul`.

    Raises:
        RuntimeError: the shapes do not go together.
    """
    return _apply(torch.matmul, executor, x, y)


def linear(
    executor: Executor, x: Operand, weight: Operand, bias: Operand | None = None
) -> torch.Tensor:
    """Returns ``x @ weight.T + bias``.

    Args:
        executor: where.
        x: of shape (..., in).
        weight: of shape (out, in).
        bias: of shape (out,), or ``None``.

    Raises:
        RuntimeError: the shapes do not go together.
    """
    return _apply(functional.linear, executor, x, weight, bias)


# ---- losses ----


def mse_loss(
    executor: Executor, x: Operand, target: Operand, reduction: str = "mean"
) -> torch.Tensor:
    """Returns the mean, ``"sum"`` or ``"none"`` of ``(x - target)**2``.

    Raises:
        ValueError: there is no such reduction.
        RuntimeError: the shapes do not go together.
    """
    return _apply(functional.mse_loss, executor, x, target, reduction=reduction)


def cross_entropy(
    executor: Executor,
    logits: Operand,
    target: Operand,
    weight: Operand | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Returns the cross entropy of classes, as :func:`torch.nn.functional.cross_entropy`.

    Args:
        executor: where.
        logits: of shape (n, classes) or (classes,), before the softmax.
        target: int64 class indices of shape (n,) or (), or probabilities, shaped as ``logits``.
        weight: of each class, of shape (classes,).
        ignore_index: a target that does not count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: 0 to 1, how much of the target is spread over all classes.

    Raises:
        IndexError: a class index is out of range.
        ValueError: there is no such reduction, or ``logits`` and ``target`` differ in length.
        RuntimeError: the shapes or dtypes do not go together.
    """
    return _apply(
        functional.cross_entropy,
        executor,
        logits,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def binary_cross_entropy(
    executor: Executor,
    x: Operand,
    target: Operand,
    weight: Operand | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """Returns the mean, ``"sum"`` or ``"none"`` of ``-(t * log(x) + (1 - t) * log(1 - x))``.

    ``x`` are probabilities; the logarithms are -100 at least. ``weight`` multiplies the elements.

    Raises:
        ValueError: there is no such reduction, or ``target`` is of another shape.
        RuntimeError: an element of ``x`` is not from 0 to 1.
    """
    return _apply(functional.binary_cross_entropy, executor, x, target, weight, reduction=reduction)


def binary_cross_entropy_with_logits(
    executor: Executor,
    logits: Operand,
    target: Operand,
    weight: Operand | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """Returns :func:`binary_cross_entropy` of ``sigmoid(logits)``, without its overflows.

    Raises:
        ValueError: there is no such reduction, or ``target`` is of another shape.
    """
    return _apply(
        functional.binary_cross_entropy_with_logits,
        executor,
        logits,
        target,
        weight,
        reduction=reduction,
    )
