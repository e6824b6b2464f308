"""The models that benchmarks/models.py measures: random weights, one fixed batch each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision_stand_in import import_timm

VOCABULARY = 1000
CLASSES = 1000
IMAGES, SIDE = 4, 64  # images in a batch, and the side of one in pixels


@dataclass
class Program:
    """A model with a batch, on one device.

    predict: forward pass; the tensors to compare. loss: forward pass in training, 0-dim.
    """

    module: nn.Module
    predict: Callable[[], list[Tensor]]
    loss: Callable[[], Tensor]


@dataclass(frozen=True)
class Model:
    """A row of the table. `make(device)` gives equal programs on every device."""

    name: str
    size: str
    make: Callable[[torch.device], Program]
    note: str = ""  # where it is not the model one would expect of the name: why


def _seeded(module: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return module()


# ---- transformers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Transformer:
    """`architecture`: a class of transformers, made of `config` with `settings`."""

    config: str
    architecture: str
    batch: Callable[[], dict[str, Tensor]]
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, device: torch.device) -> Program:
        import transformers

        transformers.logging.set_verbosity_error()
        config = getattr(transformers, self.config)(**self.settings)
        module = _seeded(lambda: getattr(transformers, self.architecture)(config)).to(device)
        torch.manual_seed(1)
        batch = {name: value.to(device) for name, value in self.batch().items()}
        labels = batch.pop("labels")
        # In evaluation an encoder-decoder is given the tokens that it has written so far.
        written = {"decoder_input_ids": labels} if config.is_encoder_decoder else {}
        return Program(
            module,
            predict=lambda: [module(**batch, **written).logits],
            loss=lambda: module(**batch, labels=labels).loss,
        )


def _text(length: int) -> Callable[[], dict[str, Tensor]]:
    def batch() -> dict[str, Tensor]:
        ids, labels = torch.randint(VOCABULARY, (2, 4, length))
        return {"input_ids": ids, "labels": labels}

    return batch


def _speech() -> dict[str, Tensor]:
    """Spectrograms of 80 bands and 128 frames, and texts of 16 tokens."""
    return {
        "input_features": torch.randn(4, 80, 128),
        "labels": torch.randint(VOCABULARY, (4, 16)),
    }


_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_D128 = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}


def _transformers() -> list[Model]:
    text = _text(64)
    return [
        Model("gpt2", "d128 L4 s64 b4", _Transformer("GPT2Config", "GPT2LMHeadModel", text, {
            **_TOKENS, "n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64,
        })),
        Model("llama", "d128 L4 s64 b4", _Transformer("LlamaConfig", "LlamaForCausalLM", text, {
            **_TOKENS, **_D128, "intermediate_size": 352, "max_position_embeddings": 64,
        })),
        Model("bert", "d128 L4 s64 b4", _Transformer("BertConfig", "BertForMaskedLM", text, {
            **_TOKENS, **_D128, "intermediate_size": 512, "max_position_embeddings": 64,
        })),
        Model("distilbert", "d128 L4 s64 b4", _Transformer(
            "DistilBertConfig", "DistilBertForMaskedLM", text,
            {**_TOKENS, "dim": 128, "n_layers": 4, "n_heads": 4, "hidden_dim": 512,
             "max_position_embeddings": 64},
        )),
        Model("t5", "d128 L2 s32 b4", _Transformer(
            "T5Config", "T5ForConditionalGeneration", _text(32),
            {**_TOKENS, "d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4,
             "decoder_start_token_id": 0},
        )),
        Model("whisper", "d128 L2 128 frames b4", _Transformer(
            "WhisperConfig", "WhisperForConditionalGeneration", _speech,
            {**_TOKENS, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 512,
             "decoder_ffn_dim": 512, "max_source_positions": 64, "max_target_positions": 64,
             "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None},
        ), "a tiny one: of whisper's own sizes the smallest is d384 L4, 3000 frames"),
    ]  # fmt: skip


# ---- torch's own layers --------------------------------------------------------------------------


def _recurrent(kind: Callable[[int, int], nn.Module]) -> Callable[[torch.device], Program]:
    def make(device: torch.device) -> Program:
        module = _seeded(lambda: kind(64, 128)).to(device)
        torch.manual_seed(1)
        x = torch.randn(32, 8, 64).to(device)
        return Program(
            module,
            predict=lambda: [module(x)[0]],
            loss=lambda: module(x)[0].square().mean(),
        )

    return make


def _perceptron(device: torch.device) -> Program:
    module = _seeded(
        lambda: nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10))
    ).to(device)
    torch.manual_seed(1)
    x, target = torch.randn(128, 784).to(device), torch.randint(10, (128,)).to(device)
    return Program(
        module,
        predict=lambda: [module(x)],
        loss=lambda: F.cross_entropy(module(x), target),
    )


# ---- timm ----------------------------------------------------------------------------------------


def _images(name: str, **settings: Any) -> Callable[[torch.device], Program]:
    def make(device: torch.device) -> Program:
        timm = import_timm()
        module = _seeded(
            lambda: timm.create_model(name, pretrained=False, num_classes=CLASSES, **settings)
        ).to(device)
        torch.manual_seed(1)
        x = torch.randn(IMAGES, 3, SIDE, SIDE).to(device)
        target = torch.randint(CLASSES, (IMAGES,)).to(device)
        return Program(
            module,
            predict=lambda: [module(x)],
            loss=lambda: F.cross_entropy(module(x), target),
        )

    return make


def _timm() -> list[Model]:
    fixed = {"img_size": SIDE}  # models that are made for one size of image
    settings: dict[str, dict[str, Any]] = {
        "resnet18": {},
        "mobilenetv3_small_050": {},
        "convnext_atto": {},
        "vit_tiny_patch16_224": fixed,
        "efficientnet_b0": {},
        "densenet121": {},
        "regnety_002": {},
        "swin_tiny_patch4_window7_224": fixed,
        "mixer_s32_224": fixed,
        "ghostnet_050": {},
        "mobilevit_xxs": {},
    }
    return [
        Model(name.split("_patch")[0].removesuffix("_224"), f"{SIDE}x{SIDE} b{IMAGES}",
              _images(name, **told))
        for name, told in settings.items()
    ]  # fmt: skip


MODELS: tuple[Model, ...] = (
    *_transformers(),
    Model("LSTM", "64 to 128, b8 s32", _recurrent(nn.LSTM)),
    Model("GRU", "64 to 128, b8 s32", _recurrent(nn.GRU)),
    Model("MLP", "784-1024-10 b128", _perceptron),
    *_timm(),
)
