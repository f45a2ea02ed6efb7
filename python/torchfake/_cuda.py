"""CUDA devices in the mode: the current one (`device(1)`, `set_device` of `torch.cuda`), their random generators, and
their streams and events, on which nothing waits.

A stream of a claimed device is a `torch.Stream`, which asks the device's guard for everything; `torch.cuda.Stream` has
no base class where PyTorch was built without CUDA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from torchfake import _C


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


def _get_device_capability(device: Any = None) -> tuple[int, int]:
    """That of the GPU that claimed ones are taken to be (docs/decisions/0009)."""
    return (9, 0)


def _new_stream(device: Any = None, priority: int = 0, **by_id: int) -> torch.Stream:
    if by_id:
        return torch.Stream(**by_id)
    index = _current_device() if device is None else torch.cuda._utils._get_device_index(device, optional=True)
    return torch.Stream(device=torch.device("cuda", index), priority=priority)


def _new_event(
    enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
) -> torch.Event:
    return torch.Event(device="cuda", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def _current_stream(device: Any = None) -> torch.Stream:
    return _new_stream(device)


def _set_stream(stream: torch.Stream | None) -> None:
    """There is one on each device, and it is the current one."""


def _stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if stream is None else stream


#: What answers in the mode, by the name in `torch.cuda`.
IN_THE_MODE: dict[str, Callable[..., Any]] = {
    "_exchange_device": _exchange_device,
    "_maybe_exchange_device": _exchange_device,
    "set_device": _set_device,
    "current_device": _current_device,
    "synchronize": _synchronize,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "manual_seed": _manual_seed,
    "initial_seed": _initial_seed,
    "get_device_capability": _get_device_capability,
    "current_stream": _current_stream,
    "default_stream": _current_stream,
    "set_stream": _set_stream,
    "stream": _stream,
}


def new_stream(original: Callable[..., Any], called: type, *args: Any, **kwargs: Any) -> Any:
    """In the mode, calling `torch.cuda.Stream` returns a stream of another class."""
    return _new_stream(*args, **kwargs) if called is torch.cuda.Stream else original(called, *args, **kwargs)


def new_event(original: Callable[..., Any], called: type, *args: Any, **kwargs: Any) -> Any:
    return _new_event(*args, **kwargs) if called is torch.cuda.Event else original(called, *args, **kwargs)


def leave_guard(original: Callable[[], None]) -> None:
    """PyTorch's FakeTensorMode, which DTensor uses too, would put a guard over ours that makes no streams."""


def uncached(original: Any, *args: Any, **kwargs: Any) -> Any:
    """What PyTorch remembers of a device, asked anew and not remembered: of a claimed one the answer is another."""
    return original.__wrapped__(*args, **kwargs)
