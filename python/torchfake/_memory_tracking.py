"""Memory by owner: hooks of modules and optimizers report to the engine's ledger what is running."""

from __future__ import annotations

import contextlib
import dataclasses
import sysconfig
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import Optimizer

from torchfake import _C
from torchfake._memory_report import Report
from torchfake._module_scopes import ModuleScopes
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
    "communication",
)

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
    file: str  # the file of the program line that allocated it; "" if lines are not recorded
    line: int
    #: Files and lines of the program that led to the allocation, from the innermost; empty if stacks are not recorded.
    stack: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Moment:
    """The memory that is alive after an event."""

    device: str
    event: int
    total: int
    pieces: list[Piece]

    @property
    def owners(self) -> dict[str, int]:
        """Bytes by owner, for all owners in `OWNERS`; they add up to `total`."""
        found = dict.fromkeys(OWNERS, 0)
        for piece in self.pieces:
            found[piece.owner] += piece.nbytes
        return found

    def by_module(self) -> dict[str, int]:
        """Bytes by path of the module that allocated them; "" for allocations outside of modules."""
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
    """The memory model of the active mode, or None."""
    state = _C.current_mode()
    return None if state is None else _C.memory_model(state)


class Tracker(contextlib.AbstractContextManager["Tracker"]):
    """Records the memory of a mode while entered; its results remain valid afterwards. See `memory.track`."""

    def __init__(self, card: dict[str, Any], lines: bool = False, stacks: bool = False) -> None:
        self._card = card
        self._ledger = _C.MemoryLedger()
        self._has_stacks = stacks
        self._lines = _C.ProgramLines([_OURS, _TORCH, _LIBRARY, "<"], stacks) if lines or stacks else None
        if self._lines is not None:
            self._ledger.set_line_source(self._lines)
        self._model: _C.MemoryModel | None = None
        self._exits = contextlib.ExitStack()
        self.scopes = ModuleScopes(
            on_root=self._claim,
            on_forward=lambda module: self._ledger.begin_phase("forward"),
            before_step=self._before_step,
            after_step=self._after_step,
        )
        #: By the identity of a parameter, the number of the path of the module that holds it.
        self._scope_of: dict[int, int] = {}

    # ---- Entering and leaving

    def __enter__(self) -> Self:
        from torchfake import memory

        if self._model is not None:
            raise RuntimeError("memory.track: a tracker can be entered only once; create another one")
        if _C.current_mode() is None:
            self._exits.enter_context(fake_mode())
        self._model = model_of_mode()
        if self._model is None:
            self._model = memory.attach(**({"total_memory": 80 << 30} | self._card))
            self._exits.callback(memory.detach, _C.current_mode())
        elif self._card:
            raise ValueError(
                "memory.track: the mode already models a card's memory, so the options of a card do not apply"
            )
        self._model.ledger = self._ledger
        self._exits.enter_context(self.scopes)
        self._exits.callback(register_module_parameter_registration_hook(self._claim_registered).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for module in self.scopes.roots():
            self._claim(module)
        self._claim_modules(self.scopes.uncalled())
        assert self._model is not None
        self._model.ledger = None
        self._exits.close()

    # ---- What is running

    def _claim(self, root: nn.Module) -> None:
        self._claim_modules(self.scopes.inside(root))

    def _claim_modules(self, modules: list[tuple[nn.Module, int]]) -> None:
        for inner, scope in modules:
            parameters = list(inner.parameters(recurse=False))
            self._scope_of.update((id(parameter), scope) for parameter in parameters)
            self._claim_parameters(parameters)
            self._ledger.claim_tensors(list(inner.buffers(recurse=False)), "buffers", scope)

    def _claim_registered(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:  # of its module when that is called; it may die before, as those that are sharded do
            self._claim_parameters([parameter])

    def _claim_parameters(self, parameters: list[torch.Tensor] | list[nn.Parameter]) -> None:
        scopes = [self._scope_of.get(id(parameter), 0) for parameter in parameters]
        self._ledger.claim_parameters(list(parameters), scopes)

    def _before_step(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            self._claim_parameters(group["params"])
        self._ledger.begin_phase("step")

    def _after_step(self, optimizer: Optimizer) -> None:
        state = optimizer.state
        self._ledger.claim_states(state if isinstance(state, dict) else dict(state), self._scope_of)
        self._ledger.begin_phase("")

    def phase(self, name: str) -> None:
        """Starts a named phase, shown in the timeline and the report."""
        self._ledger.begin_phase(name)

    # ---- Results

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
        """The peak of allocated bytes, on the device with the highest peak."""
        return self._ledger.peak(self._device(None))[1]

    @property
    def pieces(self) -> list[Piece]:
        """Every block there has been, in the order in which they were allocated."""
        return self._pieces(self._ledger.records())

    def _pieces(self, records: list[tuple[Any, ...]]) -> list[Piece]:
        scopes, phases = _C.memory_scopes(), self._ledger.phases()
        lines = [("", 0, 0)] if self._lines is None else self._lines.lines()
        stacks: list[tuple[tuple[str, int], ...]] = []
        for file, line, caller in lines if self._has_stacks else ():
            stacks.append(((file, line), *stacks[caller]) if file else ())
        return [
            Piece(
                *(device, nbytes, requested, born, died, owner, op, scopes[scope], phases[phase], address),
                file=lines[line][0],
                line=lines[line][1],
                stack=stacks[line] if stacks else (),
            )
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
            ) in records
        ]

    def at(self, event: int, device: str | torch.device | None = None) -> Moment:
        """The memory alive on `device` after an event."""
        name = self._device(device)
        alive = self._pieces(self._ledger.records_at(name, event))
        return Moment(name, event, sum(piece.nbytes for piece in alive), alive)

    def at_peak(self, device: str | torch.device | None = None) -> Moment:
        """The memory alive at the peak."""
        name = self._device(device)
        return self.at(self._ledger.peak(name)[0], name)

    @property
    def timeline(self) -> list[Point]:
        """Bytes by owner after every event, on the device with the highest peak."""
        return self.timeline_of()

    def timeline_of(self, device: str | torch.device | None = None, points: int = 0) -> list[Point]:
        """The same for one device, reduced to about `points` with peaks kept; 0 keeps all."""
        phases = self._ledger.phases()
        found = self._ledger.timeline(self._device(device), points)
        return [Point(event, phases[phase], owners) for event, phase, owners in found]

    def by_module(self) -> dict[str, int]:
        """Bytes at the peak by path of the module that allocated them."""
        return self.at_peak().by_module()

    @property
    def model(self) -> _C.MemoryModel:
        """The memory model that is tracked."""
        if self._model is None:
            raise RuntimeError("memory.track: the tracker has not been entered")
        return self._model

    def report(self) -> Report:
        """Figures, tables and charts: prints as a table, renders as HTML in notebooks."""
        moments = {name: self.at_peak(name) for name in self.devices}
        timelines = {name: self.timeline_of(name, _POINTS) for name in self.devices}
        return Report.of(moments, timelines, self.model)
