"""Makes the fakes a model is called with: those a command line describes, or those its class usually takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchfake._model_spec import POSITIONS, ModelSpecError, find_in_config

__all__ = ["InputSpec", "make_inputs", "parse_input"]

#: How many tokens a model is given where nobody says, unless it takes fewer.
USUAL_LENGTH = 128

_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY
_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_BY_NAME = inspect.Parameter.KEYWORD_ONLY
_REST = inspect.Parameter.VAR_POSITIONAL
_OTHER_NAMES = inspect.Parameter.VAR_KEYWORD

_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<size>scalar|\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


@dataclass(frozen=True)
class InputSpec:
    """One tensor, as a command line describes it."""

    name: str | None  #: the argument it is given for; None for the next one by position
    size: tuple[int, ...]
    dtype: torch.dtype | None  #: None for the model's own floating-point dtype

    def make(self, device: torch.device | None, default: torch.dtype) -> Tensor:
        dtype = self.dtype or default
        # Numbers that are indices or masks often decide something: these are known. Others are not.
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.ones(self.size, dtype=dtype, device=device)
        return torch.empty(self.size, dtype=dtype, device=device)


def parse_input(text: str) -> InputSpec:
    """Reads `1x3x224x224`, `2x16:int64`, `mask=2x16:bool` or `scalar`.

    Raises:
        ModelSpecError: It reads otherwise.
    """
    match = _INPUT.fullmatch(text)
    dtype = getattr(torch, match["dtype"], None) if match and match["dtype"] else None
    if match is None or (match["dtype"] and not isinstance(dtype, torch.dtype)):
        raise ModelSpecError(f"--input {text}: expected sizes, as in 1x3x224x224, 2x16:int64 or mask=2x16:bool")
    size = () if match["size"] == "scalar" else tuple(map(int, match["size"].split("x")))
    return InputSpec(match["name"], size, dtype)


def make_inputs(
    model: nn.Module, specs: Sequence[InputSpec], *, device: torch.device | None, batch: int, length: int | None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The arguments to call `model` with, by position and by name; to be called in a mode.

    Args:
        length: How many tokens, where nothing was described; None for the usual number, or the most the model takes.

    Raises:
        ModelSpecError: What was described is not what the model takes, or nothing was and its class does not say; or
            the model does not take as many tokens.
    """
    default = next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.get_default_dtype())
    device = device or next((p.device for p in model.parameters()), None)
    if specs:
        _match(model, specs)
    else:
        specs = _usual_inputs(model, batch, length)
    made = [(spec.name, spec.make(device, default)) for spec in specs]
    return [tensor for name, tensor in made if name is None], {
        name: tensor for name, tensor in made if name is not None
    }


def _match(model: nn.Module, specs: Sequence[InputSpec]) -> None:
    """Raises where a described input is none of the model's, or one that it needs was not described."""
    parameters = inspect.signature(model.forward).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    named = [name for name, parameter in parameters.items() if parameter.kind in (_EITHER, _BY_NAME)]
    by_position = [name for name, parameter in parameters.items() if parameter.kind in (_BY_POSITION, _EITHER)]
    takes = f"{type(model).__name__}: takes {', '.join(parameters) or 'no input'}"
    given = [spec.name for spec in specs if spec.name is not None]
    positions = len(specs) - len(given)
    if positions > len(by_position) and _REST not in kinds:
        raise ModelSpecError(f"{takes}; --input was given {positions} times without a name")
    for name in given:
        if name not in named and _OTHER_NAMES not in kinds:
            raise ModelSpecError(f"{takes}; there is no {name} for --input {name}=")
        if name in by_position[:positions] or given.count(name) > 1:
            raise ModelSpecError(f"{takes}; --input was given twice for {name}")
    missing = [name for name in _required(parameters) if name not in (*by_position[:positions], *given)]
    if missing:
        raise ModelSpecError(f"{takes}; describe {', '.join(missing)} with --input too")


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in (_REST, _OTHER_NAMES)
    ]


def _usual_inputs(model: nn.Module, batch: int, length: int | None) -> list[InputSpec]:
    parameters = inspect.signature(model.forward).parameters
    required = _required(parameters)
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "main_input_name"):
        if required:
            raise ModelSpecError(
                f"{type(model).__name__}: takes {', '.join(required)}; describe them with --input, as in "
                "--input 1x3x224x224 or --input 2x16:int64"
            )
        return []
    wanted = {model.main_input_name, *required}
    # Where pictures stand for tokens in the text, a text without any will do.
    if _find(config, "image_token_id", "image_token_index", "video_token_id", "image_token") is None:
        wanted |= {"pixel_values", "bbox"}
    if getattr(config, "is_encoder_decoder", False):
        wanted.add("decoder_input_ids")
    size_of = _sizes(config, batch, _length(model, config, batch, length))
    unknown = [name for name in required if name not in size_of]
    if unknown:
        raise ModelSpecError(
            f"{type(model).__name__}: takes {', '.join(unknown)}; describe them with --input NAME=SIZES"
        )
    return [InputSpec(name, *size_of[name]()) for name in parameters if name in wanted and name in size_of]


_Described = tuple[tuple[int, ...], torch.dtype | None]


def _length(model: nn.Module, config: Any, batch: int, length: int | None) -> int:
    found = find_in_config(config, *POSITIONS)
    longest = 0 if found is None else getattr(*found)
    if found is None or longest <= 0:
        return length or USUAL_LENGTH
    if length is not None and length > longest:
        described = f"{model.main_input_name}={batch}x{length}:int64"
        raise ModelSpecError(
            f"--length {length}: {type(model).__name__} is configured for {longest} tokens at most; raise {found[1]} "
            f"in its configuration, or describe the inputs, as in --input {described}"
        )
    return length or min(USUAL_LENGTH, longest)


def _sizes(config: Any, batch: int, length: int) -> dict[str, Callable[[], _Described]]:
    """What arguments of models in transformers are called, and what goes there."""

    def tokens(*more: int) -> Callable[[], _Described]:
        return lambda: ((batch, length, *more), torch.int64)

    def pictures() -> _Described:
        edge = _find(config, "image_size", "input_size", "crop_size") or 224
        height, width = edge if isinstance(edge, list | tuple) else (edge, edge)
        return (batch, _find(config, "num_channels", "in_channels") or 3, height, width), None

    def sound() -> _Described:
        bins = _find(config, "num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel") or 80
        positions = _find(config, "max_source_positions")
        # Whisper and its kin put the bins first and take half a minute, two frames to a position.
        if getattr(config, "model_type", "") == "whisper" and positions:
            return (batch, bins, 2 * positions), None
        return (batch, 8 * length, bins), None

    return {
        "input_ids": tokens(),
        "decoder_input_ids": tokens(),
        "attention_mask": tokens(),
        "bbox": tokens(4),
        "pixel_values": pictures,
        "input_values": lambda: ((batch, 16_000), None),
        "input_features": sound,
    }


def _find(config: Any, *names: str) -> Any:
    """The value of the first of `names` that the configuration or one of its parts has."""
    found = find_in_config(config, *names)
    return None if found is None else getattr(*found)
