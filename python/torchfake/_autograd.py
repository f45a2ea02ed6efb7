"""Lets backward run on fakes outside the mode too, whatever device they claim."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from torchfake import _C
from torchfake.fake import find_fake, in_mode_of, no_fake_mode

_FAKE = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("Fake"))
_NO_DISPATCH = torch.Tensor.__torch_dispatch__


def engine_run_backward(
    original: Callable[..., tuple[torch.Tensor, ...]], t_outputs: Sequence[Any], *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    fake = _find_fake(t_outputs)
    if fake is None and any(map(_claims_absent_device, t_outputs)):
        # PyTorch's own fakes. Autograd finds the device in the mode; the engine is kept out of it.
        entered = _C.EnteredFakeMode(_C.ModeState(known_values=0))
        try:
            with torch._C._ExcludeDispatchKeyGuard(_FAKE):
                return original(t_outputs, *args, **kwargs)
        finally:
            entered.leave()
    if fake is None:
        # A real graph stays real, also inside the mode.
        with no_fake_mode() if _C.in_fake_mode() else contextlib.nullcontext():
            return original(t_outputs, *args, **kwargs)
    # Backward makes tensors of its own, on the devices of those it is given: they have to be fake.
    with in_mode_of(fake), _no_search_for_nan():
        return original(t_outputs, *args, **kwargs)


@contextlib.contextmanager
def _no_search_for_nan() -> Iterator[None]:
    """What `detect_anomaly` looks for in gradients are values, of which a fake has none. The rest of it works."""
    searches = torch.is_anomaly_check_nan_enabled()
    if searches:
        torch.set_anomaly_enabled(torch.is_anomaly_enabled(), False)
    try:
        yield
    finally:
        if searches:
            torch.set_anomaly_enabled(torch.is_anomaly_enabled(), True)


def _find_fake(outputs: Sequence[Any]) -> torch.Tensor | None:
    """The fake among `outputs`, also if it is in an attribute of a wrapper that does not say what it wraps."""
    fake = find_fake(outputs)
    return find_fake(chain.from_iterable(map(_attributes, outputs))) if fake is None else fake


def _attributes(output: Any) -> Iterable[object]:
    dispatches = isinstance(output, torch.Tensor) and type(output).__torch_dispatch__ is not _NO_DISPATCH
    return vars(output).values() if dispatches else ()


def _claims_absent_device(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and _C.is_absent(output.device.type)


def make_grads(
    original: Callable[..., tuple[Any, ...]], outputs: Sequence[Any], *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    with no_fake_mode() if _find_fake(outputs) is None else contextlib.nullcontext():
        return original(outputs, *args, **kwargs)


# By these two allow_mutation_on_saved_tensors tells tensors apart. In place of the address that a fake has not: its
# place in its storage.
def _address(fake: torch.Tensor) -> int:
    return hash((fake.untyped_storage()._cdata, fake.storage_offset()))


def get_tid(original: Callable[..., tuple[int, int, int]], tensor: torch.Tensor) -> tuple[int, int, int]:
    return (id(tensor), _address(tensor), tensor._version) if _C.is_plain_fake(tensor) else original(tensor)


def get_sid(original: Callable[..., tuple[int, int]], tensor: torch.Tensor) -> tuple[int, int]:
    return (_address(tensor), tensor._version) if _C.is_plain_fake(tensor) else original(tensor)
