"""Who owns the memory of a mode: hooks of modules and optimizers tell the engine's ledger what they are at."""

from __future__ import annotations

import contextlib
import dataclasses
import sysconfig
import weakref
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchfake import _C
from torchfake._memory_report import Report
from torchfake.modes import fake_mode

OWNERS = (
    "parameters",
    "gradients",
    "optimizer state",
    "buffers",
    "activations",
    "inputs",
    "temporaries",
    "workspaces",
)

_Numbers = weakref.WeakKeyDictionary[nn.Module, int]

_OUTSIDE, _FORWARD, _OPTIMIZER = 0, 1, 3  # Activity in csrc/torchfake/memory/ledger.h
_POINTS = 600  # of a timeline in a report

_OURS = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_LIBRARY = sysconfig.get_paths()["stdlib"]


class Piece(NamedTuple):
    """One block."""

    device: str
    nbytes: int
    requested: int
    born: int
    died: int
    owner: str
    op: str
    module: str
    phase: str
    address: int
    file: str  # of the program's line that made it; "" where lines are not recorded
    line: int


@dataclasses.dataclass(frozen=True)
class Moment:
    """What lived after one event."""

    device: str
    event: int
    total: int
    pieces: list[Piece]

    @property
    def owners(self) -> dict[str, int]:
        """Bytes by owner, all owners of `OWNERS`; they add up to `total`."""
        found = dict.fromkeys(OWNERS, 0)
        for piece in self.pieces:
            found[piece.owner] += piece.nbytes
        return found

    def by_module(self) -> dict[str, int]:
        """Bytes by the path of the module that made them; "" for what was made outside."""
        found: dict[str, int] = defaultdict(int)
        for piece in self.pieces:
            found[piece.module] += piece.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def largest(self, count: int = 10) -> list[Piece]:
        """The largest blocks."""
        return sorted(self.pieces, key=lambda piece: -piece.nbytes)[:count]


@dataclasses.dataclass(frozen=True)
class Point:
    """A point of a timeline: bytes by owner after an event."""

    event: int
    phase: str
    owners: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.owners.values())


def model_of_mode() -> _C.MemoryModel | None:
    """The model of the mode that is entered, or None."""
    state = _C.current_mode()
    return None if state is None else _C.memory_model(state)


class Tracker(contextlib.AbstractContextManager["Tracker"]):
    """Records the memory of a mode while it is entered; its answers stay valid afterwards. See `memory.track`."""

    def __init__(self, card: dict[str, Any], lines: bool = False) -> None:
        self._card = card
        self._ledger = _C.MemoryLedger()
        self._lines = _C.ProgramLines([_OURS, _TORCH, _LIBRARY, "<"]) if lines else None
        if self._lines is not None:
            self._ledger.set_line_source(self._lines)
        self._model: _C.MemoryModel | None = None
        self._exits = contextlib.ExitStack()
        #: By outermost module: the numbers of the paths of those inside it. Keeps none of them alive.
        self._scopes: weakref.WeakKeyDictionary[nn.Module, _Numbers] = weakref.WeakKeyDictionary()
        #: By the identity of a parameter, the number of the path of the module that holds it.
        self._scope_of: dict[int, int] = {}
        self._entered: list[tuple[int, int]] = []
        self._roots: list[nn.Module] = []

    # ---- Entering and leaving

    def __enter__(self) -> Self:
        from torchfake import memory

        if self._model is not None:
            raise RuntimeError("memory.track: a tracker is entered once; make another")
        if _C.current_mode() is None:
            self._exits.enter_context(fake_mode())
        self._model = model_of_mode()
        if self._model is None:
            self._model = memory.attach(**({"total_memory": 80 << 30} | self._card))
            self._exits.callback(memory.detach, _C.current_mode())
        elif self._card:
            raise ValueError("memory.track: the mode has a model of memory already, whose card is what it is")
        self._model.ledger = self._ledger
        hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._before_module),
            nn.modules.module.register_module_forward_hook(self._after_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        for hook in hooks:
            self._exits.callback(hook.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for module in self._scopes:
            self._claim(module)
        assert self._model is not None
        self._model.ledger = None
        self._exits.close()

    # ---- What the program is at

    def _scope(self, module: nn.Module) -> int:
        """The number of a module's path, which begins with the class of the outermost one."""
        root = self._roots[0]
        scopes = self._scopes.get(root)
        if scopes is None:
            name = type(root).__name__
            scopes = self._scopes[root] = weakref.WeakKeyDictionary()
            for path, inner in root.named_modules():
                scopes[inner] = self._ledger.scope_number(f"{name}.{path}" if path else name)
            self._claim(root)
        number = scopes.get(module)
        if number is None:  # made since, or held by no other module
            number = scopes[module] = self._ledger.scope_number(type(module).__name__)
        return number

    def _before_module(self, module: nn.Module, arguments: Any) -> None:
        if not self._roots:
            self._ledger.begin_phase("forward")
        self._roots.append(module)
        scope = _C.exchange_memory_scope(self._scope(module))
        self._entered.append((scope, _C.exchange_memory_activity(_FORWARD)))

    def _after_module(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if not self._entered:
            return  # entered before tracking began
        self._roots.pop()
        scope, activity = self._entered.pop()
        _C.exchange_memory_scope(scope)
        _C.exchange_memory_activity(activity)

    def _claim(self, module: nn.Module) -> None:
        for inner, scope in self._scopes[module].items():
            for parameter in inner.parameters(recurse=False):
                self._scope_of[id(parameter)] = scope
                self._claim_parameter(parameter)
            self._claim_all(inner.buffers(recurse=False), "buffers", scope)

    def _claim_parameter(self, parameter: torch.Tensor) -> None:
        scope = self._scope_of.get(id(parameter), 0)
        self._claim_all([parameter], "parameters", scope)
        if parameter.grad is not None:
            self._claim_all([parameter.grad], "gradients", scope)

    def _claim_all(self, tensors: Iterable[torch.Tensor], owner: str, scope: int = 0) -> None:
        for tensor in tensors:
            if _C.is_fake(tensor):
                self._ledger.claim(_C.storage_key(tensor), owner, scope)

    def _before_step(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._claim_parameter(parameter)
        self._ledger.begin_phase("step")
        _C.exchange_memory_activity(_OPTIMIZER)

    def _after_step(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        for parameter, state in optimizer.state.items():
            tensors = (value for value in state.values() if torch.is_tensor(value))
            self._claim_all(tensors, "optimizer state", self._scope_of.get(id(parameter), 0))
        _C.exchange_memory_activity(_OUTSIDE)
        self._ledger.begin_phase("")

    def phase(self, name: str) -> None:
        """Names what follows, in the timeline and the report."""
        self._ledger.begin_phase(name)

    # ---- Answers

    def _device(self, device: str | torch.device | None) -> str:
        if device is not None:
            return str(torch.device(device))
        return max(self.devices, key=lambda name: self._ledger.peak(name)[1], default="cuda:0")

    @property
    def devices(self) -> list[str]:
        """The devices that have had memory."""
        return self._ledger.devices()

    @property
    def peak(self) -> int:
        """The most bytes that were allocated at once, on the device that had most."""
        return self._ledger.peak(self._device(None))[1]

    @property
    def pieces(self) -> list[Piece]:
        """Every block there has been, in the order in which they were allocated."""
        scopes, phases = self._ledger.scopes(), self._ledger.phases()
        lines = [("", 0)] if self._lines is None else self._lines.lines()
        return [
            Piece(device, nbytes, requested, born, died, owner, op, scopes[scope], phases[phase], address, *lines[line])
            for (
                device,
                nbytes,
                requested,
                born,
                died,
                owner,
                op,
                scope,
                phase,
                _,
                address,
                line,
            ) in self._ledger.records()
        ]

    def at(self, event: int, device: str | torch.device | None = None) -> Moment:
        """What lived on `device` after an event."""
        name = self._device(device)
        alive = [
            piece
            for piece in self.pieces
            if piece.device == name and piece.born <= event and (piece.died == -1 or piece.died > event)
        ]
        return Moment(name, event, sum(piece.nbytes for piece in alive), alive)

    def at_peak(self, device: str | torch.device | None = None) -> Moment:
        """What lived when most was allocated."""
        name = self._device(device)
        return self.at(self._ledger.peak(name)[0], name)

    @property
    def timeline(self) -> list[Point]:
        """Bytes by owner after every event, on the device that had most."""
        return self.timeline_of()

    def timeline_of(self, device: str | torch.device | None = None, points: int = 0) -> list[Point]:
        """The same of one device; thinned out to about `points`, keeping peaks, if that is not 0."""
        phases = self._ledger.phases()
        found = self._ledger.timeline(self._device(device), points)
        return [Point(event, phases[phase], owners) for event, phase, owners in found]

    def by_module(self) -> dict[str, int]:
        """Bytes at the peak by the path of the module that made them."""
        return self.at_peak().by_module()

    @property
    def model(self) -> _C.MemoryModel:
        """The model of memory that is tracked."""
        if self._model is None:
            raise RuntimeError("memory.track: the tracker has not been entered")
        return self._model

    def report(self) -> Report:
        """Figures, tables and pictures: prints as a table, renders as HTML in notebooks."""
        moments = {name: self.at_peak(name) for name in self.devices}
        timelines = {name: self.timeline_of(name, _POINTS) for name in self.devices}
        return Report.of(moments, timelines, self.model)
