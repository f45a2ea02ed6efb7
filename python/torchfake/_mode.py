"""What `fake_mode` and `FakeTensorMode` have in common: a state of the engine, entered and left."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchfake import _C
from torchfake.errors import MixedModesError

#: Shows every operator that is answered in the scope of a mode, if the level is DEBUG when it is entered.
trace_log = logging.getLogger("torchfake.trace")

#: What a state can be told after it was made.
_OPTIONS = (
    "allow_fallback_kernels",
    "allow_meta",
    "cache_enabled",
    "epoch",
    "fake_cuda",
    "known_from_factories",
    "prefer_device_type",
    "propagate_real_tensors",
    "real_tensors",
    "selects_all",
)

Self = TypeVar("Self", bound="Mode")


class Mode:
    """A mode of the engine. Each thread enters and leaves it on its own; entering again is allowed."""

    #: Attributes that a copy does not take over.
    _OWN: frozenset[str] = frozenset({"_entered", "_state"})

    def __init__(self, state: _C.ModeState) -> None:
        self._state = state
        self._entered = threading.local()
        _modes[state.address] = self

    def __enter__(self: Self) -> Self:
        refuse_pytorchs_mode()
        lifts_cpu_only = torch._C._only_lift_cpu_tensors()
        entered = _C.EnteredFakeMode(self._state, _show if trace_log.isEnabledFor(logging.DEBUG) else None)
        # torch.tensor(..., device="cuda") is then made on the CPU, turned fake, and moved as a fake.
        torch._C._set_only_lift_cpu_tensors(True)
        _C._skip_init_of_other_backends(True)
        self._stack().append((entered, lifts_cpu_only))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered, lifts_cpu_only = self._stack().pop()
        torch._C._set_only_lift_cpu_tensors(lifts_cpu_only)
        entered.leave()
        _C._skip_init_of_other_backends(False)

    @classmethod
    def _with_state(cls: type[Self], state: _C.ModeState) -> Self:
        """A mode of this class over a state that is there already."""
        raise NotImplementedError

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """Another mode with the same options, and none of the fakes."""
        state = _C.ModeState(known_values=self._state.known_values, exclusive=self._state.exclusive)
        for option in _OPTIONS:
            setattr(state, option, getattr(self._state, option))
        copied = memo[id(self)] = type(self)._with_state(state)
        attributes = {name: value for name, value in vars(self).items() if name not in self._OWN}
        vars(copied).update(copy.deepcopy(attributes, memo))
        return copied

    def _stack(self) -> list[tuple[_C.EnteredFakeMode, bool]]:
        if not hasattr(self._entered, "stack"):
            self._entered.stack = []
        stack: list[tuple[_C.EnteredFakeMode, bool]] = self._entered.stack
        return stack


_showing = threading.local()


def _show(line: str) -> None:
    """Logs an operator, unless it is one that a handler of the log runs itself."""
    if getattr(_showing, "now", False):
        return
    _showing.now = True
    try:
        trace_log.debug(line)
    finally:
        _showing.now = False


# The Python side of a state, while somebody holds it. It holds the state, so an address here is that of a live one.
_modes: weakref.WeakValueDictionary[int, Mode] = weakref.WeakValueDictionary()
_modes_lock = threading.RLock()  # so that two threads that ask for the mode of one state get one mode


def mode_for(state: _C.ModeState) -> Mode:
    """The mode with that state; a new one where nobody holds the first any more."""
    from torchfake.fake import fake_mode
    from torchfake.fake_tensor_mode import FakeTensorMode

    with _modes_lock:
        mode = _modes.get(state.address)
        if mode is None:
            mode = FakeTensorMode._with_state(state) if state.exclusive else fake_mode._with_state(state)
        return mode


def mode_of(fake: Tensor) -> Mode:
    """The mode a fake belongs to."""
    return mode_for(_C.mode_of(fake))


def current_mode() -> Mode | None:
    """The innermost mode of this thread, or None."""
    state = _C.current_mode()
    return None if state is None else mode_for(state)


def refuse_pytorchs_mode() -> None:
    """Raises where PyTorch's own FakeTensorMode is active on this thread."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        raise MixedModesError(
            "PyTorch's own FakeTensorMode is active here; leave it before entering a mode of torchfake. "
            "torchfake.from_torch converts its tensors."
        )


def _called_by_pytorch() -> bool:
    """Whether the caller's caller is PyTorch itself, which enters its mode for a moment to describe a tensor."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back
    name: str = frame.f_globals.get("__name__", "")
    return name == "torch" or name.startswith("torch.")


def _suspend_as_well(suspend: Callable[..., AbstractContextManager[Any]]) -> None:
    """Makes one of PyTorch's functions that suspend modes suspend a FakeTensorMode of ours too, and yield it.

    A `fake_mode` stays: it is there for programs, in whose depths PyTorch suspends its own.
    """
    # What the decorator contextlib.contextmanager calls. The function itself is held by whoever imported it.
    (cell,) = suspend.__closure__  # type: ignore[misc]
    inside = cell.cell_contents

    @functools.wraps(inside)
    def both() -> Iterator[Any]:
        mode = current_mode()
        if mode is None or not mode._state.exclusive:
            yield from inside()
            return
        suspended = _C.EnteredNoFakeMode()
        try:
            with contextlib.contextmanager(inside)() as theirs:
                yield mode if theirs is None else theirs
        finally:
            suspended.leave()

    cell.cell_contents = both


def install() -> None:
    """Makes PyTorch's modes and ours know of each other.

    PyTorch's own FakeTensorMode refuses to be entered inside one of ours, unless PyTorch does so itself; what suspends
    PyTorch's suspends ours.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchs
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    enter = PyTorchs.__enter__

    def refuse_ours(self: PyTorchs) -> PyTorchs:
        if _C.in_fake_mode() and not _called_by_pytorch():
            raise MixedModesError(
                "a mode of torchfake is active here; leave it (torchfake.no_fake_mode) before entering PyTorch's own "
                "FakeTensorMode. torchfake.to_torch converts fakes to its tensors."
            )
        return enter(self)

    _suspend_as_well(_disable_current_modes)
    _suspend_as_well(unset_fake_temporarily)
    PyTorchs.__enter__ = refuse_ours  # type: ignore[method-assign, assignment]
