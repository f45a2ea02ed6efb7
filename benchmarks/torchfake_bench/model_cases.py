"""The models measured whole: each at its full size, and tiny with the same layers for the real run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

Size = str  # "full" or "tiny"


@dataclass(frozen=True)
class ModelCase:
    """A model with a step to take.

    Attributes:
        name: What the tables call it.
        build: Makes the model of a size.
        loss: Runs it on random inputs of that size, on a device.
        trains: Whether it is put into training mode; not where it then draws which layers to skip.
    """

    name: str
    build: Callable[[Size], nn.Module]
    loss: Callable[[nn.Module, Size, str], Tensor]
    trains: bool = True


def ids(size: Size, device: str, vocabulary: int = 99) -> Tensor:
    """Random, so that no fake knows their values."""
    return torch.randint(0, vocabulary, (2, 128 if size == "full" else 16), device=device)


def picture(size: Size, device: str, full: int = 224, tiny: int = 32) -> Tensor:
    side = full if size == "full" else tiny
    return torch.rand(2, 3, side, side, device=device)


# -- models of transformers -------------------------------------------------------------------------------------------

LLAMA = {
    "8B": {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "405B": {
        "num_hidden_layers": 126,
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}
#: Sizes to shrink a config to, in the names that most of them use. The number of layers stays.
TINY = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
TINY_BLENDERBOT = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}
TINY_VIT = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
TINY_RESNET = {"embedding_size": 8, "hidden_sizes": [16, 32, 48, 64]}


def llama(name: str) -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA[name]))


def vit(size: Size) -> nn.Module:
    """Without drawing its weights: from a truncated normal distribution FakeTensorMode cannot draw."""
    with transformers.modeling_utils.no_init_weights():
        options = {} if size == "full" else TINY_VIT
        return transformers.ViTForImageClassification(transformers.ViTConfig(**options))


def of_config(model: str, config: str, full: dict[str, Any], tiny: dict[str, Any]) -> Callable[[Size], nn.Module]:
    def build(size: Size) -> nn.Module:
        options = full if size == "full" else full | tiny
        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return build


def causal_loss(model: nn.Module, size: Size, device: str) -> Tensor:
    tokens = ids(size, device)
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def text_to_text_loss(model: nn.Module, size: Size, device: str) -> Tensor:
    """With a mask: without one the model looks for padding among the ids, whose values FakeTensorMode never knows."""
    tokens = ids(size, device)
    mask = torch.randint(0, 2, tokens.shape, device=device)
    return model(tokens, mask, decoder_input_ids=tokens, labels=tokens, use_cache=False).loss


def picture_loss(model: nn.Module, size: Size, device: str) -> Tensor:
    return F.cross_entropy(model(picture(size, device)).logits, torch.randint(0, 2, (2,), device=device))


# -- models of torch.nn -----------------------------------------------------------------------------------------------


def two_convolutions(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. (2015), padded and with batch normalisation: 31 M parameters at width 64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList(map(two_convolutions, [3, *widths[:-2]], widths[:-1]))
        self.bottom = two_convolutions(widths[-2], widths[-1])
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(two_convolutions(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([kept.pop(), widen(x)], 1))
        return self.head(x)


def u_net_loss(model: nn.Module, size: Size, device: str) -> Tensor:
    x = picture(size, device, full=256, tiny=32)
    return F.cross_entropy(model(x), torch.randint(0, 2, (2, *x.shape[2:]), device=device))


class LanguageLSTM(nn.Module):
    """Two LSTM layers over 64 steps; the head sees all steps of all sequences as rows of one matrix."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        return self.head(outputs.flatten(0, 1))


def lstm_loss(model: nn.Module, size: Size, device: str) -> Tensor:
    tokens = torch.randint(0, 99, (2, 64), device=device)
    return F.cross_entropy(model(tokens), tokens.flatten())


CASES = (
    ModelCase("Llama-8B", of_config("LlamaForCausalLM", "LlamaConfig", LLAMA["8B"], TINY), causal_loss),
    ModelCase(
        "Blenderbot",
        # Eager attention: the other one asks whether the mask hides anything, a value as well.
        of_config(
            "BlenderbotForConditionalGeneration",
            "BlenderbotConfig",
            {"attn_implementation": "eager"},
            TINY_BLENDERBOT,
        ),
        text_to_text_loss,
        trains=False,
    ),
    ModelCase(
        "Llama-4 Scout (mixture of experts)",
        of_config("Llama4ForCausalLM", "Llama4TextConfig", {}, TINY | {"intermediate_size_mlp": 48}),
        causal_loss,
    ),
    ModelCase("ViT", vit, picture_loss),
    ModelCase("ResNet-50", of_config("ResNetForImageClassification", "ResNetConfig", {}, TINY_RESNET), picture_loss),
    ModelCase("U-Net", lambda size: UNet(64 if size == "full" else 4), u_net_loss),
    ModelCase("LSTM", lambda size: LanguageLSTM(99, 1024 if size == "full" else 16), lstm_loss),
)
