"""Modules on an executor's device: ``hg.nn.Linear(executor, 512, 256)``.

They are subclasses of the modules of :mod:`torch.nn` with the same parameters under the same names:
state dicts load both ways, and ``torch.nn.Sequential``, optimizers and hooks take them. What they
are called with may be a tensor of any device, a :class:`~torch_hologram.Buffer` or a NumPy array;
it is moved to the parameters or, where there are none, to the executor's device. A module without
parameters that was given no executor computes where its first argument is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torch_hologram import functional
from torch_hologram.executor import Buffer, Executor

if TYPE_CHECKING:
    from torch_hologram.functional import Operand

__all__ = [
    "GELU",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "train_step",
]


def _device_of(executor: Executor | None) -> torch.device | None:
    if executor is None:
        return None
    if not isinstance(executor, Executor):
        raise TypeError(f"expected an Executor or None, got {type(executor).__name__}")
    executor._check_open()
    return executor.device


def _executor(first: Any) -> Executor:
    if isinstance(first, Executor):
        return first
    raise TypeError(
        "Linear(executor, in_features, out_features) takes an Executor first, got "
        f"{type(first).__name__}"
    )


class Linear(torch.nn.Linear):
    """``x @ weight.T + bias``: (..., in_features) to (..., out_features).

    Args:
        executor: where the parameters are made.
        in_features: last dimension of what it is called with.
        out_features: last dimension of the result.
        bias: whether there is a ``bias``.
        dtype: of the parameters, by default torch's default.

    Raises:
        TypeError: ``executor`` is no executor.
        RuntimeError: the executor is closed.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Linear:
        # Before Python counts the arguments: Linear(3, 4), as of torch, lacks the executor and not
        # `out_features`. Copies and pickles are made without arguments, and the arguments of a
        # subclass are its own.
        if cls is Linear and (arguments or options):
            _executor(arguments[0] if arguments else options.get("executor"))
        return super().__new__(cls)

    def __init__(
        self,
        executor: Executor,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        device = _device_of(_executor(executor))
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Operand) -> torch.Tensor:
        return super().forward(functional.as_tensor(self.weight.device, x))


class _Placed(torch.nn.Module):
    """Gives a module of torch, the class that follows, an executor and operands of all kinds."""

    def __init__(self, *arguments: Any, executor: Executor | None = None, **options: Any) -> None:
        if arguments and isinstance(arguments[0], Executor):
            if executor is not None:
                raise TypeError("the executor is given twice")
            executor, *arguments = arguments  # type: ignore[assignment]
        super().__init__(*arguments, **options)
        # Not the executor, which can be neither copied nor pickled.
        self.device = _device_of(executor)
        if self.device is not None:
            self.to(self.device)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        if self.device is not None:  # Module.to() and the like move it
            self.device = fn(torch.empty(0, device=self.device)).device
        return super()._apply(fn, recurse)

    def forward(self, x: Operand, *operands: Operand) -> torch.Tensor:
        device = self.device
        if device is None:
            device = _device_holding(x)
        placed = (functional.as_tensor(device, operand) for operand in (x, *operands))
        result: torch.Tensor = super().forward(*placed)
        return result


def _device_holding(x: Operand) -> torch.device:
    if isinstance(x, torch.Tensor):
        return x.device
    return x.executor.device if isinstance(x, Buffer) else torch.device("cpu")


class ReLU(_Placed, torch.nn.ReLU):
    """:class:`torch.nn.ReLU`, with an executor as first argument or by name."""


class Sigmoid(_Placed, torch.nn.Sigmoid):
    """:class:`torch.nn.Sigmoid`, with an executor as first argument or by name."""


class Tanh(_Placed, torch.nn.Tanh):
    """:class:`torch.nn.Tanh`, with an executor as first argument or by name."""


class GELU(_Placed, torch.nn.GELU):
    """:class:`torch.nn.GELU`, with an executor as first argument or by name."""


class SiLU(_Placed, torch.nn.SiLU):
    """:class:`torch.nn.SiLU`, with an executor as first argument or by name."""


class Softmax(_Placed, torch.nn.Softmax):
    """:class:`torch.nn.Softmax`, with an executor as first argument or by name."""


class LogSoftmax(_Placed, torch.nn.LogSoftmax):
    """:class:`torch.nn.LogSoftmax`, with an executor as first argument or by name."""


class MSELoss(_Placed, torch.nn.MSELoss):
    """:class:`torch.nn.MSELoss`, with an executor as first argument or by name."""


class CrossEntropyLoss(_Placed, torch.nn.CrossEntropyLoss):
    """:class:`torch.nn.CrossEntropyLoss`, with an executor as first argument or by name."""


class BCELoss(_Placed, torch.nn.BCELoss):
    """:class:`torch.nn.BCELoss`, with an executor as first argument or by name."""


class BCEWithLogitsLoss(_Placed, torch.nn.BCEWithLogitsLoss):
    """:class:`torch.nn.BCEWithLogitsLoss`, with an executor as first argument or by name."""


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: Operand,
    y: Operand,
) -> float:
    """Does one step of training: gradients to zero, forward, backward, optimizer.

    Args:
        model: called with ``x``.
        optimizer: of the model's parameters.
        loss_fn: called with what the model returns and ``y``; returns one element.
        x: the batch, moved to the device of the model's first parameter.
        y: the targets, moved there too.

    Returns:
        the loss before the step.

    Raises:
        ValueError: the model has no parameters.
        RuntimeError: the loss has more than one element, or does not depend on the parameters.
    """
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError(f"{type(model).__name__} has no parameters to train")
    batch, targets = (functional.as_tensor(parameter.device, operand) for operand in (x, y))
    optimizer.zero_grad()
    loss = loss_fn(model(batch), targets)
    loss.backward()
    optimizer.step()
    return loss.item()
