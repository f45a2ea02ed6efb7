"""What `fake_mode` and `FakeTensorMode` have in common: a state of the engine, entered and left."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
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


def suspend_as_well(original: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Makes one of PyTorch's functions that suspend modes suspend a FakeTensorMode of ours too, and yield it.

    A `fake_mode` stays: it is there for programs, in whose depths PyTorch suspends its own.
    """
    mode = current_mode()
    exclusive = mode is not None and mode._state.exclusive
    suspended = _C.EnteredNoFakeMode() if exclusive else None
    try:
        with contextlib.contextmanager(original)(*args, **kwargs) as theirs:
            yield mode if exclusive and theirs is None else theirs
    finally:
        if suspended is not None:
            suspended.leave()


# One entry for each time that PyTorch's own FakeTensorMode was entered inside a mode of ours on this thread, innermost
# last.
_suspended = threading.local()


def enter_pytorchs_mode(original: Callable[..., Any], self: Any) -> Any:
    """The innermost mode decides: PyTorch's own FakeTensorMode, entered inside one of ours, suspends it.

    PyTorch enters it by itself, to describe a tensor or to ask an operator for its output.
    """
    suspended = _C.EnteredNoFakeMode()
    try:
        entered = original(self)
    except BaseException:
        suspended.leave()
        raise
    vars(_suspended).setdefault("stack", []).append((len(self.enter_stack), self, suspended))
    return entered


def leave_pytorchs_mode(original: Callable[..., Any], self: Any, *error: Any) -> Any:
    depth = len(self.enter_stack)
    try:
        return original(self, *error)
    finally:
        stack = vars(_suspended).get("stack", [])
        if stack and stack[-1][0] == depth and stack[-1][1] is self:
            stack.pop()[2].leave()
