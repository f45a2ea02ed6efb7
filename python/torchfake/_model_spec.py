"""Finds the model that a command line names, and builds it of fake tensors."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from torchfake.fake import fake_mode

__all__ = ["ModelBuildError", "ModelSpecError", "build_model"]


class ModelSpecError(ValueError):
    """The model, or its configuration, cannot be found under the name given."""


class ModelBuildError(RuntimeError):
    """The model was found, and its own code failed."""


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
        spec: `module:callable`, `file.py:callable`, `file.py` (its `build_model()`, or else its `model`), or the name
            of a class in `transformers`. The callable is called without arguments; a module is taken as it is.
        config: The `config.json` for a class of `transformers`; without it the class's default configuration is used.
        device: The device the model is then moved to.
        dtype: The dtype its floating-point parameters and buffers are then given.
        length: How many tokens it is to take, at least: the default configuration of a class of `transformers` is given
            that many positions where it has fewer. A `config` is left as it is.

    Raises:
        ModelSpecError: There is no such model.
        ModelBuildError: Its code raised an error, or made something that is no `torch.nn.Module`.
    """
    origin, separator, attribute = spec.rpartition(":")
    if not separator:
        origin, attribute = attribute, ""
    is_file = origin.endswith(".py")
    if config is not None and (is_file or separator):
        raise ModelSpecError(f"{spec}: --config is for classes of transformers alone")
    if is_file:
        return _finish(spec, lambda: _from_file(Path(origin), attribute), device, dtype)
    if separator:
        return _finish(spec, lambda: _from_module(origin, attribute), device, dtype)
    model_class, model_config = _transformers_class(spec, config)
    if length is not None and config is None:
        _make_room(model_config, length)
    return _finish(spec, lambda: _construct(model_class, model_config), device, dtype)


#: What the configurations of `transformers` call the most tokens that a model takes.
POSITIONS = ("max_position_embeddings", "n_positions", "max_source_positions")


def find_in_config(config: Any, *names: str) -> tuple[Any, str] | None:
    """The first of `names` that the configuration or one of its parts has, with the part that has it."""
    parts = [config, *(part for part in vars(config).values() if hasattr(part, "to_dict"))]
    found = ((part, name) for part in parts for name in names if getattr(part, name, None) is not None)
    return next(found, None)


def _make_room(config: Any, length: int) -> None:
    """Gives a configuration at least `length` positions, where it says how many there are."""
    found = find_in_config(config, *POSITIONS)
    if found is not None and 0 < getattr(*found) < length:
        setattr(*found, length)


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
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelBuildError(
            f"{spec}: building the model failed: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
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


def _transformers_class(name: str, config: Path | None) -> tuple[Any, Any]:
    try:
        import transformers
    except ModuleNotFoundError:
        raise ModelSpecError(
            f"{name}: taken for a class of transformers, which is not installed (pip install 'torchfake[models]')"
        ) from None
    model_class = getattr(transformers, name, None)
    if not isinstance(model_class, type):
        known = [each for each in dir(transformers) if "Model" in each or "For" in each]
        raise ModelSpecError(
            f"{name}: no such class in transformers{_hint(name, known)}; "
            "other models are named as module:callable or file.py:callable"
        )
    config_class = getattr(model_class, "config_class", None)
    if config is not None:
        return model_class, _read_config(config, config_class)
    if config_class is None:
        raise ModelSpecError(f"{name}: has no default configuration; give one with --config path/to/config.json")
    return model_class, config_class()


def _read_config(path: Path, config_class: Any) -> Any:
    """The configuration in a `config.json`; it says its own type where the model's class leaves that open."""
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
