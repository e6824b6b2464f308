"""Entries like those of torch's `module_db` for the modules of torch.nn that it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_dtype import floating_types
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput, module_db

# Modules without a forward of their own, and those that need what a test of one process on one
# device does not have.
LEFT_OUT: dict[type[nn.Module], str] = {
    nn.Module: "abstract",
    nn.Container: "abstract",
    nn.RNNBase: "abstract",
    nn.RNNCellBase: "abstract",
    nn.ModuleDict: "a container without forward",
    nn.ModuleList: "a container without forward",
    nn.ParameterDict: "a container without forward",
    nn.ParameterList: "a container without forward",
    nn.DataParallel: "several devices; test/test_data_parallel.py",
    nn.SyncBatchNorm: "a process group",
    nn.NLLLoss2d: "deprecated name of NLLLoss",
}

Make = Callable[..., torch.Tensor]


def _entry(
    module: type[nn.Module],
    arguments: dict[str, Any],
    inputs: Callable[[Make], tuple[Any, ...]],
    *,
    differ: bool = False,
) -> ModuleInfo:
    """One input for `module(**arguments)`: what `inputs(make)` returns; make(*shape) is random."""

    def module_inputs(
        info: ModuleInfo,
        device: str,
        dtype: torch.dtype,
        requires_grad: bool,
        training: bool,
        **_: Any,
    ) -> list[ModuleInput]:
        def make(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=device, dtype=dtype).requires_grad_(requires_grad)

        return [
            ModuleInput(
                constructor_input=FunctionInput(**arguments),
                forward_input=FunctionInput(*inputs(make)),
            )
        ]

    return ModuleInfo(
        module,
        module_inputs_func=module_inputs,
        dtypes=floating_types(),
        train_and_eval_differ=differ,
    )


def _sequence(*arguments: nn.Module) -> ModuleInfo:
    info = _entry(nn.Sequential, {}, lambda make: (make(2, 3),))
    plain = info.module_inputs_func

    def module_inputs(*args: Any, **kwargs: Any) -> list[ModuleInput]:
        (sample,) = plain(*args, **kwargs)
        sample.constructor_input = FunctionInput(*arguments)
        return [sample]

    info.module_inputs_func = module_inputs
    return info


def _pooled(pool: Callable[..., Any], make: Make, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = pool(make(*shape).detach(), 2, return_indices=True)
    return values.requires_grad_(), indices


def _decoder() -> nn.Module:
    return nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)


F = nn.functional

MORE_MODULES: list[ModuleInfo] = [
    _entry(
        nn.AdaptiveLogSoftmaxWithLoss,
        {"in_features": 8, "n_classes": 10, "cutoffs": [3, 6]},
        lambda make: (make(4, 8), torch.tensor([0, 4, 9, 2])),
    ),
    _entry(nn.AlphaDropout, {"p": 0.4}, lambda make: (make(3, 5),), differ=True),
    _entry(nn.ChannelShuffle, {"groups": 2}, lambda make: (make(2, 4, 3, 3),)),
    _entry(nn.CosineSimilarity, {}, lambda make: (make(3, 5), make(3, 5))),
    _entry(nn.CrossMapLRN2d, {"size": 3}, lambda make: (make(1, 4, 3, 3),)),
    _entry(nn.Dropout, {"p": 0.4}, lambda make: (make(3, 5),), differ=True),
    _entry(nn.Dropout1d, {"p": 0.4}, lambda make: (make(2, 3, 5),), differ=True),
    _entry(nn.Dropout2d, {"p": 0.4}, lambda make: (make(2, 3, 4, 4),), differ=True),
    _entry(nn.Dropout3d, {"p": 0.4}, lambda make: (make(2, 3, 2, 2, 2),), differ=True),
    _entry(
        nn.EmbeddingBag,
        {"num_embeddings": 10, "embedding_dim": 3},
        lambda make: (torch.tensor([[1, 2, 4], [4, 3, 9]]),),
    ),
    _entry(nn.FeatureAlphaDropout, {"p": 0.4}, lambda make: (make(2, 3, 4),), differ=True),
    _entry(nn.Flatten, {}, lambda make: (make(2, 3, 4),)),
    _entry(nn.Fold, {"output_size": (4, 5), "kernel_size": 2}, lambda make: (make(1, 12, 12),)),
    _entry(nn.Hardsigmoid, {}, lambda make: (make(3, 5),)),
    _entry(nn.Identity, {}, lambda make: (make(3, 5),)),
    _entry(nn.LazyBatchNorm1d, {}, lambda make: (make(4, 3),), differ=True),
    _entry(nn.LazyBatchNorm2d, {}, lambda make: (make(4, 3, 2, 2),), differ=True),
    _entry(nn.LazyBatchNorm3d, {}, lambda make: (make(4, 3, 2, 2, 2),), differ=True),
    _entry(nn.LazyInstanceNorm1d, {}, lambda make: (make(2, 3, 5),), differ=True),
    _entry(nn.LazyInstanceNorm2d, {}, lambda make: (make(2, 3, 4, 4),), differ=True),
    _entry(nn.LazyInstanceNorm3d, {}, lambda make: (make(2, 3, 2, 3, 2),), differ=True),
    _entry(nn.LazyLinear, {"out_features": 4}, lambda make: (make(2, 3),)),
    _entry(nn.MaxUnpool1d, {"kernel_size": 2}, lambda make: _pooled(F.max_pool1d, make, 1, 2, 6)),
    _entry(
        nn.MaxUnpool2d, {"kernel_size": 2}, lambda make: _pooled(F.max_pool2d, make, 1, 2, 4, 4)
    ),
    _entry(
        nn.MaxUnpool3d, {"kernel_size": 2}, lambda make: _pooled(F.max_pool3d, make, 1, 2, 4, 4, 4)
    ),
    _entry(nn.PairwiseDistance, {}, lambda make: (make(3, 5), make(3, 5))),
    _entry(nn.PixelShuffle, {"upscale_factor": 2}, lambda make: (make(1, 8, 3, 3),)),
    _entry(nn.PixelUnshuffle, {"downscale_factor": 2}, lambda make: (make(1, 2, 4, 4),)),
    _entry(nn.RReLU, {}, lambda make: (make(3, 5),), differ=True),
    _sequence(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
    _entry(
        nn.TransformerDecoder,
        {"decoder_layer": _decoder(), "num_layers": 2},
        lambda make: (make(2, 3, 8), make(2, 4, 8)),
        differ=True,
    ),
    _entry(nn.TripletMarginLoss, {}, lambda make: (make(3, 5), make(3, 5), make(3, 5))),
    _entry(nn.TripletMarginWithDistanceLoss, {}, lambda make: tuple(make(3, 5) for _ in range(3))),
    _entry(nn.Unflatten, {"dim": 1, "unflattened_size": (2, 3)}, lambda make: (make(2, 6),)),
    _entry(nn.Unfold, {"kernel_size": 2}, lambda make: (make(1, 2, 4, 5),)),
    _entry(
        nn.Upsample,
        {"scale_factor": 2.0, "mode": "bicubic"},
        lambda make: (make(1, 2, 3, 3),),
    ),
    _entry(nn.UpsamplingBilinear2d, {"scale_factor": 2}, lambda make: (make(1, 2, 3, 3),)),
    _entry(nn.UpsamplingNearest2d, {"scale_factor": 2}, lambda make: (make(1, 2, 3, 3),)),
]

EVERY_MODULE: list[ModuleInfo] = [*module_db, *MORE_MODULES]
