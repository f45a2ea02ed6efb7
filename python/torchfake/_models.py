"""For the command line: finds a model by name, builds it with fake tensors, and creates its inputs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from torchfake._explain import is_of_a_library
from torchfake.modes import fake_mode

# ---- Finding and building the model ----------------------------------------------------------------------------------


class ModelSpecError(ValueError):
    """The model, its configuration or its inputs are not as described on the command line."""


class ModelBuildError(RuntimeError):
    """The code of the model failed."""


def build_model(
    spec: str,
    *,
    config: Path | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    length: int | None = None,
) -> nn.Module:
    """Builds the model called `spec` inside `fake_mode()`.

    Args:
        spec: `module:callable`, `file.py:callable`, `file.py` (its `build_model()`, or else its `model`), the name
            of a class in `transformers`, or a folder with a checkpoint of one. The callable is called without
            arguments; a module is used as it is.
        config: The `config.json` for a class of `transformers`; without it the class's default configuration is used.
        device: The device to move the model to.
        dtype: The dtype to convert its floating-point parameters and buffers to.
        length: The number of tokens it has to accept: the default configuration of a class of `transformers` is changed
            if it has fewer positions. A given `config` is not changed.

    Raises:
        ModelSpecError: There is no such model.
        ModelBuildError: Its code raised an error, or returned something other than a `torch.nn.Module`.
    """
    origin, separator, attribute = spec.rpartition(":")
    if not separator:
        origin, attribute = attribute, ""
    is_file = origin.endswith(".py")
    if config is not None and (is_file or separator):
        raise ModelSpecError(f"{spec}: --config is only for classes of transformers")
    if is_file:
        return _finish(spec, lambda: _from_file(Path(origin), attribute), device, dtype)
    if separator:
        return _finish(spec, lambda: _from_module(origin, attribute), device, dtype)
    if not separator and Path(spec).is_dir():
        spec, config = _class_of_checkpoint(Path(spec)), Path(spec) / "config.json"
    model_class, model_config = _transformers_class(spec, config)
    if length is not None and config is None:
        _make_room(model_config, length)
    return _finish(spec, lambda: _construct(model_class, model_config), device, dtype)


#: Names of the maximum number of tokens in configurations of `transformers`.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_source_positions")


def _find_in_config(config: Any, *names: str) -> tuple[Any, str] | None:
    """The first of `names` that the configuration or a part of it has, together with that part."""
    parts = [config, *(part for part in vars(config).values() if hasattr(part, "to_dict"))]
    found = ((part, name) for part in parts for name in names if getattr(part, name, None) is not None)
    return next(found, None)


def _make_room(config: Any, length: int) -> None:
    """Gives a configuration at least `length` positions if it limits them."""
    found = _find_in_config(config, *_POSITIONS)
    if found is not None and 0 < getattr(*found) < length:
        setattr(*found, length)


def line_of_user(error: BaseException) -> str:
    """The last line of the user's code that an error passed: not Python's, PyTorch's or ours, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not is_of_a_library(frame.filename)]
    where = (theirs or frames)[-1]
    return f"{where.filename}:{where.lineno}"


def _finish(spec: str, make: Any, device: torch.device | None, dtype: torch.dtype | None) -> nn.Module:
    try:
        with fake_mode():
            model = make()
            if not isinstance(model, nn.Module):
                raise ModelBuildError(f"{spec}: got an object of type {type(model).__name__}, not a torch.nn.Module")
            return model.to(device=device, dtype=dtype)
    except (ModelSpecError, ModelBuildError):
        raise
    except Exception as error:
        raise ModelBuildError(
            f"{spec}: building the model failed: {type(error).__name__}: {error} ({line_of_user(error)})"
        ) from error


def _from_file(path: Path, attribute: str) -> Any:
    if not path.is_file():
        raise ModelSpecError(f"{path}: no such file")
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    module_spec.loader.exec_module(module)
    if attribute:
        return _call(_member(module, attribute))
    for name in ("build_model", "model"):
        if hasattr(module, name):
            return _call(getattr(module, name))
    raise ModelSpecError(f"{path}: defines neither build_model() nor model; name another with {path}:NAME")


def _from_module(name: str, attribute: str) -> Any:
    if not attribute or not name:
        raise ModelSpecError(f"{name}:{attribute}: expected module:callable")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ModelSpecError(f"{name}: no such module") from None
        raise
    return _call(_member(module, attribute))


def _member(module: ModuleType, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        if not hasattr(value, name):
            raise ModelSpecError(f"{module.__name__}: has no '{path}'{_hint(name, dir(value))}")
        value = getattr(value, name)
    return value


def _call(value: Any) -> Any:
    return value if isinstance(value, nn.Module) or not callable(value) else value()


def _class_of_checkpoint(folder: Path) -> str:
    """The class that a folder made by `save_pretrained` names."""
    try:
        values = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise ModelSpecError(f"{folder}: no checkpoint: its config.json cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise ModelSpecError(f"{folder / 'config.json'}: not JSON: {error}") from None
    names = values.get("architectures") if isinstance(values, dict) else None
    if not names or not isinstance(names[0], str):
        raise ModelSpecError(
            f"{folder}: its config.json names no architecture; name the class and pass --config "
            f"{folder / 'config.json'}"
        )
    return names[0]


def _transformers_class(name: str, config: Path | None) -> tuple[Any, Any]:
    try:
        import transformers
    except ModuleNotFoundError:
        raise ModelSpecError(
            f"{name}: assumed to be a class of transformers, which is not installed (pip install 'torchfake[models]')"
        ) from None
    model_class = getattr(transformers, name, None)
    if not isinstance(model_class, type):
        known = [each for each in dir(transformers) if "Model" in each or "For" in each]
        raise ModelSpecError(
            f"{name}: no such class in transformers{_hint(name, known)}; "
            "name other models as module:callable or file.py:callable"
        )
    config_class = getattr(model_class, "config_class", None)
    if config is not None:
        return model_class, _read_config(config, config_class)
    if config_class is None:
        raise ModelSpecError(f"{name}: has no default configuration; give one with --config path/to/config.json")
    return model_class, config_class()


def _read_config(path: Path, config_class: Any) -> Any:
    """The configuration in a `config.json`, which names its own type if the model's class does not."""
    import transformers

    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise ModelSpecError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ModelSpecError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelSpecError(f"{path}: expected a JSON object")
    if config_class is not None:
        return config_class.from_dict(values)
    try:
        return transformers.AutoConfig.for_model(**values)
    except (TypeError, ValueError) as error:
        raise ModelSpecError(f"{path}: {error}") from None


def _construct(model_class: Any, config: Any) -> Any:
    return model_class.from_config(config) if hasattr(model_class, "from_config") else model_class(config)


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


# ---- Creating its inputs ---------------------------------------------------------------------------------------------
#
# Those that the command line describes, or those that a class of transformers usually takes.

#: The default number of tokens, unless the model accepts fewer.
USUAL_LENGTH = 128

_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY
_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_BY_NAME = inspect.Parameter.KEYWORD_ONLY
_REST = inspect.Parameter.VAR_POSITIONAL
_OTHER_NAMES = inspect.Parameter.VAR_KEYWORD

_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<size>scalar|\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


@dataclass(frozen=True)
class InputSpec:
    """An input tensor as described on the command line."""

    name: str | None  #: the argument; None for the next positional one
    size: tuple[int, ...]
    dtype: torch.dtype | None  #: None for the model's own floating-point dtype

    def make(self, device: torch.device | None, default: torch.dtype) -> Tensor:
        dtype = self.dtype or default
        # Models often branch on indices and masks, so integers and booleans have known values; others do not.
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.ones(self.size, dtype=dtype, device=device)
        return torch.empty(self.size, dtype=dtype, device=device)


def parse_input(text: str) -> InputSpec:
    """Parses `1x3x224x224`, `2x16:int64`, `mask=2x16:bool` or `scalar`.

    Raises:
        ModelSpecError: `text` has another form.
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
    """The positional and keyword arguments to call `model` with. Must be called in a mode.

    Args:
        length: The number of tokens if `specs` is empty; None for the default, or the model's maximum if that is less.

    Raises:
        ModelSpecError: `specs` do not match the signature of the model, they are empty and its class has no usual
            inputs, or the model does not accept as many tokens.
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
    """Raises ModelSpecError if `specs` do not match the signature of the model."""
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
    # If images replace tokens of the text, a text without images is sufficient.
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
    found = _find_in_config(config, *_POSITIONS)
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
    """Names of arguments of models in transformers, with the size and dtype of each."""

    def tokens(*more: int) -> Callable[[], _Described]:
        return lambda: ((batch, length, *more), torch.int64)

    def pictures() -> _Described:
        edge = _find(config, "image_size", "input_size", "crop_size") or 224
        height, width = edge if isinstance(edge, list | tuple) else (edge, edge)
        return (batch, _find(config, "num_channels", "in_channels") or 3, height, width), None

    def sound() -> _Described:
        bins = _find(config, "num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel") or 80
        positions = _find(config, "max_source_positions")
        # Whisper models have the bins first, and two frames per position.
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
    """The value of the first of `names` that the configuration or a part of it has."""
    found = _find_in_config(config, *names)
    return None if found is None else getattr(*found)
