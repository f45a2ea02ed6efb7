"""Configs of the same architecture with few layers, for real runs that fit."""

from __future__ import annotations

from plain_inputs import inner_configs
from transformers import PretrainedConfig

LAYERS = 2

# What configs call the number of their layers, and of the experts in each.
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
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


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
