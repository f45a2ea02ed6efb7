"""`fake_mode`, `no_fake_mode`, and the base class of all modes: a mode state of the engine, entered and left."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from typing_extensions import deprecated

from torchfake import _C
from torchfake._cards import Cards
from torchfake.errors import FakeTensorError, MixedModesError
from torchfake.stand_ins import StandInLog

if TYPE_CHECKING:
    from torchfake._peers import Peers
    from torchfake.fake import FakeTensor

#: Logs every operator run inside a mode, if its level is DEBUG when the mode is entered.
trace_log = logging.getLogger("torchfake.trace")

#: The default of `fake_mode(known_values_limit=...)`.
KNOWN_VALUES_LIMIT = 16_384

#: The default of `fake_mode(drawn_values_limit=...)`.
DRAWN_VALUES_LIMIT = 64

#: The options of a state that can be changed after it was created.
_OPTIONS = (
    "allow_fallback_kernels",
    "allow_meta",
    "assumes_valid",
    "cache_enabled",
    "capability",
    "cards",
    "drawn_values",
    "epoch",
    "fake_cuda",
    "known_from_factories",
    "prefer_device_type",
    "propagate_real_tensors",
    "real_tensors",
    "selects_all",
)


class _OfThread(threading.local):
    """The number of modes that this thread has entered, and PyTorch's setting from before the first of them."""

    depth = 0
    has_entered = False
    lifted_cpu_only = False


_of_thread = _OfThread()


def has_entered() -> bool:
    """Whether this thread has ever been in a mode."""
    return _of_thread.has_entered


def _enter(state: _C.ModeState, show: Callable[[str], None] | None = None) -> _C.EnteredFakeMode:
    """Enters a mode on this thread. `torch.tensor(..., device="cuda")` then moves a fake to its claimed device."""
    entered = _C.EnteredFakeMode(state, show)
    _of_thread.has_entered = True
    if _of_thread.depth == 0:
        _of_thread.lifted_cpu_only = torch._C._only_lift_cpu_tensors()
    _of_thread.depth += 1
    torch._C._set_only_lift_cpu_tensors(True)
    return entered


def _leave(entered: _C.EnteredFakeMode) -> None:
    """Leaves a mode, not necessarily the last one entered: two generators may take turns."""
    entered.leave()
    _of_thread.depth -= 1
    if _of_thread.depth == 0:
        torch._C._set_only_lift_cpu_tensors(_of_thread.lifted_cpu_only)


class Mode:
    """A mode of the engine. Each thread enters and leaves it independently, and may enter it repeatedly."""

    #: Attributes that `copy.deepcopy` does not copy.
    _OWN: frozenset[str] = frozenset({"_entered", "_state"})

    #: The environment of symbolic sizes, or None.
    shape_env: Any

    def __init__(self, state: _C.ModeState) -> None:
        self._state = state
        self._entered = threading.local()
        _modes[state.address] = self

    def __enter__(self) -> Self:
        refuse_pytorchs_mode()
        self._stack().append(_enter(self._state, _show if trace_log.isEnabledFor(logging.DEBUG) else None))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._stack():
            raise FakeTensorError(
                f"{type(self).__name__}.__exit__: this thread is not in the mode. Each thread enters and leaves a mode "
                "on its own; use a `with` statement."
            )
        self._before_leaving()
        _leave(self._stack().pop())

    @classmethod
    def _with_state(cls, state: _C.ModeState) -> Self:
        """A mode of this class for an existing state."""
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A new mode with the same options; fakes still belong to the original."""
        state = self._new_state()
        for option in _OPTIONS:
            setattr(state, option, getattr(self._state, option))
        copied = memo[id(self)] = type(self)._with_state(state)
        attributes = {name: value for name, value in vars(self).items() if name not in self._OWN}
        vars(copied).update(copy.deepcopy(attributes, memo))
        return copied

    def _new_state(self) -> _C.ModeState:
        """A state of the same kind, for a copy."""
        return _C.ModeState(known_values=self._state.known_values, exclusive=self._state.exclusive)

    def _stack(self) -> list[_C.EnteredFakeMode]:
        if not hasattr(self._entered, "stack"):
            self._entered.stack = []
        stack: list[_C.EnteredFakeMode] = self._entered.stack
        return stack

    def _before_leaving(self) -> None:
        """Reverts what a subclass changed when this thread entered the mode."""


class fake_mode(Mode, contextlib.ContextDecorator):  # lower case: a function in torchdistx
    """Makes every tensor created in its scope fake. A context manager and a decorator.

    Args:
        fake_cuda: Whether fakes may claim devices that this machine does not have. If False, requesting one raises
            `DeviceNotFakedError`.
        known_values_limit: The largest number of elements for which a fake's values are tracked when they are derived
            from constants by deterministic operators, so that `.item()` or a mask gives the real result. 0 tracks no
            values. All tracked values together take at most one gigabyte.
        selects_all: Whether a mask of unknown values, or `nonzero` of them, is assumed to select every element instead
            of raising an error. This is the upper bound: a mixture of experts that routes by values then sends every
            token to every expert.
        gpus: The available cards: `"H200"`, `"8xH100-80GB"` (the names are those of `torchfake run --gpus`). No other
            index can be claimed, and exceeding a card's memory raises `torch.cuda.OutOfMemoryError`. By default cards
            are H200s, as many as are claimed, and their memory is counted but not limited.
        gpu_memory: The memory of each card, overriding its default: `"24GiB"`.
        unlimited: Continues past the memory of the cards of `gpus` instead of raising `torch.OutOfMemoryError`, so that
            the memory that a program needs can be measured.
        unknown: What happens when an unknown value is read: `"error"` raises the typed error, `"stand-in"` returns a
            stand-in (1.0, or False for a branch) and records the location in `stand_ins`.
        drawn_values_limit: The largest number of elements of a random result that is actually drawn, so that its values
            are known. 0 draws nothing.
        strict: Disables the two assumptions of this mode as well: that the gradients checked by a loss scaler are
            finite, and that values which are only validated are valid.
        propagate_real_tensors: Computes real values on the CPU along with every fake, whatever its size: each operator
            also runs for real, and no value is unknown. Takes the memory and time of the real program.
        known_values: Deprecated name of `known_values_limit`.
        shape_env: The environment of symbolic sizes; see `torchfake.ShapeEnv`.

    >>> import torch
    >>> from torchfake import fake_mode
    >>> with fake_mode():
    ...     x = torch.ones(10)
    ...     weights = torch.empty(70_000, 1_000_000, device="cuda")
    >>> x
    tensor(..., size=(10,), fake=True)
    >>> weights
    tensor(..., device='cuda:0', size=(70000, 1000000), fake=True)

    Modes nest, each thread has its own, and fakes can be used outside the mode:

    >>> (x + x).device
    device(type='cpu')
    """

    def __init__(
        self,
        *,
        fake_cuda: bool = True,
        known_values_limit: int = KNOWN_VALUES_LIMIT,
        selects_all: bool = False,
        gpus: str | None = None,
        gpu_memory: str | int | None = None,
        unlimited: bool = False,
        unknown: str = "error",
        drawn_values_limit: int = DRAWN_VALUES_LIMIT,
        strict: bool = False,
        propagate_real_tensors: bool = False,
        known_values: int | None = None,
        shape_env: _C.ShapeEnv | None = None,
    ) -> None:
        if known_values is not None:
            warnings.warn("fake_mode: known_values is now called known_values_limit", DeprecationWarning, stacklevel=2)
            known_values_limit = known_values
        if known_values_limit < 0:
            raise ValueError(f"fake_mode: known_values_limit must be 0 or more, got {known_values_limit}")
        if drawn_values_limit < 0:
            raise ValueError(f"fake_mode: drawn_values_limit must be 0 or more, got {drawn_values_limit}")
        if unknown not in ("error", "stand-in"):
            raise ValueError(f"fake_mode: unknown must be 'error' or 'stand-in', got {unknown!r}")
        if not fake_cuda and (gpus is not None or gpu_memory is not None):
            raise ValueError("fake_mode: gpus and gpu_memory describe claimed cards, and fake_cuda=False claims none")
        if unlimited and gpus is None and gpu_memory is None:
            raise ValueError("fake_mode: unlimited is about the cards of gpus= or gpu_memory=; others have no limit")
        self.cards = Cards.of(gpus, gpu_memory, faked=fake_cuda, unlimited=unlimited)
        self.stand_ins = StandInLog()
        self.meshes = []
        self.peers = None
        self.sent = {}
        self.backend = None
        super().__init__(
            _C.ModeState(
                known_values=known_values_limit,
                memory=self.cards.counter,
                stand_ins=self.stand_ins if unknown == "stand-in" else None,
            )
        )
        self.cards.memory_of(self._state)
        self._state.fake_cuda = fake_cuda
        self._state.selects_all = selects_all
        self._state.drawn_values = drawn_values_limit
        self._state.assumes_valid = not strict
        self._state.propagate_real_tensors = propagate_real_tensors
        self._state.cards = len(self.cards) if self.cards.are_limited else 0
        if self.cards.are_limited and len(self.cards) > 0:
            self._state.capability = 10 * self.cards[0].major + self.cards[0].minor
        if shape_env is not None:
            _C.set_shape_env(self._state, shape_env)

    @property
    def shape_env(self) -> _C.ShapeEnv | None:
        """The environment of symbolic sizes, or None."""
        return _C.shape_env_of(self._state)

    def from_tensor(self, tensor: Tensor, *, dynamic: Sequence[int] | Mapping[int, str] = ()) -> FakeTensor:
        """The fake of a real tensor in this mode, as `torchfake.to_fake(tensor, dynamic=dynamic)` inside it."""
        from torchfake.fake import to_fake

        with self:
            return to_fake(tensor, dynamic=dynamic)

    # The thread's current card belongs to the machine that the cards describe.

    def __enter__(self) -> Self:
        super().__enter__()
        if self.cards.are_limited and len(self.cards) > 0:
            before = _C.exchange_device("cuda", None)
            self._current_cards().append(before)
            _C.exchange_device("cuda", before if before < len(self.cards) else 0)
        return self

    def _before_leaving(self) -> None:
        if self.cards.are_limited and len(self.cards) > 0:
            _C.restore_device("cuda", self._current_cards().pop())

    def _current_cards(self) -> list[int]:
        """The cards that were current when this thread entered the mode."""
        if not hasattr(self._entered, "cards"):
            self._entered.cards = []
        current: list[int] = self._entered.cards
        return current

    @classmethod
    def _with_state(cls, state: _C.ModeState) -> Self:
        mode = cls.__new__(cls)
        mode.cards = Cards.of(None, None, faked=state.fake_cuda)
        mode.stand_ins = StandInLog()
        mode.meshes = []
        mode.peers = None
        mode.sent = {}
        mode.backend = None
        Mode.__init__(mode, state)
        return mode

    def _new_state(self) -> _C.ModeState:
        # The copy claims the same cards, and shares the log.
        state = _C.ModeState(
            known_values=self._state.known_values,
            memory=self.cards.counter,
            stand_ins=self.stand_ins if self._state.has_stand_ins else None,
        )
        self.cards.memory_of(state)
        return state

    #: The cards that the mode claims, as reported by `torch.cuda` inside it.
    cards: Cards
    #: The stand-ins returned for unknown values, and where.
    stand_ins: StandInLog
    #: The named device meshes created in the mode: names, shape and ranks of each.
    meshes: list[dict[str, Any]]
    #: The other ranks of the program, where objects can be received from them.
    peers: Peers | None
    #: The known values that were sent to a rank last, by rank, sizes and dtype.
    sent: dict[tuple[int | None, torch.Size, torch.dtype], torch.Tensor]
    #: The backend of process groups that the program asked for.
    backend: str | None

    @property
    def fake_cuda(self) -> bool:
        """Whether fakes may claim devices that this machine does not have."""
        return self._state.fake_cuda

    @property
    def known_values_limit(self) -> int:
        """The largest number of elements for which values are tracked."""
        return self._state.known_values

    @property
    @deprecated("fake_mode.known_values is now called known_values_limit")
    def known_values(self) -> int:
        """Deprecated: use `known_values_limit`."""
        return self.known_values_limit


class no_fake_mode(contextlib.ContextDecorator):
    """Suspends the mode: tensors created in its scope are real.

    >>> import torch
    >>> from torchfake import fake_mode, is_fake, no_fake_mode
    >>> with fake_mode():
    ...     with no_fake_mode():
    ...         is_fake(torch.ones(2))
    False
    """

    def __init__(self) -> None:
        self._entered: list[_C.EnteredNoFakeMode] = []

    def __enter__(self) -> None:
        self._entered.append(_C.EnteredNoFakeMode())

    def __exit__(self, *_: object) -> None:
        self._entered.pop().leave()


class in_mode_of:
    """Enters the mode of a fake unless the thread is in a mode already, so that tensors created from it are fake."""

    def __init__(self, fake: Tensor) -> None:
        self._fake = fake
        self._entered: _C.EnteredFakeMode | None = None

    def __enter__(self) -> None:
        if not _C.in_fake_mode():
            self._entered = _enter(_C.mode_of(self._fake))

    def __exit__(self, *_: object) -> None:
        if self._entered is not None:
            _leave(self._entered)


_showing = threading.local()


def _show(line: str) -> None:
    """Logs an operator, unless called by a handler of the log itself."""
    if getattr(_showing, "now", False):
        return
    _showing.now = True
    try:
        trace_log.debug(line)
    finally:
        _showing.now = False


# The mode object of each state, as long as it is referenced. It keeps its state alive, so addresses stay valid.
_modes: weakref.WeakValueDictionary[int, Mode] = weakref.WeakValueDictionary()
_modes_lock = threading.RLock()  # two threads that ask for the mode of a state get the same object


def mode_for(state: _C.ModeState) -> Mode:
    """The mode object of a state; a new one if the previous one is gone."""
    from torchfake.fake_tensor_mode import FakeTensorMode

    with _modes_lock:
        mode = _modes.get(state.address)
        if mode is None:
            mode = FakeTensorMode._with_state(state) if state.exclusive else fake_mode._with_state(state)
        return mode


def mode_of(fake: Tensor) -> Mode:
    """The mode that a fake belongs to."""
    return mode_for(_C.mode_of(fake))


def current_mode() -> Mode | None:
    """The innermost mode of this thread, or None."""
    state = _C.current_mode()
    return None if state is None else mode_for(state)


def refuse_pytorchs_mode() -> None:
    """Raises MixedModesError if PyTorch's own FakeTensorMode is active on this thread."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        raise MixedModesError(
            "PyTorch's own FakeTensorMode is active; leave it before entering a mode of torchfake. "
            "torchfake.from_pytorch_fake converts its tensors."
        )
