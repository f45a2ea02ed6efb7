"""CUDA devices in the mode: the current one (`device(1)`, `set_device` of `torch.cuda`) and their random generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake import _C

_original: dict[str, Callable[..., Any]] = {}


def _exchange_device(device: int | None) -> int:
    if device is not None and device < 0:
        return -1
    return _C.exchange_device("cuda", device)


def _set_device(device: Any) -> None:
    _exchange_device(torch.cuda._utils._get_device_index(device, optional=True))


def _current_device() -> int:
    return _C.exchange_device("cuda", None)


def _synchronize(device: Any = None) -> None:
    """Nothing runs on a claimed device, so there is nothing to wait for."""


def _default_generator(device: Any = "cuda") -> torch.Generator:
    return _C.default_generator(torch.device("cuda", device) if isinstance(device, int) else torch.device(device))


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return _default_generator(device).get_state()


def _set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    _default_generator(device).set_state(new_state)


def _manual_seed(seed: int) -> None:
    _default_generator().manual_seed(int(seed))


def _initial_seed() -> int:
    return _default_generator().initial_seed()


_IN_THE_MODE: dict[str, Callable[..., Any]] = {
    "_exchange_device": _exchange_device,
    "_maybe_exchange_device": _exchange_device,
    "set_device": _set_device,
    "current_device": _current_device,
    "synchronize": _synchronize,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "manual_seed": _manual_seed,
    "initial_seed": _initial_seed,
}


def _wrap(name: str) -> Callable[..., Any]:
    original, in_the_mode = _original[name], _IN_THE_MODE[name]

    def function(*args: Any, **kwargs: Any) -> Any:
        return (in_the_mode if _C.in_fake_mode() else original)(*args, **kwargs)

    function.__name__ = name
    function.__doc__ = original.__doc__
    return function


def install() -> None:
    """Puts them in place. In the mode the devices are claimed ones, whether there are others or not."""
    for name in _IN_THE_MODE:
        _original[name] = getattr(torch.cuda, name)
        setattr(torch.cuda, name, _wrap(name))
