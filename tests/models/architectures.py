"""Every architecture of `transformers`: a model type with a config, and its base model's class."""

from __future__ import annotations

from dataclasses import dataclass

import transformers
from plain_configs import plain_config, shrink
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

# Architectures without an auto class, or whose base model does not work without its head.
NAMED = {
    "deta": "DetaForObjectDetection",
    "granitevision": "LlavaNextModel",
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "nougat": "VisionEncoderDecoderModel",
    "perception_encoder": "TimmWrapperModel",
    "rag": "RagModel",
    "realm": "RealmEmbedder",
    "vitmatte": "VitMatteForImageMatting",
    "vitpose": "VitPoseForPoseEstimation",
}

# Generative models without a forward of their own: they are built whole, and this part of them runs.
PARTS = {"bark": "semantic", "jukebox": "vqvae", "qwen2_5_omni": "thinker", "qwen3_omni_moe": "thinker"}


@dataclass(frozen=True)
class Architecture:
    model_type: str
    model_class: str

    def build(self, *, few_layers: bool = False) -> PreTrainedModel:
        config = plain_config(self.model_type)
        model_class = getattr(transformers, self.model_class)
        model = model_class(shrink(config) if few_layers else config).eval()
        return getattr(model, PARTS[self.model_type]) if self.model_type in PARTS else model


def architectures(only: str = "") -> list[Architecture]:
    """All architectures, or those whose model type contains `only` or is in its comma-separated list."""
    return [
        Architecture(model_type, name)
        for model_type in CONFIG_MAPPING_NAMES
        if only in model_type or model_type in only.split(",")
        for name in class_names(model_type)
    ]


def class_names(model_type: str) -> list[str]:
    """The base model's classes, or the first class with a head if there is no base model."""
    if model_type in NAMED:
        return [NAMED[model_type]]
    if model_type in MODEL_MAPPING_NAMES:
        names = MODEL_MAPPING_NAMES[model_type]
        return [names] if isinstance(names, str) else list(names)
    mappings = [value for name, value in vars(modeling_auto).items() if name.startswith("MODEL_FOR_")]
    listed = [each[model_type] for each in mappings if isinstance(each, dict) and model_type in each]
    return listed[:1]
