"""Claimed CUDA devices: the current device, random generators, streams and events, mixed precision, legacy types."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from torchfake import _C
from torchfake.errors import UnknownValuesError
from torchfake.modes import current_mode, fake_mode

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


def _keeps_its_state(new_state: torch.Tensor) -> bool:
    """Whether to skip restoring a state: it is unknown (from a file read in the mode), and the mode has stand-ins."""
    if not _C.is_fake(new_state) or _C.is_known(new_state):
        return False
    mode = current_mode()
    if not isinstance(mode, fake_mode) or not mode._state.has_stand_ins:
        return False
    mode.stand_ins.hear("set_rng_state", "the generator keeps its state")
    return True


def _set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    if not _keeps_its_state(new_state):
        _default_generator(device).set_state(new_state)


def set_rng_state(original: Callable[..., None], new_state: torch.Tensor) -> None:
    """`torch.set_rng_state`, for the generator of the CPU, which reads the state from memory."""
    if not _keeps_its_state(new_state):
        known = _C.known_values_of(new_state, True) if _C.is_fake(new_state) else new_state
        if known is None:
            raise UnknownValuesError(
                "torch.set_rng_state: the state is a fake whose values are not known.", "set_rng_state"
            )
        original(known)


def _manual_seed(seed: int) -> None:
    _default_generator().manual_seed(int(seed))


def _initial_seed() -> int:
    return _default_generator().initial_seed()


def _bases(of_cuda: type, generic: type) -> tuple[type, ...]:
    """The bases of a stream or event: both classes. In a build with CUDA, the one of `torch.cuda` is both."""
    return (of_cuda,) if issubclass(of_cuda, generic) else (generic, of_cuda)


def _methods(generic: type) -> dict[str, Any]:
    """The methods of the generic class: in a build with CUDA, those of `torch.cuda` call the driver."""
    return {name: method for name, method in vars(generic).items() if not name.startswith("__")} | {
        name: getattr(generic, name) for name in ("__enter__", "__exit__") if hasattr(generic, name)
    }


class _OfCard:
    """What `torch.cuda.Stream` and `torch.cuda.Event` have in addition to the generic class."""

    cuda_stream = 0
    cuda_event = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything is done by `__new__`; the method of PyTorch's dummy class raises."""

    def __repr__(self) -> str:
        kind = type(self).__name__.removeprefix("Card")
        handle = self.cuda_stream if kind == "Stream" else self.cuda_event
        return f"<torch.cuda.{kind} device={getattr(self, 'device', 'cuda')} {kind.lower()}={handle:#x}>"


def _recorded(stream: torch.Stream, event: Any = None) -> Any:
    event = _new_event() if event is None else event
    event.record(stream)
    return event


CardStream = type(
    "CardStream",
    (_OfCard, *_bases(torch.cuda.Stream, torch.Stream)),
    _methods(torch.Stream)
    | {
        "__doc__": "A stream of a claimed card, which is a `torch.cuda.Stream` too.",
        "__new__": lambda cls, *args, **kwargs: _C.new_stream(cls, *args, **kwargs),
        "priority_range": staticmethod(lambda: (0, -5)),
        "priority": 0,
        "cuda_stream": property(lambda self: 0x7E0000000000 + 64 * self.stream_id if self.stream_id else 0),
        "record_event": lambda self, event=None: _recorded(self, event),
        "__eq__": lambda self, other: (
            isinstance(other, torch.Stream) and self.device == other.device and self.stream_id == other.stream_id
        ),
        "__ne__": lambda self, other: not self.__eq__(other),
        "__hash__": lambda self: hash((self.device, self.stream_id)),
    },
)


def _record(event: Any, stream: torch.Stream | None = None) -> None:
    torch.Event.record(event, _current_stream() if stream is None else stream)
    event._recorded_at = time.perf_counter()


def _elapsed_time(event: Any, end_event: Any) -> float:
    """The milliseconds between two records, by the clock of this machine: nothing runs on a claimed card."""
    for each in (event, end_event):
        if not each.enable_timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not hasattr(each, "_recorded_at"):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
    mode = current_mode()
    if isinstance(mode, fake_mode) and mode._state.has_stand_ins:
        mode.stand_ins.hear("elapsed_time", "the time of this machine")
    return float((end_event._recorded_at - event._recorded_at) * 1000)


CardEvent = type(
    "CardEvent",
    (_OfCard, *_bases(torch.cuda.Event, torch.Event)),
    _methods(torch.Event)
    | {
        "__doc__": "An event of a claimed card, which is a `torch.cuda.Event` too.",
        "__new__": lambda cls, *args, **kwargs: _C.new_event(cls, *args, **kwargs),
        "record": _record,
        "elapsed_time": _elapsed_time,
        "wait": lambda self, stream=None: torch.Event.wait(self, _current_stream() if stream is None else stream),
    },
)


def _new_stream(device: Any = None, priority: int = 0, **by_id: int) -> torch.Stream:
    if by_id:
        stream: torch.Stream = CardStream(**by_id)
        return stream
    index = _current_device() if device is None else torch.cuda._utils._get_device_index(device, optional=True)
    made: Any = CardStream(device=torch.device("cuda", index), priority=priority)
    made.priority = min(max(priority, -5), 0)
    stream = made
    return stream


def _new_event(
    enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
) -> torch.Event:
    event: Any = CardEvent(device="cuda", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)
    event.enable_timing = enable_timing
    made: torch.Event = event
    return made


def _index_of(device: Any) -> int:
    if device is None:
        return _current_device()
    index: int = torch.cuda._utils._get_device_index(device, optional=True)
    return index


def _current_stream(device: Any = None) -> torch.Stream:
    index = _index_of(device)
    return _stream_of(index, _C.exchange_stream("cuda", index, None))


def _default_stream(device: Any = None) -> torch.Stream:
    return _stream_of(_index_of(device), 0)


_CUDA = 1  # c10::DeviceType::CUDA


def _stream_of(index: int, number: int) -> torch.Stream:
    stream: torch.Stream = CardStream(stream_id=number, device_index=index, device_type=_CUDA)
    return stream


def _set_stream(stream: torch.Stream | None) -> None:
    if stream is not None:
        _C.exchange_stream("cuda", stream.device.index, stream.stream_id)


@contextlib.contextmanager
def _stream(stream: torch.Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    index = stream.device.index
    device, before = _exchange_device(index), _current_stream(index)
    _set_stream(stream)
    try:
        yield
    finally:
        _set_stream(before)
        _exchange_device(device)


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
    "current_stream": _current_stream,
    "default_stream": _default_stream,
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


def _is_assumed(found: Tensor) -> bool:
    return _C.is_plain_fake(found) and not _C.is_known(found) and _C.mode_of(found).assumes_valid


def maybe_opt_step(
    original: Callable[..., float | None],
    self: GradScaler,
    optimizer: torch.optim.Optimizer,
    optimizer_state: dict[str, Any],
    *args: Any,
    **kwargs: Any,
) -> float | None:
    # Whether a gradient overflowed is an unknown value. The step is taken, as in a successful run, so that memory plans
    # include it. A mode that assumes finite gradients knows that none overflowed; a strict one raises.
    if any(map(_is_assumed, optimizer_state["found_inf_per_device"].values())):
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


def set_default_tensor_type(original: Callable[[Any], None], kind: Any) -> None:
    """`torch._C._set_default_tensor_type`, which knows PyTorch's own types and no stand-in."""
    original(kind._original if isinstance(kind, _CudaTensorType) else kind)
