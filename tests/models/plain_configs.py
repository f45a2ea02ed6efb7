"""Configs for any base model of `transformers`: the default, completed where it makes no model, or with few layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plain_inputs import inner_configs
from transformers import (
    CONFIG_MAPPING,
    BertConfig,
    PretrainedConfig,
    VisionTextDualEncoderConfig,
    ViTConfig,
)


def _mrope(*sections: int) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": "default", "mrope_section": list(sections)}}


# Defaults that are None, or do not fit together: what has to be said for there to be a model.
COMPLETED: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 16},
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model"}},
    "blip-2": {"image_token_index": 5},
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGAAZ": 6}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 6, "<|visual token 000001|>": 7}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "glm4v": {"text_config": _mrope(16, 24, 24)},
    "glm4v_moe": {"text_config": _mrope(2, 4, 5)},
    "glm4v_moe_text": _mrope(2, 4, 5),
    "glm4v_text": _mrope(16, 24, 24),
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "idefics3": {"text_config": {"model_type": "llama", "vocab_size": 128_259}},
    "informer": {"prediction_length": 8},
    "instructblip": {"image_token_index": 5},
    "instructblipvideo": {"video_token_index": 5},
    "jamba": {"use_mamba_kernels": False},
    "ministral": {"head_dim": 128},
    "mllama": {"text_config": {"rope_scaling": {"rope_type": "default"}}},
    "nemotron": {"num_key_value_heads": 48},
    "phi4_multimodal": {"vision_config": {}, "audio_config": {}},
    "qwen2_5_vl": {"text_config": _mrope(16, 24, 24)},
    "qwen2_5_vl_text": _mrope(16, 24, 24),
    "qwen2_vl": {"text_config": _mrope(16, 24, 24)},
    "qwen2_vl_text": _mrope(16, 24, 24),
    "qwen3_vl": {"text_config": _mrope(16, 24, 24)},
    "qwen3_vl_moe": {"text_config": _mrope(16, 24, 24)},
    "qwen3_vl_moe_text": _mrope(16, 24, 24),
    "qwen3_vl_text": _mrope(16, 24, 24),
    "smolvlm": {"text_config": {"model_type": "llama", "vocab_size": 128_259}},
    "time_series_transformer": {"prediction_length": 8},
    "tvp": {"type_vocab_size": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"use_mamba_kernels": False},
}

# Models that are made of others.
COMPOSED: dict[str, Callable[[], PretrainedConfig]] = {
    "vision-text-dual-encoder": lambda: VisionTextDualEncoderConfig.from_vision_text_configs(ViTConfig(), BertConfig()),
}

LAYERS = 2  # of a shrunk model

# What configs call the number of their layers.
LAYER_COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "depth",
)


def plain_config(model_type: str) -> PretrainedConfig:
    if model_type in COMPOSED:
        return COMPOSED[model_type]()
    return CONFIG_MAPPING[model_type](**COMPLETED.get(model_type, {}))


def shrink(config: PretrainedConfig) -> PretrainedConfig:
    """Changes `config`, and those inside it, to few layers. Lists with an entry a layer become as short."""
    for inner in inner_configs(config):
        shrink(inner)
    for name in LAYER_COUNTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > LAYERS:
            for key, value in list(vars(config).items()):
                if isinstance(value, list) and len(value) == count:
                    setattr(config, key, value[:LAYERS])
            setattr(config, name, LAYERS)
    return config
