"""Claimed CUDA devices: the current device, random generators, streams and events, mixed precision, legacy types."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from torchfake import _C

# ---- Devices, generators, streams ------------------------------------------------------------------------------------
#
# A stream of a claimed device is a `torch.Stream`, which delegates everything to the device guard; `torch.cuda.Stream`
# has no base class where PyTorch was built without CUDA. Nothing runs on a claimed device, so nothing has to wait.


def _exchange_device(device: int | None) -> int:
    if device is not None and device < 0:
        return -1
    return _C.exchange_device("cuda", device)


def _set_device(device: Any) -> None:
    _exchange_device(torch.cuda._utils._get_device_index(device, optional=True))


def _current_device() -> int:
    return _C.exchange_device("cuda", None)


def _synchronize(device: Any = None) -> None:
    """Does nothing: no work runs on a claimed device."""


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
    """A claimed GPU is an H200 (docs/decisions/0009)."""
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
    """Does nothing: each device has a single stream, which is always current."""


def _stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if stream is None else stream


#: The functions used in the mode, by name in `torch.cuda`.
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
    """Does nothing: PyTorch's FakeTensorMode, which DTensor uses, would replace our guard by one without streams."""


def uncached(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Bypasses a cache of PyTorch's: the result for a claimed device differs from that for a real one."""
    return original.__wrapped__(*args, **kwargs)


# ---- Mixed precision -------------------------------------------------------------------------------------------------
#
# Autocast and GradScaler ask whether CUDA is available.


def amp_definitely_not_available(original: Callable[[], bool]) -> bool:
    return False


def is_bf16_supported(original: Callable[..., bool], *args: Any, **kwargs: Any) -> bool:
    return True  # a claimed GPU is an H200


def maybe_opt_step(
    original: Callable[..., float | None],
    self: GradScaler,
    optimizer: torch.optim.Optimizer,
    optimizer_state: dict[str, Any],
    *args: Any,
    **kwargs: Any,
) -> float | None:
    # Whether a gradient overflowed is an unknown value. The step is taken, as in a successful run, so that memory plans
    # include it.
    if any(_C.is_fake(found) for found in optimizer_state["found_inf_per_device"].values()):
        step: Callable[..., float | None] = optimizer.step
        return step(*args, **kwargs)
    return original(self, optimizer, optimizer_state, *args, **kwargs)


# ---- Legacy tensor types ---------------------------------------------------------------------------------------------
#
# `torch.cuda.FloatTensor` and the other types in the mode, on a PyTorch without CUDA.


class _CudaTensorType(type):
    """The metaclass of the stand-ins. Outside the mode they raise the errors of PyTorch's own types."""

    dtype: torch.dtype
    _original: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not _C.in_fake_mode():
            return cls._original(*args, **kwargs)
        return torch.empty(0, dtype=cls.dtype, device="cuda").new(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.device.type == "cuda" and instance.dtype == cls.dtype

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._original, name)

    # PyTorch keeps its tensor types in a set.
    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls._original

    def __hash__(cls) -> int:
        return hash(cls._original)


def stand_in(original: Any) -> Any:
    """The stand-in for one of PyTorch's types; the type itself if PyTorch was built with CUDA."""
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return original
    return _CudaTensorType(original.__name__, (), {"__module__": "torch.cuda", "_original": original})


#: The types that this PyTorch has.
NAMES = sorted(original.__name__ for original in torch._tensor_classes if original.__module__ == "torch.cuda")
