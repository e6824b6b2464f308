"""The same random masks on every device, so that training steps of models can be compared.

A device's generator gives other numbers than the CPU's from the same seed, so a model that drops
other elements has another loss. Within `SameDraws` dropout and `bernoulli_`, which is what models
draw while they train, take numbers of a generator of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class SameDraws(TorchFunctionMode):
    """Draws on the CPU, from `seed` on, for whichever device. Attention drops nothing."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.dropout:
            return self._dropout(*args, **kwargs)
        if function is torch.Tensor.bernoulli_:
            return self._bernoulli(*args, **kwargs)
        if function is F.scaled_dot_product_attention and kwargs.get("dropout_p"):
            kwargs = {**kwargs, "dropout_p": 0.0}
        call: Callable[..., Any] = function
        return call(*args, **kwargs)

    def _chances(self, like: Tensor, chance: float) -> Tensor:
        drawn = torch.rand(like.shape, generator=self._generator) < chance
        return drawn.to(like.device)

    def _dropout(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return x
        kept = self._chances(x, 1 - p)
        return x.mul_(kept).div_(1 - p) if inplace else x * kept / (1 - p)

    def _bernoulli(self, x: Tensor, p: float = 0.5) -> Tensor:
        return x.copy_(self._chances(x, p))
