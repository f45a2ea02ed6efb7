"""Plain inputs for any base model of `transformers`: what its forward asks for, sized by its config.

Token ids are ones and masks are full, made from constants; pictures and sound are random.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

BATCH = 2
LENGTH = 16  # tokens in a text
SAMPLES = 16_000  # of sound: one second
FRAMES = 128  # of a spectrogram

Inputs = dict[str, Any]


def find(config: PretrainedConfig, *names: str, default: Any = None) -> Any:
    """The first attribute of these names that is set, in the config or the ones inside it."""
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


def _bool_masked_pos(config: PretrainedConfig) -> Tensor:
    height, width = picture_size(config)
    return torch.zeros(BATCH, (height // config.patch_size) * (width // config.patch_size), dtype=torch.bool)


# What a forward calls its arguments, and what goes there.
BUILDERS: dict[str, Callable[[PretrainedConfig], Any]] = {
    "input_ids": lambda config: ids(BATCH, LENGTH),
    "decoder_input_ids": lambda config: ids(BATCH, LENGTH),
    "attention_mask": lambda config: ids(BATCH, LENGTH),
    "bbox": lambda config: ids(BATCH, LENGTH, 4),
    "pixel_values": lambda config: pictures(config, BATCH),
    "pixel_values_videos": lambda config: pictures(config, BATCH, find(config, "frames_per_clip", "num_frames")),
    "input_values": lambda config: torch.randn(BATCH, SAMPLES),
    "input_features": _input_features,
}

Recipe = Callable[[PretrainedConfig], Inputs]


def plain_inputs(model: PreTrainedModel) -> Inputs:
    """Made where and how tensors are made now: in a fake mode they are fake."""
    config = model.config
    recipe = RECIPES.get(config.model_type)
    if recipe is not None:
        return recipe(config)
    parameters = inspect.signature(model.forward).parameters
    required = {
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    wanted = {model.main_input_name, *required}
    if not takes_pictures_as_tokens(config):
        wanted |= {"pixel_values", "bbox"} & parameters.keys()
    if config.is_encoder_decoder:
        wanted |= {"decoder_input_ids"} & parameters.keys()
    return {name: BUILDERS[name](config) for name in parameters if name in wanted}


def takes_pictures_as_tokens(config: PretrainedConfig) -> bool:
    """Whether pictures stand for tokens in the text: such a model reads a text without any as well."""
    return find(config, "image_token_id", "image_token_index", "video_token_id", "image_token") is not None


# Models that ask for more than their signature says.
RECIPES: dict[str, Recipe] = {}
