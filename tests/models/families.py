"""Small models of many architecture families of `transformers`, with inputs, for comparing fakes with real tensors.

Most train with dropout. Those marked `training=False` randomly choose, while training, which layers to skip (BART, OPT,
Whisper) or which part of the input to mask (Wav2Vec2): a decision on a random value, which fakes do not have.

Mixture of experts: Mixtral and similar models collect each expert's tokens with `nonzero` over the router's choice,
whose count is a value too (`test_routing.py`). The families here route every token to every expert and weight the
results: Llama 4 always, Qwen3 VL in evaluation, gpt-oss in evaluation on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

BATCH, LENGTH, VOCABULARY = 2, 12, 99

Inputs = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Family:
    """An architecture, shrunk by the `options` of its config."""

    kind: str
    model: str
    config: str
    options: dict[str, Any]
    inputs: Callable[[PretrainedConfig], Inputs]
    training: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")

    def build(self) -> PreTrainedModel:
        config = getattr(transformers, self.config)(**self.options)
        return getattr(transformers, self.model)(config).train(self.training)


# -- inputs. Token ids come from constants, so that fakes know them; images and sound do not. --------------------------


def tokens(config: PretrainedConfig) -> Inputs:
    return {"input_ids": (torch.arange(BATCH * LENGTH) % VOCABULARY).view(BATCH, LENGTH)}


def masked_tokens(config: PretrainedConfig) -> Inputs:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, LENGTH // 2 :] = 0
    return tokens(config) | {"attention_mask": mask}


def labelled_tokens(config: PretrainedConfig) -> Inputs:
    inputs = tokens(config)
    return inputs | {"labels": inputs["input_ids"].clone()}


def text_to_text(config: PretrainedConfig) -> Inputs:
    return masked_tokens(config) | {"decoder_input_ids": torch.ones(BATCH, LENGTH - 4, dtype=torch.long)}


def picture(config: PretrainedConfig) -> Inputs:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


def picture_and_tokens(config: PretrainedConfig) -> Inputs:
    return masked_tokens(config) | picture(config)


def picture_in_tokens(config: PretrainedConfig) -> Inputs:
    """Four tokens of each text represent the four patches of its image."""
    ids = torch.ones(BATCH, LENGTH, dtype=torch.long)
    ids[:, 2:6] = config.image_token_id
    return {"input_ids": ids, "labels": ids.clone(), "pixel_values": torch.randn(BATCH, 3, 32, 32)}


def patches_in_tokens(config: PretrainedConfig) -> Inputs:
    """One image of 4 × 4 patches, which become 2 × 2 tokens of the first text."""
    ids = torch.ones(BATCH, LENGTH, dtype=torch.long)
    ids[0, 2] = config.vision_start_token_id
    ids[0, 3:7] = config.image_token_id
    patches = torch.randn(16, 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2)
    return {"input_ids": ids, "pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 4]])}


def sound(config: PretrainedConfig) -> Inputs:
    return {"input_values": torch.randn(BATCH, 1600)}


def sound_channels(config: PretrainedConfig) -> Inputs:
    return {"input_values": torch.randn(BATCH, 1, 640)}


def spectrogram_to_text(config: PretrainedConfig) -> Inputs:
    return {
        "input_features": torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions),
        "decoder_input_ids": torch.ones(BATCH, LENGTH, dtype=torch.long),
    }


def spectrogram(config: PretrainedConfig) -> Inputs:
    return {"input_values": torch.randn(BATCH, config.max_length, config.num_mel_bins)}


def series(config: PretrainedConfig) -> Inputs:
    return {"past_values": torch.randn(BATCH, config.context_length, config.num_input_channels)}


# -- sizes, under the names that most configs use ---------------------------------------------------------------------

ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
LONGFORMER = ENCODER | {"attention_window": [8, 8], "max_position_embeddings": 66}
DECODER = ENCODER | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 16,
}
SPEECH = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 2,
}
STATE_SPACE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}

GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BLOOM = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
OPT = ENCODER | {"ffn_dim": 48, "word_embed_proj_dim": 32}
DEBERTA = ENCODER | {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}
XLNET = {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}
CONVNEXT = {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 2]}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [4, 2],
    "hidden_sizes": [16, 32],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [2, 4],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
}
WHISPER = SEQ2SEQ | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 64}
WHISPER |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": []}
ENCODEC = {"hidden_size": 16, "num_filters": 4, "codebook_size": 8, "codebook_dim": 16, "target_bandwidths": [1.5]}
SPECTROGRAM = VISION | {"patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 8}
TWO_TOWERS = {"text_config": ENCODER, "vision_config": VISION, "projection_dim": 16}
LLAVA = {
    "text_config": DECODER | {"model_type": "llama"},
    "vision_config": VISION | {"model_type": "clip_vision_model"},
    "image_token_index": 98,
}
QWEN2_VL = {
    "text_config": DECODER | {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
    "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4},
    "image_token_id": 98,
    "vision_start_token_id": 97,
}
LLAMA4 = DECODER | {"intermediate_size_mlp": 48, "num_local_experts": 4, "num_experts_per_tok": 1}
QWEN3_MOE = DECODER | {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
QWEN3_MOE |= {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
GPT_OSS = DECODER | {"num_local_experts": 4, "rope_scaling": None}
MAMBA2 = STATE_SPACE | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4}
ZAMBA2 = DECODER | {"mamba_d_state": 8, "n_mamba_heads": 8, "mamba_ngroups": 2, "chunk_size": 4, "num_mem_blocks": 1}
ZAMBA2 |= {"layers_block_type": ["mamba", "hybrid"], "use_mamba_kernels": False, "attention_head_dim": 16}
RECURRENT_GEMMA = DECODER | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8}
RWKV = {"vocab_size": VOCABULARY, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2}
PATCHTST = {"num_input_channels": 3, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 32}
PATCHTST |= {"num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48}

FAMILIES = (
    Family("text decoder", "GPT2LMHeadModel", "GPT2Config", GPT2, labelled_tokens),
    Family("text decoder", "LlamaForCausalLM", "LlamaConfig", DECODER, labelled_tokens),
    Family("text decoder", "Gemma2ForCausalLM", "Gemma2Config", DECODER | {"sliding_window": 8}, masked_tokens),
    Family("text decoder", "Qwen3ForCausalLM", "Qwen3Config", DECODER, labelled_tokens),
    Family("text decoder", "BloomForCausalLM", "BloomConfig", BLOOM, labelled_tokens),
    Family("text decoder", "OPTForCausalLM", "OPTConfig", OPT, masked_tokens, training=False),
    Family("text encoder", "BertForMaskedLM", "BertConfig", ENCODER, labelled_tokens),
    Family("text encoder", "AlbertModel", "AlbertConfig", ENCODER | {"embedding_size": 16}, masked_tokens),
    Family("text encoder", "DebertaV2Model", "DebertaV2Config", DEBERTA, masked_tokens),
    Family("text encoder", "CanineModel", "CanineConfig", ENCODER | {"num_hash_buckets": 64}, masked_tokens),
    Family("text encoder", "LongformerModel", "LongformerConfig", LONGFORMER, masked_tokens),
    Family("text encoder", "FNetModel", "FNetConfig", ENCODER, tokens),
    Family("text encoder", "XLNetModel", "XLNetConfig", XLNET, masked_tokens),
    Family("encoder-decoder", "T5ForConditionalGeneration", "T5Config", T5, text_to_text),
    Family("encoder-decoder", "BartModel", "BartConfig", SEQ2SEQ, text_to_text, training=False),
    # Its mask is padded to the window and becomes a square with more elements than the limit for known values.
    Family(
        "encoder-decoder", "LEDModel", "LEDConfig", SEQ2SEQ | {"attention_window": 128}, text_to_text, training=False
    ),
    Family("encoder-decoder", "BlenderbotModel", "BlenderbotConfig", SEQ2SEQ, text_to_text, training=False),
    Family("vision", "ViTForImageClassification", "ViTConfig", VISION, picture),
    Family("vision", "SwinModel", "SwinConfig", SWIN, picture),
    Family("vision", "ConvNextModel", "ConvNextConfig", CONVNEXT, picture),
    Family("vision", "ResNetForImageClassification", "ResNetConfig", RESNET, picture),
    Family("vision", "SegformerForSemanticSegmentation", "SegformerConfig", SEGFORMER, picture),
    Family("vision", "Dinov2Model", "Dinov2Config", VISION, picture),
    Family("audio", "Wav2Vec2Model", "Wav2Vec2Config", SPEECH, sound, training=False),
    Family("audio", "HubertModel", "HubertConfig", SPEECH, sound, training=False),
    Family("audio", "WhisperModel", "WhisperConfig", WHISPER, spectrogram_to_text, training=False),
    Family("audio", "EncodecModel", "EncodecConfig", ENCODEC, sound_channels),
    Family("audio", "ASTModel", "ASTConfig", SPECTROGRAM, spectrogram),
    Family("multimodal", "CLIPModel", "CLIPConfig", TWO_TOWERS, picture_and_tokens),
    Family("multimodal", "ViltModel", "ViltConfig", ENCODER | VISION, picture_and_tokens),
    Family("multimodal", "LlavaForConditionalGeneration", "LlavaConfig", LLAVA, picture_in_tokens),
    Family("multimodal", "Qwen2VLModel", "Qwen2VLConfig", QWEN2_VL, patches_in_tokens),
    Family("mixture of experts", "Llama4ForCausalLM", "Llama4TextConfig", LLAMA4, labelled_tokens),
    Family("mixture of experts", "Qwen3VLMoeTextModel", "Qwen3VLMoeTextConfig", QWEN3_MOE, tokens, training=False),
    Family("mixture of experts", "GptOssModel", "GptOssConfig", GPT_OSS, tokens, training=False, devices=("cuda",)),
    Family("state space", "MambaForCausalLM", "MambaConfig", STATE_SPACE, labelled_tokens),
    Family("state space", "Mamba2Model", "Mamba2Config", MAMBA2, tokens),
    Family("state space", "Zamba2Model", "Zamba2Config", ZAMBA2, tokens),
    Family("state space", "RecurrentGemmaModel", "RecurrentGemmaConfig", RECURRENT_GEMMA, tokens),
    Family("state space", "RwkvModel", "RwkvConfig", RWKV, tokens),
    Family("time series", "PatchTSTModel", "PatchTSTConfig", PATCHTST, series),
)
