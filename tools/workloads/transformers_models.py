"""Small random configurations of transformers models.

A row of MODELS is one model: its type as `transformers.AutoConfig` knows it, the auto class that
puts a head on it, the settings that make it small, and the batch it is trained on. A new model is
a row.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workloads import Workload
from workloads.training import evaluate, train

Batch = dict[str, Any]

BATCH, LENGTH, VOCABULARY, CLASSES = 2, 16, 99, 5


def _ids() -> Tensor:
    """Token ids (BATCH, LENGTH), int64, none of them special."""
    return torch.randint(5, VOCABULARY, (BATCH, LENGTH))


def _text() -> Batch:
    """Two texts, the second padded on the right."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -3:] = 0
    return {"input_ids": _ids(), "attention_mask": mask}


def causal() -> Batch:
    """For language models, causal and masked: a label for each token, some of them ignored."""
    batch = _text()
    labels = batch["input_ids"].clone()
    labels[:, :2] = -100
    return {**batch, "labels": labels}


def sequence_to_sequence() -> Batch:
    """For encoder-decoders: the target is another text."""
    return {**_text(), "labels": _ids()}


def sentences() -> Batch:
    """For classifiers of whole texts."""
    return {**_text(), "labels": torch.arange(BATCH)}


def tokens() -> Batch:
    """For classifiers of tokens."""
    return {**_text(), "labels": torch.randint(CLASSES, (BATCH, LENGTH))}


def questions() -> Batch:
    """For extractive question answering: the answer is a span."""
    return {
        **_text(),
        "start_positions": torch.tensor([1, 3]),
        "end_positions": torch.tensor([4, 5]),
    }


def choices() -> Batch:
    """For multiple choice: two candidates for each of BATCH questions."""
    pairs = {name: value.unsqueeze(1).repeat(1, 2, 1) for name, value in _text().items()}
    return {**pairs, "labels": torch.tensor([0, 1])}


def sentence_pairs() -> Batch:
    """For BERT's own pretraining: tokens and the order of sentences."""
    return {**causal(), "next_sentence_label": torch.tensor([0, 1])}


def images() -> Batch:
    """For image classifiers, 3 x 32 x 32."""
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.arange(BATCH)}


def pixels() -> Batch:
    """For semantic segmentation, 3 x 64 x 64: a label for each pixel, some of them ignored."""
    labels = torch.randint(CLASSES, (BATCH, 64, 64))
    labels[:, :4] = 255
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": labels}


def boxes() -> Batch:
    """For object detection, 3 x 64 x 64: three boxes (centre, size) in each image."""
    targets = [
        {"class_labels": torch.tensor([0, 2, 1]), "boxes": torch.rand(3, 4) * 0.5 + 0.25}
        for _ in range(BATCH)
    ]
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": targets}


def depths() -> Batch:
    """For models that predict one value for each pixel; they have no loss of their own."""
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64)}


def masks() -> Batch:
    """For instance segmentation, 3 x 64 x 64: two masks in each image."""
    return {
        "pixel_values": torch.randn(BATCH, 3, 64, 64),
        "mask_labels": [(torch.rand(2, 64, 64) > 0.5).float() for _ in range(BATCH)],
        "class_labels": [torch.tensor([0, 1]) for _ in range(BATCH)],
    }


def video() -> Batch:
    """For video classifiers: 4 frames of 3 x 32 x 32."""
    return {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32), "labels": torch.arange(BATCH)}


def image_and_text() -> Batch:
    """For contrastive pairs of images and texts."""
    return {**_text(), "pixel_values": torch.randn(BATCH, 3, 32, 32), "return_loss": True}


def captions() -> Batch:
    """For models that write a text about an image."""
    return {**causal(), "pixel_values": torch.randn(BATCH, 3, 32, 32)}


def prompts() -> Batch:
    """For promptable segmentation: one point in each image."""
    return {
        "pixel_values": torch.randn(BATCH, 3, 32, 32),
        "input_points": torch.rand(BATCH, 1, 1, 2) * 32,
        "input_labels": torch.ones(BATCH, 1, 1, dtype=torch.int64),
    }


def speech() -> Batch:
    """For recognition from the wave form: BATCH waves, int64 labels."""
    return {"input_values": torch.randn(BATCH, 3200), "labels": torch.randint(5, 30, (BATCH, 4))}


def spoken_classes() -> Batch:
    """For classifiers of wave forms."""
    return {"input_values": torch.randn(BATCH, 3200), "labels": torch.arange(BATCH)}


def spectrogram() -> Batch:
    """For classifiers of spectrograms of 32 frames and 16 bands."""
    return {"input_values": torch.randn(BATCH, 32, 16), "labels": torch.arange(BATCH)}


def whisper_speech() -> Batch:
    """For Whisper: spectrograms of 80 bands and 60 frames, and a text."""
    return {"input_features": torch.randn(BATCH, 80, 60), "labels": _ids()}


def translated_speech() -> Batch:
    """For Speech2Text: spectrograms of 60 frames and 80 bands, and a text."""
    return {"input_features": torch.randn(BATCH, 60, 80), "labels": _ids()}


def wave() -> Batch:
    """For neural codecs; they have no loss of their own."""
    return {"input_values": torch.randn(BATCH, 1, 3200)}


def series() -> Batch:
    """For forecasting transformers: 20 past values, of which 7 lag, and 4 future values."""
    return {
        "past_values": torch.rand(BATCH, 20) + 1.0,
        "past_time_features": torch.randn(BATCH, 20, 2),
        "past_observed_mask": torch.ones(BATCH, 20),
        "future_values": torch.rand(BATCH, 4),
        "future_time_features": torch.randn(BATCH, 4, 2),
    }


def channels() -> Batch:
    """For patched forecasting: 32 past and 8 future values of 2 channels."""
    return {
        "past_values": torch.randn(BATCH, 32, 2),
        "past_observed_mask": torch.ones(BATCH, 32, 2),
        "future_values": torch.randn(BATCH, 8, 2),
    }


@dataclass(frozen=True)
class Row:
    """One model; `settings` go to its configuration."""

    kind: str
    head: str  # AutoModelFor<head>, a class of its own, or AutoModel where this is empty
    batch: Callable[[], Batch]
    settings: dict[str, Any] = field(default_factory=dict)
    generates: bool = False
    autocast: bool = True  # its code works under autocast


WIDTH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, **WIDTH, **SPECIAL}
DECODER = {"num_key_value_heads": 2, "head_dim": 8, **TEXT}
GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    **SPECIAL,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "output_router_logits": True}
ENCODER_DECODER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
BART = {
    **ENCODER_DECODER,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    **SPECIAL,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
IMAGE = {"image_size": 32, "patch_size": 8, "num_labels": CLASSES, **WIDTH}
PYRAMID = {"num_labels": CLASSES, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 32, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}
DETECTOR = {
    "num_queries": 8,
    "num_labels": CLASSES,
    **ENCODER_DECODER,
    "backbone_config": RESNET,
    "use_pretrained_backbone": False,
}
PAIR = {
    "text_config": {**TEXT, "projection_dim": 32},
    "vision_config": {**WIDTH, "image_size": 32, "patch_size": 8, "projection_dim": 32},
    "projection_dim": 32,
}
AUDIO = {
    "vocab_size": 32,
    "num_labels": CLASSES,
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 4, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.2,
    "mask_time_length": 2,
    "classifier_proj_size": 32,
    **WIDTH,
}
SERIES = {
    "prediction_length": 4,
    "context_length": 13,
    "lags_sequence": [1, 2, 3, 4, 5, 6, 7],
    "num_time_features": 2,
    "d_model": 16,
    "num_parallel_samples": 4,
}

MODELS = (
    # Decoders.
    Row("gpt2", "CausalLM", causal, GPT, generates=True),
    Row("gpt2", "CausalLM", causal, {**GPT, "attn_implementation": "eager"}, generates=True),
    Row("gpt_neo", "CausalLM", causal, {
        **TEXT, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
    }, generates=True),
    Row("gptj", "CausalLM", causal, {**GPT, "rotary_dim": 4}, generates=True),
    Row("gpt_neox", "CausalLM", causal, TEXT, generates=True),
    Row("codegen", "CausalLM", causal, {**GPT, "rotary_dim": 4}, generates=True),
    Row("opt", "CausalLM", causal, {
        **TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32,
    }, generates=True),
    Row("bloom", "CausalLM", causal, {
        "vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4, **SPECIAL,
    }, generates=True),
    Row("mpt", "CausalLM", causal, {
        "vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64,
        **SPECIAL,
    }, generates=True),
    Row("falcon", "CausalLM", causal, TEXT, generates=True),
    Row("falcon", "CausalLM", causal, {**TEXT, "alibi": True}, generates=True),
    Row("llama", "CausalLM", causal, DECODER, generates=True),
    Row("llama", "SequenceClassification", sentences, {**DECODER, "num_labels": CLASSES}),
    Row("mistral", "CausalLM", causal, {**DECODER, "sliding_window": 8}, generates=True),
    Row("mixtral", "CausalLM", causal, {
        **DECODER, "num_local_experts": 4, **EXPERTS,
    }, generates=True),
    Row("gemma", "CausalLM", causal, DECODER, generates=True),
    Row("gemma2", "CausalLM", causal, {**DECODER, "sliding_window": 8}, generates=True),
    Row("gemma3_text", "CausalLM", causal, {**DECODER, "sliding_window": 8}, generates=True),
    Row("qwen2", "CausalLM", causal, DECODER, generates=True),
    Row("qwen2_moe", "CausalLM", causal, {
        **DECODER, "num_experts": 4, "shared_expert_intermediate_size": 32, **EXPERTS,
    }, generates=True),
    Row("qwen3", "CausalLM", causal, DECODER, generates=True),
    Row("qwen3_next", "CausalLM", causal, {
        **DECODER, "num_experts": 4, "shared_expert_intermediate_size": 32, **EXPERTS,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"],
    }, generates=True),
    Row("phi", "CausalLM", causal, {**TEXT, "num_key_value_heads": 2}, generates=True),
    Row("phi3", "CausalLM", causal, {**TEXT, "num_key_value_heads": 2}, generates=True),
    Row("stablelm", "CausalLM", causal, {**TEXT, "num_key_value_heads": 2}, generates=True),
    Row("olmo2", "CausalLM", causal, {**TEXT, "num_key_value_heads": 2}, generates=True),
    Row("cohere", "CausalLM", causal, {**TEXT, "num_key_value_heads": 2}, generates=True),
    Row("deepseek_v3", "CausalLM", causal, {
        **TEXT, **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2,
        "topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
    }, generates=True),
    Row("gpt_oss", "CausalLM", causal, {
        **DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
    }, generates=True),
    Row("mamba", "CausalLM", causal, {**TEXT, "state_size": 4}, generates=True),
    Row("mamba2", "CausalLM", causal, {
        **TEXT, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8,
    }, generates=True),
    Row("rwkv", "CausalLM", causal, {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64,
    }),
    Row("jamba", "CausalLM", causal, {
        **TEXT, "num_key_value_heads": 2, "num_experts": 2, "use_mamba_kernels": False,
        "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4,
    }, generates=True),
    Row("recurrent_gemma", "CausalLM", causal, {
        **TEXT, "num_key_value_heads": 2, "lru_width": 32, "attention_window_size": 8,
        "block_types": ["recurrent", "attention"],
    }, generates=True),
    Row("xlnet", "CausalLM", causal, {
        "vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64,
    }),
    # Encoders of text.
    Row("bert", "MaskedLM", causal, TEXT),
    Row("bert", "PreTraining", sentence_pairs, TEXT),
    Row("bert", "QuestionAnswering", questions, {**TEXT, "attn_implementation": "eager"}),
    Row("roberta", "SequenceClassification", sentences, {**TEXT, "num_labels": CLASSES}),
    Row("distilbert", "TokenClassification", tokens, {
        "vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4,
        "num_labels": CLASSES,
    }),
    Row("albert", "MultipleChoice", choices, {**TEXT, "embedding_size": 16}),
    Row("electra", "TokenClassification", tokens, {
        **TEXT, "embedding_size": 16, "num_labels": CLASSES,
    }),
    Row("deberta", "MaskedLM", causal, {
        **TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
    }, autocast=False),
    Row("deberta-v2", "SequenceClassification", sentences, {
        **TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8,
        "num_labels": CLASSES,
    }),
    Row("mpnet", "MaskedLM", causal, TEXT),
    Row("modernbert", "MaskedLM", causal, {**TEXT, "local_attention": 8}),
    Row("squeezebert", "SequenceClassification", sentences, {
        **TEXT, "embedding_size": 32, "num_labels": CLASSES,
    }),
    Row("fnet", "MaskedLM", causal, TEXT, autocast=False),  # no Fourier transform of bfloat16
    Row("convbert", "MaskedLM", causal, {**TEXT, "embedding_size": 16, "conv_kernel_size": 3}),
    Row("funnel", "MaskedLM", causal, {
        "vocab_size": VOCABULARY, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64,
        "block_sizes": [1, 1], "num_decoder_layers": 1,
    }),
    Row("longformer", "MaskedLM", causal, {**TEXT, "attention_window": 8}),
    Row("big_bird", "MaskedLM", causal, {
        **TEXT, "block_size": 2, "num_random_blocks": 1,
    }, autocast=False),
    Row("reformer", "MaskedLM", causal, {
        "vocab_size": VOCABULARY, "hidden_size": 32, "attention_head_size": 8,
        "num_attention_heads": 4, "feed_forward_size": 64, "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 16], "num_buckets": 4,
        "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "max_position_embeddings": 16,
        "hash_seed": 0,
    }),
    Row("canine", "SequenceClassification", sentences, {
        **TEXT, "num_hash_buckets": 64, "local_transformer_stride": 8, "num_labels": CLASSES,
    }),
    # Encoder-decoders.
    Row("t5", "Seq2SeqLM", sequence_to_sequence, T5, generates=True),
    Row("t5", "Seq2SeqLM", sequence_to_sequence, {
        **T5, "feed_forward_proj": "gated-gelu",
    }, generates=True),
    Row("switch_transformers", "Seq2SeqLM", sequence_to_sequence, {
        **T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
        "expert_capacity": 8,
    }, generates=True),
    Row("bart", "Seq2SeqLM", sequence_to_sequence, BART, generates=True),
    Row("pegasus", "Seq2SeqLM", sequence_to_sequence, BART, generates=True),
    Row("marian", "Seq2SeqLM", sequence_to_sequence, {
        **BART, "decoder_vocab_size": VOCABULARY,
    }, generates=True),
    Row("m2m_100", "Seq2SeqLM", sequence_to_sequence, BART, generates=True),
    Row("mbart", "Seq2SeqLM", sequence_to_sequence, BART, generates=True),
    # Images.
    Row("vit", "ImageClassification", images, IMAGE),
    Row("deit", "ImageClassification", images, {
        **IMAGE, "architectures": ["DeiTForImageClassification"],
    }),
    Row("beit", "ImageClassification", images, {**IMAGE, "use_relative_position_bias": True}),
    Row("dinov2", "ImageClassification", images, IMAGE),
    Row("swin", "ImageClassification", images, {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 4, "num_labels": CLASSES,
    }),
    Row("swinv2", "ImageClassification", images, {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 4, "num_labels": CLASSES,
    }),
    Row("convnext", "ImageClassification", images, {**PYRAMID, "drop_path_rate": 0.1}),
    Row("convnextv2", "ImageClassification", images, PYRAMID),
    Row("resnet", "ImageClassification", images, {**PYRAMID, "embedding_size": 16}),
    Row("regnet", "ImageClassification", images, {
        **PYRAMID, "embedding_size": 16, "groups_width": 8,
    }),
    Row("poolformer", "ImageClassification", images, PYRAMID),
    Row("pvt", "ImageClassification", images, {
        **PYRAMID, "image_size": 32, "num_attention_heads": [1, 2, 2, 4],
    }),
    Row("focalnet", "ImageClassification", images, {
        "image_size": 32, "embed_dim": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
        "focal_levels": [2, 2], "focal_windows": [3, 3], "num_labels": CLASSES,
    }),
    Row("mobilevit", "ImageClassification", images, {
        "image_size": 32, "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 16, 24, 32], "num_attention_heads": 4,
        "num_labels": CLASSES,
    }),
    Row("segformer", "SemanticSegmentation", pixels, {
        "num_labels": CLASSES, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16,
    }),
    Row("dpt", "DepthEstimation", depths, {
        **WIDTH, "image_size": 64, "patch_size": 16, "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 16, 32],
        "fusion_hidden_size": 16,
    }),
    Row("glpn", "DepthEstimation", depths, {
        "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16,
    }),
    Row("vit_mae", "PreTraining", depths, {
        **WIDTH, "image_size": 64, "patch_size": 16, "decoder_hidden_size": 16,
        "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 32,
    }),
    Row("detr", "ObjectDetection", boxes, {
        **DETECTOR, "backbone_config": {**RESNET, "out_features": ["stage4"]},
    }),
    Row("conditional_detr", "ObjectDetection", boxes, {
        **DETECTOR, "backbone_config": {**RESNET, "out_features": ["stage4"]},
    }),
    Row("deformable_detr", "ObjectDetection", boxes, {
        **DETECTOR, "num_feature_levels": 3, "with_box_refine": True, "auxiliary_loss": True,
    }),
    Row("rt_detr", "ObjectDetection", boxes, {
        **DETECTOR, "encoder_hidden_dim": 32, "encoder_in_channels": [16, 32, 32],
        "decoder_in_channels": [32, 32, 32], "num_denoising": 4, "anchor_image_size": None,
        "backbone_config": {**RESNET, "model_type": "rt_detr_resnet"},
    }),
    Row("yolos", "ObjectDetection", boxes, {
        **WIDTH, "image_size": [64, 64], "patch_size": 16, "num_detection_tokens": 8,
        "num_labels": CLASSES,
    }),
    Row("mask2former", "UniversalSegmentation", masks, {
        "num_labels": CLASSES, "num_queries": 8, "feature_size": 32, "mask_feature_size": 32,
        "hidden_dim": 32, "encoder_feedforward_dim": 64, "dim_feedforward": 64,
        "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 4,
        "train_num_points": 64,
        "backbone_config": {
            "model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 16,
            "depths": [1, 1, 1, 1], "num_heads": [2, 2, 4, 4], "window_size": 4,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
    }),
    Row("sam", "MaskGeneration", prompts, {
        "vision_config": {
            **WIDTH, "image_size": 32, "patch_size": 8, "output_channels": 16, "window_size": 2,
            "global_attn_indexes": [1], "num_pos_feats": 8, "mlp_dim": 64,
        },
        "prompt_encoder_config": {"hidden_size": 16, "image_size": 32, "patch_size": 8},
        "mask_decoder_config": {
            "hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16,
        },
    }),
    Row("videomae", "VideoClassification", video, {**IMAGE, "num_frames": 4}),
    Row("timesformer", "VideoClassification", video, {**IMAGE, "num_frames": 4}),
    # Images and text.
    Row("clip", "", image_and_text, PAIR),
    Row("siglip", "", image_and_text, {
        "text_config": {**TEXT, "projection_size": 32},
        "vision_config": {**WIDTH, "image_size": 32, "patch_size": 8},
    }),
    Row("blip", "ImageTextToText", captions, {
        **PAIR, "text_config": {**TEXT, "encoder_hidden_size": 32, "sep_token_id": 3},
    }),
    # Sound.
    Row("whisper", "SpeechSeq2Seq", whisper_speech, {
        **BART, "max_source_positions": 30, "max_target_positions": 64, "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }, generates=True),
    Row("speech_to_text", "SpeechSeq2Seq", translated_speech, {
        **BART, "max_source_positions": 64, "max_target_positions": 64, "conv_channels": 32,
    }, generates=True),
    Row("wav2vec2", "CTC", speech, AUDIO),
    Row("hubert", "AudioClassification", spoken_classes, AUDIO),
    Row("wavlm", "CTC", speech, AUDIO),
    Row("audio-spectrogram-transformer", "AudioClassification", spectrogram, {
        **WIDTH, "patch_size": 8, "max_length": 32, "num_mel_bins": 16, "frequency_stride": 8,
        "time_stride": 8, "num_labels": CLASSES,
    }),
    Row("encodec", "", wave, {
        "hidden_size": 16, "num_filters": 4, "codebook_size": 16, "upsampling_ratios": [8, 5, 4, 2],
    }),
    # Series of numbers.
    Row("time_series_transformer", "TimeSeriesTransformerForPrediction", series, SERIES),
    Row("informer", "InformerForPrediction", series, SERIES),
    Row("patchtst", "PatchTSTForPrediction", channels, {
        "num_input_channels": 2, "context_length": 32, "prediction_length": 8, "patch_length": 4,
        "patch_stride": 4, "num_hidden_layers": 2, "d_model": 16, "ffn_dim": 32, "loss": "nll",
    }),
)  # fmt: skip


def workloads() -> list[Workload]:
    """One for each row."""
    return [Workload("transformers", _name(row), _prepare(row)) for row in MODELS]


def _name(row: Row) -> str:
    variants = ("attn_implementation", "alibi", "feed_forward_proj")
    extra = [f"{name}={row.settings[name]}" for name in variants if name in row.settings]
    return " ".join([row.kind, *([row.head] if row.head else []), *extra])


def _prepare(row: Row) -> Callable[[torch.device], Callable[[], None]]:
    def prepare(device: torch.device) -> Callable[[], None]:
        transformers = importlib.import_module("transformers")
        transformers.logging.set_verbosity_error()
        settings = dict(row.settings)
        attention = settings.pop("attn_implementation", "sdpa")
        config = transformers.AutoConfig.for_model(row.kind, **settings)
        if head := getattr(transformers, row.head, None):
            build = head._from_config
        else:
            suffix = f"For{row.head}" if row.head else ""
            build = getattr(transformers, f"AutoModel{suffix}").from_config
        try:
            model = build(config, attn_implementation=attention)
        except ValueError:  # a model without scaled_dot_product_attention
            model = build(config, attn_implementation="eager")
        model.to(device)
        batch = _to(row.batch(), device)
        return lambda: _run(model, batch, row)

    return prepare


def _run(model: Any, batch: Batch, row: Row) -> None:
    train(model, lambda: _loss(model(**batch)), autocast=row.autocast)
    evaluate(model, lambda: _logits(model(**batch)), autocast=row.autocast)
    if row.generates:
        model.config.output_router_logits = False  # of mixtures of experts: for training only
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        _generate(model, inputs)


def _generate(model: Any, inputs: Batch) -> None:
    """Greedy, sampled and by beams, eight tokens each."""
    ways: tuple[dict[str, Any], ...] = (
        {"do_sample": False, "repetition_penalty": 1.2},
        {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.8},
        {"num_beams": 3, "length_penalty": 0.8, "no_repeat_ngram_size": 2, "early_stopping": True},
        {"num_beams": 2, "do_sample": True, "min_new_tokens": 2, "num_return_sequences": 2},
    )
    for way in ways:
        model.generate(**inputs, max_new_tokens=8, **way)


def _loss(output: Any) -> Tensor:
    """The model's own loss; where it has none, the mean square of what it predicts."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss.mean()
    return sum(value.float().square().mean() for value in _floating(output))  # type: ignore[return-value]


def _logits(output: Any) -> Tensor | None:
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) and logits.is_floating_point() else None


def _floating(output: Any) -> list[Tensor]:
    return [
        value
        for value in output.values()
        if isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad
    ]


def _to(value: Any, device: torch.device) -> Any:
    """A batch, with every tensor in it on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _to(element, device) for name, element in value.items()}
    if isinstance(value, list):
        return [_to(element, device) for element in value]
    return value
