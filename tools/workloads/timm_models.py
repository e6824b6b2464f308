"""timm models, made small by their image: one name of each family, without weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from workloads import Workload
from workloads.training import evaluate, train

BATCH, CLASSES = 2, 10

# Name of the model, and what `timm.create_model` is told beside `num_classes`. `size` is the side
# of the image; models that fix it at construction are told it as `img_size`.
MODELS: dict[str, dict[str, Any]] = {
    # Convolutional.
    "resnet18": {"size": 64},
    "resnet26d": {"size": 64, "drop_path_rate": 0.1, "drop_block_rate": 0.1},
    "seresnext26t_32x4d": {"size": 64},
    "res2net50_26w_4s": {"size": 64},
    "gcresnet33ts": {"size": 64},
    "eca_resnet33ts": {"size": 64},
    "skresnet18": {"size": 64},
    "regnetx_002": {"size": 64},
    "regnety_002": {"size": 64},
    "densenet121": {"size": 64},
    "vgg11_bn": {"size": 64},
    "inception_v3": {"size": 96},
    "dla34": {"size": 64},
    "hrnet_w18_small": {"size": 64},
    "efficientnet_b0": {"size": 64, "drop_path_rate": 0.2},
    "mobilenetv2_050": {"size": 64},
    "mobilenetv3_small_050": {"size": 64},
    "ghostnet_050": {"size": 64},
    "mixnet_s": {"size": 64},
    "repvgg_a0": {"size": 64},
    "nf_resnet26": {"size": 64},
    "eca_nfnet_l0": {"size": 64},
    "convnext_atto": {"size": 64, "drop_path_rate": 0.1},
    "convnextv2_atto": {"size": 64},
    "edgenext_xx_small": {"size": 64},
    "starnet_s1": {"size": 64},
    # Attention and mixing.
    "vit_tiny_patch16_224": {"size": 64, "img_size": 64, "drop_path_rate": 0.1},
    "deit_tiny_distilled_patch16_224": {"size": 64, "img_size": 64},
    "beit_base_patch16_224": {
        "size": 64,
        "img_size": 64,
        "embed_dim": 64,
        "depth": 2,
        "num_heads": 4,
        "init_values": 0.1,
    },
    "eva02_tiny_patch14_224": {"size": 56, "img_size": 56},
    "swin_tiny_patch4_window7_224": {
        "size": 56,
        "img_size": 56,
        "embed_dim": 32,
        "depths": (2, 2, 2),
        "num_heads": (2, 4, 8),
    },
    "swinv2_tiny_window8_256": {
        "size": 64,
        "img_size": 64,
        "embed_dim": 32,
        "depths": (2, 2, 2),
        "num_heads": (2, 4, 8),
    },
    "cait_xxs24_224": {"size": 64, "img_size": 64, "depth": 2},
    "xcit_nano_12_p16_224": {"size": 64, "depth": 2},
    "levit_128s": {"size": 64, "img_size": 64},
    "pit_ti_224": {"size": 64, "img_size": 64},
    "pvt_v2_b0": {"size": 64},
    "twins_svt_small": {"size": 64, "img_size": 64, "depths": (1, 1, 2, 1)},
    "poolformerv2_s12": {"size": 64},
    "mobilevit_xxs": {"size": 64},
    "coat_tiny": {"size": 64, "img_size": 64},
    "crossvit_tiny_240": {"size": 240},
    "davit_tiny": {"size": 64, "depths": (1, 1, 1, 1), "embed_dims": (24, 48, 96, 192)},
    "focalnet_tiny_srf": {"size": 64},
    "maxvit_rmlp_pico_rw_256": {"size": 64, "img_size": 64},
    "coatnet_0_rw_224": {"size": 64, "img_size": 64},
    "halonet26t": {"size": 256},
    "lambda_resnet26t": {"size": 64},
    "efficientformer_l1": {"size": 224},
    "efficientvit_b0": {"size": 64},
    "fastvit_t8": {"size": 64},
    "hiera_tiny_224": {"size": 224},
    "mixer_s32_224": {"size": 64, "img_size": 64},
    "gmlp_ti16_224": {"size": 64, "img_size": 64},
    "resmlp_12_224": {"size": 64, "img_size": 64},
    "mambaout_femto": {"size": 64},
}


def workloads() -> list[Workload]:
    """One for each model."""
    return [Workload("timm", name, _prepare(name, **told)) for name, told in MODELS.items()]


def _prepare(name: str, size: int, **told: Any) -> Callable[[torch.device], Callable[[], None]]:
    def prepare(device: torch.device) -> Callable[[], None]:
        timm = importlib.import_module("timm")
        model = timm.create_model(name, pretrained=False, num_classes=CLASSES, **told).to(device)
        images = torch.randn(BATCH, 3, size, size).to(device)
        labels = torch.arange(BATCH).to(device)
        # timm's own losses and averaging of weights belong to how its models are trained.
        loss = importlib.import_module("timm.loss").LabelSmoothingCrossEntropy(0.1)
        average = importlib.import_module("timm.utils").ModelEmaV3(model, decay=0.99)

        def predict() -> torch.Tensor:
            output = model(images)
            logits: torch.Tensor = output[0] if isinstance(output, tuple) else output
            return logits

        def run() -> None:
            train(model, lambda: loss(predict(), labels))
            average.update(model)
            evaluate(model, predict)
            with torch.no_grad():
                F.cross_entropy(predict(), labels).item()

        return run

    return prepare
