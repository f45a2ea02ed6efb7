"""Configs for any base model of `transformers`: the default, completed if it is not sufficient, or with few layers."""

from __future__ import annotations

from typing import Any

import transformers
from plain_inputs import inner_configs
from transformers import CONFIG_MAPPING, PretrainedConfig


def _mrope(*sections: int) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": "default", "mrope_section": list(sections)}}


# Weights are not downloaded.
UNTRAINED = {"use_pretrained_backbone": False}

REPVIT = {
    "architecture": "repvit_m1.dist_in1k",
    "model_args": {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3]},
}

PERCEPTION_ENCODER = {
    "architecture": "vit_pe_core_large_patch14_336",
    "model_args": {"embed_dim": 1024, "depth": 23, "global_pool": "", "img_size": [448, 448]},
}

# Values for defaults that are None or inconsistent, without which no model can be built.
COMPLETED: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 16},
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model"}},
    "blip-2": {"image_token_index": 5},
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGAAZ": 6}},
    "colqwen2": {"vlm_config": {"model_type": "qwen2_vl", "text_config": _mrope(16, 24, 24)}},
    "conditional_detr": UNTRAINED,
    "dab-detr": UNTRAINED,
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deformable_detr": UNTRAINED,
    "detr": UNTRAINED,
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "edgetam": {"vision_config": {"backbone_config": REPVIT}},
    "edgetam_vision_model": {"backbone_config": REPVIT},
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
    "omdet-turbo": UNTRAINED,
    "perception_lm": {"vision_config": PERCEPTION_ENCODER},
    "phi4_multimodal": {"vision_config": {}, "audio_config": {}},
    "qwen2_5_vl": {"text_config": _mrope(16, 24, 24)},
    "qwen2_5_vl_text": _mrope(16, 24, 24),
    "qwen2_vl": {"text_config": _mrope(16, 24, 24)},
    "qwen2_vl_text": _mrope(16, 24, 24),
    "qwen3_omni_moe": {
        "talker_config": {
            "spatial_merge_size": 2,
            "text_config": {"shared_expert_intermediate_size": 768, **_mrope(24, 20, 20)},
        },
        "thinker_config": {"text_config": {"head_dim": 128, **_mrope(24, 20, 20)}},
    },
    "qwen3_vl": {"text_config": _mrope(16, 24, 24)},
    "qwen3_vl_moe": {"text_config": _mrope(16, 24, 24)},
    "qwen3_vl_moe_text": _mrope(16, 24, 24),
    "qwen3_vl_text": _mrope(16, 24, 24),
    "retribert": {"position_embedding_type": "absolute"},
    "smolvlm": {"text_config": {"model_type": "llama", "vocab_size": 128_259}},
    "superglue": {"keypoint_encoder_sizes": [32, 64, 128, 256], "gnn_layers_types": ["self", "cross"] * 9},
    "table-transformer": UNTRAINED,
    "time_series_transformer": {"prediction_length": 8},
    "timm_backbone": {"backbone": "resnet50", **UNTRAINED},
    "tvp": {"type_vocab_size": 2},
    "vitmatte": {"hidden_size": 768},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"use_mamba_kernels": False},
}


# Composite models: how the config combines them, and which ones.
COMPOSED: dict[str, tuple[str, list[str]]] = {
    "encoder-decoder": ("from_encoder_decoder_configs", ["BertConfig", "BertConfig"]),
    "musicgen": ("from_sub_models_config", ["T5Config", "EncodecConfig", "MusicgenDecoderConfig"]),
    "musicgen_melody": ("from_sub_models_config", ["T5Config", "EncodecConfig", "MusicgenMelodyDecoderConfig"]),
    "nougat": ("from_encoder_decoder_configs", ["DonutSwinConfig", "MBartConfig"]),
    "rag": ("from_question_encoder_generator_configs", ["DPRConfig", "BartConfig"]),
    "speech-encoder-decoder": ("from_encoder_decoder_configs", ["Wav2Vec2Config", "BertConfig"]),
    "vision-encoder-decoder": ("from_encoder_decoder_configs", ["ViTConfig", "GPT2Config"]),
    "vision-text-dual-encoder": ("from_vision_text_configs", ["ViTConfig", "BertConfig"]),
}

LAYERS, EXPERTS, WORDS, WIDTH, CHUNK = 2, 16, 4096, 2048, 16  # for a shrunk model

# The configs' names for the number of experts, intermediate sizes, and chunk sizes.
SIZES = {
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "moe_num_experts": EXPERTS,
    "intermediate_size": WIDTH,
    "ffn_dim": WIDTH,
    "chunk_size": CHUNK,
    "mamba_chunk_size": CHUNK,
    "encoder_hash_byte_group_vocab": WORDS,
}

# The configs' names for the number of layers.
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
        join, parts = COMPOSED[model_type]
        return getattr(CONFIG_MAPPING[model_type], join)(*(getattr(transformers, part)() for part in parts))
    return CONFIG_MAPPING[model_type](**COMPLETED.get(model_type, {}))


def shrink(config: PretrainedConfig) -> PretrainedConfig:
    """Shrinks `config` and the configs inside it. Lists with one entry per layer get as short as there are layers."""
    for inner in inner_configs(config):
        shrink(inner)
    for name in LAYER_COUNTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > LAYERS:
            for key, value in list(vars(config).items()):
                if isinstance(value, list) and len(value) == count:
                    # Kinds of layers: of two kinds, the rarer one comes last.
                    kinds = key.startswith("layer") and isinstance(value[0], str)
                    setattr(config, key, value[-LAYERS:] if kinds else value[:LAYERS])
            setattr(config, name, LAYERS)
    for name, most in SIZES.items():
        size = getattr(config, name, None)
        if isinstance(size, int) and size > most:
            setattr(config, name, most)
    special = [value for name, value in vars(config).items() if name.endswith(("token_id", "token_index"))]
    if getattr(config, "vocab_size", 0) > WORDS > max((each for each in special if isinstance(each, int)), default=0):
        config.vocab_size = WORDS
    return config
