"""Plain inputs for any base model of `transformers`: the arguments of its forward, sized by its config.

Token ids are ones and masks are full, created from constants; images and sound are random.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EdgeTamVideoInferenceSession,
    PretrainedConfig,
    PreTrainedModel,
    Sam2VideoInferenceSession,
)

BATCH = 2
LENGTH = 16  # tokens in a text
SAMPLES = 16_000  # of sound: one second
FRAMES = 128  # in a spectrogram

Inputs = dict[str, Any]


def find(config: PretrainedConfig, *names: str, default: Any = None) -> Any:
    """The first of these attributes that is set, in the config or the configs inside it."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    for inner in inner_configs(config):
        value = find(inner, *names)
        if value is not None:
            return value
    return default


def inner_configs(config: PretrainedConfig) -> list[PretrainedConfig]:
    return [value for value in vars(config).values() if isinstance(value, PretrainedConfig)]


def picture_size(config: PretrainedConfig) -> tuple[int, int]:
    size = find(config, "image_size", "img_size", "input_image_size", default=224)
    if isinstance(size, dict):
        return size["height"], size["width"]
    return (size, size) if isinstance(size, int) else tuple(size)[-2:]


def ids(*size: int) -> Tensor:
    return torch.ones(*size, dtype=torch.long)


def pictures(config: PretrainedConfig, *lead: int) -> Tensor:
    channels = find(config, "num_channels", "in_chans", "in_channels", "num_image_channels", default=3)
    return torch.randn(*lead, channels if isinstance(channels, int) else channels[0], *picture_size(config))


def _input_features(config: PretrainedConfig) -> Tensor:
    bins = find(config, "num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "input_dim")
    return torch.randn(BATCH, FRAMES, bins or 80)


# The arguments of forwards by name, and how to create them.
BUILDERS: dict[str, Callable[[PretrainedConfig], Any]] = {
    "input_ids": lambda config: ids(BATCH, LENGTH),
    "decoder_input_ids": lambda config: ids(BATCH, LENGTH),
    "attention_mask": lambda config: ids(BATCH, LENGTH),
    "bbox": lambda config: ids(BATCH, LENGTH, 4),
    "pixel_values": lambda config: pictures(config, BATCH),
    "pixel_values_videos": lambda config: pictures(config, BATCH, config.frames_per_clip),
    "input_values": lambda config: torch.randn(BATCH, SAMPLES),
    "input_features": _input_features,
}


def plain_inputs(model: PreTrainedModel) -> Inputs:
    """Creates tensors with the current device and mode: in a fake mode they are fake."""
    config = model.config
    if config.model_type in RECIPES:
        return RECIPES[config.model_type](config)
    parameters = inspect.signature(model.forward).parameters
    wanted = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    wanted |= {model.main_input_name, "input_ids"}
    if not takes_pictures_as_tokens(config):
        wanted |= {"pixel_values", "bbox"}
    if config.is_encoder_decoder:
        wanted |= {"decoder_input_ids"}
    return {name: BUILDERS[name](config) for name in parameters if name in wanted and name in BUILDERS}


def takes_pictures_as_tokens(config: PretrainedConfig) -> bool:
    """Whether images are represented by tokens in the text: such a model also reads a text without images."""
    return find(config, "image_token_id", "image_token_index", "video_token_id", "image_token") is not None


def _speech(config: PretrainedConfig) -> Inputs:
    return {"input_values": torch.randn(BATCH, 1, SAMPLES)}


def _half_a_minute_of_sound(config: PretrainedConfig) -> Inputs:
    inputs = {"input_features": torch.randn(BATCH, config.num_mel_bins, 3000)}
    return inputs | ({"decoder_input_ids": ids(BATCH, LENGTH)} if config.is_encoder_decoder else {})


def _film(config: PretrainedConfig) -> Inputs:
    return {"pixel_values": pictures(config, BATCH, find(config, "num_frames"))}


def _pair_of_pictures(config: PretrainedConfig) -> Inputs:
    return {"pixel_values": torch.randn(BATCH, 2, 3, 224, 224)}


def _picture_in_text(config: PretrainedConfig) -> Inputs:
    """A text that only consists of the placeholder of an image."""
    tokens = torch.full((BATCH, config.num_query_tokens), config.image_token_index)
    return {"input_ids": tokens, "pixel_values": pictures(config, BATCH)}


def _question_about_a_picture(config: PretrainedConfig) -> Inputs:
    return _picture_in_text(config) | {"qformer_input_ids": ids(BATCH, LENGTH)}


def _question_about_a_film(config: PretrainedConfig) -> Inputs:
    tokens = torch.full((BATCH, 4 * config.num_query_tokens), config.video_token_index)
    return {"input_ids": tokens, "pixel_values": pictures(config, BATCH, 4), "qformer_input_ids": ids(BATCH, LENGTH)}


def _time_series(config: PretrainedConfig) -> Inputs:
    past = config.context_length + max(config.lags_sequence)
    return {
        "past_values": torch.randn(BATCH, past),
        "past_time_features": torch.randn(BATCH, past, config.num_time_features),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": torch.randn(BATCH, config.prediction_length),
        "future_time_features": torch.randn(BATCH, config.prediction_length, config.num_time_features),
    }


def _patched_time_series(config: PretrainedConfig) -> Inputs:
    return {"past_values": torch.randn(BATCH, config.context_length, config.num_input_channels)}


def _patches(config: PretrainedConfig) -> Inputs:
    count = find(config, "num_patches")
    side = int(count**0.5)
    return {
        "pixel_values": torch.randn(BATCH, count, 3 * find(config, "patch_size") ** 2),
        "pixel_attention_mask": ids(BATCH, count),
        "spatial_shapes": torch.full((BATCH, 2), side),
    }


def _graph(config: PretrainedConfig, nodes: int = 8) -> Inputs:
    return {
        "input_nodes": ids(BATCH, nodes, 1),
        "input_edges": ids(BATCH, nodes, nodes, config.multi_hop_max_dist, 1),
        "attn_bias": torch.zeros(BATCH, nodes + 1, nodes + 1),
        "in_degree": ids(BATCH, nodes),
        "out_degree": ids(BATCH, nodes),
        "spatial_pos": ids(BATCH, nodes, nodes),
        "attn_edge_type": ids(BATCH, nodes, nodes, 1),
    }


def _decisions(config: PretrainedConfig) -> Inputs:
    return {
        "states": torch.randn(BATCH, LENGTH, config.state_dim),
        "actions": torch.randn(BATCH, LENGTH, config.act_dim),
        "rewards": torch.randn(BATCH, LENGTH, 1),
        "returns_to_go": torch.randn(BATCH, LENGTH, 1),
        "timesteps": ids(BATCH, LENGTH),
        "attention_mask": ids(BATCH, LENGTH),
    }


def _music(config: PretrainedConfig) -> Inputs:
    return {
        "input_ids": ids(BATCH, LENGTH),
        "decoder_input_ids": ids(BATCH * config.decoder.num_codebooks, LENGTH),
    }


def _retrieved_documents(config: PretrainedConfig) -> Inputs:
    return {
        "input_ids": ids(BATCH, LENGTH),
        "context_input_ids": ids(BATCH * config.n_docs, LENGTH),
        "context_attention_mask": ids(BATCH * config.n_docs, LENGTH),
        "doc_scores": torch.randn(BATCH, config.n_docs),
        "decoder_input_ids": ids(BATCH, LENGTH),
    }


def _tracked_film(config: PretrainedConfig, session_class: type = Sam2VideoInferenceSession) -> Inputs:
    """A video of one image, and a point on the object to track."""
    height, width = picture_size(config)
    device = torch.get_default_device()
    session = session_class(
        video=torch.randn(1, 3, height, width),
        video_height=height,
        video_width=width,
        inference_device=device,
        inference_state_device=device,
        video_storage_device=device,
        dtype=torch.float32,
    )
    point = {"point_coords": torch.ones(1, 1, 1, 2), "point_labels": torch.ones(1, 1, 1, dtype=torch.int32)}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, point)
    session.obj_with_new_inputs = [1]
    return {"inference_session": session, "frame_idx": 0}


# Models whose required arguments differ from their signature, by model type.
RECIPES: dict[str, Callable[[PretrainedConfig], Inputs]] = {
    "audio-spectrogram-transformer": lambda c: {"input_values": torch.randn(BATCH, c.max_length, c.num_mel_bins)},
    "autoformer": _time_series,
    "blip-2": _picture_in_text,
    "blip_2_qformer": lambda c: {
        "query_embeds": torch.randn(BATCH, 32, c.hidden_size),
        "encoder_hidden_states": torch.randn(BATCH, LENGTH, c.encoder_hidden_size),
    },
    "clap": lambda c: {
        "input_ids": ids(BATCH, LENGTH),
        "input_features": torch.randn(BATCH, 1, 1001, c.audio_config.num_mel_bins),
        "is_longer": torch.zeros(BATCH, 1),
    },
    "clvp": lambda c: {
        "input_ids": ids(BATCH, LENGTH),
        "input_features": torch.randn(BATCH, c.decoder_config.feature_size, FRAMES),
    },
    "dac": _speech,
    "decision_transformer": _decisions,
    "depth_pro": lambda c: {"pixel_values": torch.randn(1, 3, 4 * c.patch_size, 4 * c.patch_size)},
    "dia": lambda c: {
        "input_ids": ids(BATCH, LENGTH),
        "decoder_input_ids": ids(BATCH, LENGTH, c.decoder_config.num_channels),
    },
    "edgetam_video": lambda c: _tracked_film(c, EdgeTamVideoInferenceSession),
    "efficientloftr": _pair_of_pictures,
    "encodec": _speech,
    "fsmt": lambda c: {
        "input_ids": ids(BATCH, LENGTH),
        "decoder_input_ids": ids(BATCH, LENGTH),
        "use_cache": False,
    },
    "gemma3n_audio": lambda c: {
        "audio_mel": torch.randn(BATCH, FRAMES, c.input_feat_size),
        "audio_mel_mask": torch.zeros(BATCH, FRAMES, dtype=torch.bool),
    },
    "graphormer": _graph,
    "idefics": lambda c: {
        "input_ids": ids(BATCH, LENGTH),
        "pixel_values": pictures(c.vision_config, BATCH, 1),
        "image_attention_mask": ids(BATCH, LENGTH, 1),
    },
    "informer": _time_series,
    "instructblip": _question_about_a_picture,
    "instructblipvideo": _question_about_a_film,
    "jukebox_vqvae": lambda c: {"raw_audio": torch.randn(BATCH, SAMPLES, 1)},
    "kyutai_speech_to_text": lambda c: {"input_ids": ids(BATCH, LENGTH, c.num_codebooks + 1)},
    "kosmos-2": lambda c: {
        "input_ids": ids(BATCH, c.latent_query_num),
        "pixel_values": pictures(c, BATCH),
        "image_embeds_position_mask": ids(BATCH, c.latent_query_num),
    },
    "lightglue": _pair_of_pictures,
    "lxmert": lambda c: {
        "input_ids": ids(BATCH, LENGTH),
        "visual_feats": torch.randn(BATCH, 36, c.visual_feat_dim),
        "visual_pos": torch.randn(BATCH, 36, c.visual_pos_dim),
    },
    "mimi": _speech,
    "musicgen": _music,
    "musicgen_melody": _music,
    "omdet-turbo": lambda c: {
        "pixel_values": pictures(c, BATCH),
        "classes_input_ids": ids(2 * BATCH, LENGTH),
        "classes_attention_mask": ids(2 * BATCH, LENGTH),
        "tasks_input_ids": ids(BATCH, LENGTH),
        "tasks_attention_mask": ids(BATCH, LENGTH),
        "classes_structure": torch.full((BATCH,), 2),
    },
    "oneformer": lambda c: {"pixel_values": pictures(c, BATCH), "task_inputs": ids(BATCH, c.task_seq_len)},
    "patchtsmixer": _patched_time_series,
    "patchtst": _patched_time_series,
    "perceiver": lambda c: {"inputs": torch.randn(BATCH, LENGTH, c.d_model)},
    "pix2struct": lambda c: {
        "flattened_patches": torch.ones(BATCH, LENGTH, 2 + c.vision_config.patch_embed_hidden_size),
        "decoder_input_ids": ids(BATCH, LENGTH),
    },
    "qwen2_audio_encoder": _half_a_minute_of_sound,
    "rag": _retrieved_documents,
    "retribert": lambda c: {
        name: ids(BATCH, LENGTH)
        for name in ("input_ids_query", "attention_mask_query", "input_ids_doc", "attention_mask_doc")
    },
    "sam2_video": _tracked_film,
    "seggpt": lambda c: {
        "pixel_values": torch.randn(BATCH, 3, c.image_size[0] // 2, c.image_size[1]),
        "prompt_pixel_values": torch.randn(BATCH, 3, c.image_size[0] // 2, c.image_size[1]),
        "prompt_masks": torch.randn(BATCH, 3, c.image_size[0] // 2, c.image_size[1]),
    },
    "siglip2": lambda c: {"input_ids": ids(BATCH, LENGTH), **_patches(c)},
    "siglip2_vision_model": _patches,
    "speech-encoder-decoder": lambda c: {
        "input_values": torch.randn(BATCH, SAMPLES),
        "decoder_input_ids": ids(BATCH, LENGTH),
    },
    "speecht5": lambda c: {
        "input_values": torch.randn(BATCH, LENGTH, c.hidden_size),
        "decoder_input_values": torch.randn(BATCH, LENGTH, c.hidden_size),
    },
    "superglue": _pair_of_pictures,
    "time_series_transformer": _time_series,
    "timesfm": lambda c: {
        "past_values": torch.randn(BATCH, 4 * c.patch_length),
        "past_values_padding": torch.zeros(BATCH, 4 * c.patch_length),
        "freq": torch.zeros(BATCH, 1, dtype=torch.long),
    },
    "timesformer": _film,
    "trajectory_transformer": lambda c: {"trajectories": ids(BATCH, c.transition_dim)},
    "tvlt": lambda c: {
        "pixel_values": pictures(c, BATCH, c.num_frames),
        "audio_values": torch.randn(BATCH, c.num_audio_channels, c.spectrogram_length, c.frequency_length),
    },
    "tvp": lambda c: {
        "input_ids": ids(1, LENGTH),
        "attention_mask": ids(1, LENGTH),
        "pixel_values": torch.randn(1, c.num_frames, 3, c.max_img_size, c.max_img_size),
    },
    "videomae": _film,
    "vilt": lambda c: {
        "input_ids": ids(BATCH, LENGTH),
        "pixel_values": pictures(c, BATCH),
        "pixel_mask": ids(1).expand(BATCH, *picture_size(c)),  # the default is created with too many values to be known
    },
    "vivit": _film,
    "voxtral_encoder": _half_a_minute_of_sound,
    "whisper": _half_a_minute_of_sound,
    "xclip": lambda c: {"input_ids": ids(BATCH, LENGTH), **_film(c)},
    "xcodec": _speech,
}
