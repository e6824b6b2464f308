"""What a user does with a model of any library: training steps, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Parameters = Iterable[nn.Parameter]

# The optimizers that the training loops of the libraries' examples use; models take them in turn.
OPTIMIZERS: dict[str, Callable[[Parameters], Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.05),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=1e-4),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False, amsgrad=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True, foreach=True),
}
_turn = cycle(OPTIMIZERS)


def next_optimizer() -> Callable[[Parameters], Optimizer]:
    """The optimizer of the next model."""
    return OPTIMIZERS[next(_turn)]


def train(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    make_optimizer: Callable[[Parameters], Optimizer] | None = None,
    autocast: bool = True,
) -> None:
    """Three steps of training: two in the model's dtype, one under autocast to bfloat16.

    `autocast=False`: all three in the model's dtype.

    The first step of an optimizer makes its state and the second reads it, so one is not enough.
    Gradients are clipped to a norm, and the learning rate follows a cosine.

    `loss_of`: one forward pass, a 0-dim floating-point tensor.
    """
    model.train()
    device = next(model.parameters()).device
    optimizer = (make_optimizer or next_optimizer())(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    for mixed in (False, False, True):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=mixed and autocast):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        loss.item()


def evaluate(
    model: nn.Module, output_of: Callable[[], Tensor | None], autocast: bool = True
) -> None:
    """Evaluation: without gradients, under inference mode, and under autocast to bfloat16.

    `autocast=False`: without the last of these.

    `output_of`: one forward pass; the floating-point tensor to take predictions from (its last
    dimension are the classes), or None where there is none.
    """
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        _predictions(output_of())
    with torch.inference_mode():
        _predictions(output_of())
    if autocast:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            _predictions(output_of())


def _predictions(logits: Tensor | None) -> None:
    """What evaluation loops do with the output of a classifier."""
    if logits is None:
        return
    best = logits.argmax(-1)
    probabilities = logits.float().softmax(-1)
    _, top = probabilities.topk(min(5, logits.shape[-1]), dim=-1)
    (top == best.unsqueeze(-1)).any(-1).float().mean().item()
    best.cpu()
