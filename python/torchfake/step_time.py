"""How long a step takes: an estimate over the operators that a program calls.

>>> import torch
>>> import torchfake
>>> from torchfake import step_time
>>> with torchfake.fake_mode(gpus="H200"), step_time.measure() as work:
...     model = torch.nn.Linear(4096, 4096, device="cuda", dtype=torch.bfloat16)
...     model(torch.zeros(8192, 4096, device="cuda", dtype=torch.bfloat16)).sum().backward()
>>> estimate = work.estimate()
>>> estimate.flops == 2 * 2 * 8192 * 4096 * 4096
True
>>> f"{estimate.seconds * 1e6:.0f} us on {estimate.card}, {estimate.basis}"
'1006 us on NVIDIA H200, fitted'
>>> f"at least {work.estimate(lower_bound=True).seconds * 1e6:.0f} us"
'at least 603 us'

The card and the host that launches its kernels are two clocks, and the slower one counts. Their times are fitted to a
recording of an H200 (`_step_time_model`); on other cards kernels take as much longer as the published speeds say. The
lower bound is the roofline: the longest of an operator's arithmetic, memory traffic, communication and launches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer

from torchfake import _C
from torchfake._card_speeds import Speed, speed_of
from torchfake._cards import DEFAULT, Card, Cards, find_card
from torchfake._module_scopes import ModuleScopes
from torchfake._step_time_model import MODULE, STEP, Recording, load_recording, recordings
from torchfake._step_time_page import basis_of, fragment_of, host_of, shown_seconds
from torchfake.modes import current_mode, fake_mode

__all__ = ["Estimate", "Measurement", "Recording", "Row", "load_recording", "measure"]

#: The schema version of `Estimate.json` (docs/schemas/step-time.schema.json); incremented when its meaning changes.
SCHEMA = 2

#: The values of `Estimate.basis`.
FITTED, ANALOGY, LOWER_BOUND = "fitted", "by analogy", "lower bound"

_PHASES = ("outside", "forward", "backward", "step")
_SHOWN = 12  # rows of a table
_USUAL_MACHINE = 8  # cards


class Row(NamedTuple):
    """Equal calls of one operator in one module and phase. All figures are per call.

    Attributes:
        op: The operator's name without its overload.
        module: The path of the module that called it; "" outside of modules.
        phase: "forward", "backward", "step" or "outside".
        family: The kind of operator, which determines its speed: "matmul", "elementwise", ...
        dtype: The dtype of its first floating-point tensor, by its name in C++.
        flops: Operations in products, convolutions and attention, as counted by PyTorch's `FlopCounterMode`.
        least_flops: The operations that no kernel can skip: half of `flops` in causal attention.
        nbytes: The minimum number of bytes read and written.
        traffic: Bytes sent over a link by collectives and by copies between host and card.
        group_size: The number of ranks in a collective.
        launches: The number of kernels.
        calls: The number of calls.
        outputs: The elements of the results.
        tensors: The number of tensors among the arguments.
        records_gradient: Whether autograd records the call.
        is_aligned: Whether rows of matrices begin at multiples of 8 elements, and channels are such multiples.
    """

    op: str
    module: str
    phase: str
    family: str
    device: str
    dtype: str
    may_use_tf32: bool
    flops: int
    least_flops: int
    nbytes: int
    traffic: int
    group_size: int
    launches: int
    calls: int
    outputs: int = 0
    tensors: int = 0
    records_gradient: bool = False
    is_aligned: bool = True


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a row: the seconds of all its calls on the card, what limits them, and the seconds on the host."""

    row: Row
    seconds: float
    limit: str  # "products", "memory", "link" or "launches"
    host: float = 0.0


def _limits(row: Row, speed: Speed, cards_of_machine: int) -> dict[str, float]:
    """The seconds of one call by limit. Kernel launches only count if nothing else takes as long."""
    link = 0.0
    if row.family == "collective":
        link = row.traffic / (speed.link if row.group_size <= cards_of_machine else speed.network)
    elif row.family == "transfer":
        link = row.traffic / speed.host
    products = row.least_flops / speed.products(row.dtype, row.may_use_tf32)
    return {"products": products, "memory": row.nbytes / speed.memory, "link": link}


def _cost(row: Row, speed: Speed, recording: Recording | None, cards_of_machine: int) -> Cost:
    limits = _limits(row, speed, cards_of_machine)
    launches = row.launches * speed.launch
    bound = max(limits.values())
    limit = max(limits, key=lambda name: limits[name]) if bound >= launches else "launches"
    if _is_of_host(row) or not row.launches:
        bound, launches = 0.0, 0.0
    seconds = max(bound, launches)
    host = 0.0
    if recording is not None:
        host = recording.host_seconds(row)
        fitted = recording.kernel_seconds(row, speed) if seconds else None
        seconds = seconds if fitted is None else max(fitted, limits["link"])
    return Cost(row, seconds * row.calls, limit, host * row.calls)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The estimated time on one kind of card.

    Attributes:
        card: Its name.
        basis: "fitted" to a recording of the card, "by analogy" with the recorded card, or "lower bound".
        error: The median relative error over the recorded programs not used for fitting; None if unknown.
        costs: The cost of each row.
        uncounted: The number of calls whose work is not known: those with symbolic sizes or other layouts than strided.
        steps: The number of optimizer steps; the maximum if there are several optimizers.
        source: The recording, with the machine and the versions; "" for a lower bound.
    """

    card: str
    basis: str
    error: float | None
    costs: list[Cost]
    uncounted: int
    steps: int
    source: str = ""

    def _sum(self, of: Callable[[Row], int]) -> int:
        return sum(of(cost.row) * cost.row.calls for cost in self.costs)

    @property
    def flops(self) -> int:
        """Operations in products, convolutions and attention."""
        return self._sum(lambda row: row.flops)

    @property
    def nbytes(self) -> int:
        """Bytes read from and written to the card's memory."""
        return self._sum(lambda row: row.nbytes)

    @property
    def traffic(self) -> int:
        """Bytes sent to other cards."""
        return self._sum(lambda row: row.traffic if row.family == "collective" else 0)

    @property
    def launches(self) -> int:
        """The number of kernels."""
        return self._sum(lambda row: row.launches)

    def _seconds(self, are_collectives: bool) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            if (cost.row.family == "collective") == are_collectives:
                found[cost.row.device] += cost.seconds
        return found

    @property
    def computing(self) -> float:
        """The seconds that the busiest card spends on computation and memory traffic."""
        return max(self._seconds(are_collectives=False).values(), default=0.0)

    @property
    def communicating(self) -> float:
        """The seconds that the busiest card spends on communication."""
        return max(self._seconds(are_collectives=True).values(), default=0.0)

    @property
    def on_host(self) -> float:
        """The seconds that Python and PyTorch take on the host to launch everything; 0 in a lower bound."""
        return sum(cost.host for cost in self.costs)

    @property
    def seconds(self) -> float:
        """The longest of computation, communication and the host's part, assuming that they overlap completely."""
        return max(self.computing, self.communicating, self.on_host)

    @property
    def is_bound_by_host(self) -> bool:
        """Whether the card waits for the host."""
        return self.on_host > max(self.computing, self.communicating)

    def _by(self, name_of: Callable[[Cost], str]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            seconds = cost.host if self.is_bound_by_host else cost.seconds
            if seconds:
                found[name_of(cost)] += seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def by_module(self) -> dict[str, float]:
        """Seconds by path of the module; "" for work outside of modules."""
        return self._by(lambda cost: cost.row.module)

    def by_family(self) -> dict[str, float]:
        """Seconds by family of operators."""
        return self._by(lambda cost: cost.row.family)

    def by_operator(self) -> dict[str, float]:
        """Seconds by operator."""
        return self._by(lambda cost: cost.row.op)

    def by_phase(self) -> dict[str, float]:
        """Seconds by forward, backward and step."""
        return self._by(lambda cost: cost.row.phase)

    def by_limit(self) -> dict[str, float]:
        """Seconds by what limits them: "products", "memory", "link" or "launches", or "host"."""
        return self._by(lambda cost: "host" if self.is_bound_by_host else cost.limit)

    @property
    def data(self) -> dict[str, Any]:
        """Everything, as data. docs/schemas/step-time.schema.json describes it."""
        return {
            "schema": SCHEMA,
            "card": self.card,
            "basis": self.basis,
            "error": self.error,
            "seconds": self.seconds,
            "computing": self.computing,
            "communicating": self.communicating,
            "on_host": self.on_host,
            "source": self.source,
            "steps": self.steps,
            "flops": self.flops,
            "nbytes": self.nbytes,
            "traffic": self.traffic,
            "launches": self.launches,
            "uncounted": self.uncounted,
            "phases": self.by_phase(),
            "families": self.by_family(),
            "operators": self.by_operator(),
            "limits": self.by_limit(),
            "modules": self.by_module(),
        }

    def json(self, indent: int | None = None) -> str:
        """`data` as JSON."""
        return json.dumps(self.data, indent=indent)

    def __str__(self) -> str:
        return format_data(self.data)

    def _repr_html_(self) -> str:
        return fragment_of(self.data)


def format_data(data: dict[str, Any]) -> str:
    """The printed form of an estimate."""
    least = "at least " if data["basis"] == LOWER_BOUND else "about "
    basis = basis_of(data)
    lines = [f"time on {data['card']}: {least}{shown_seconds(data['seconds'])} ({basis})"]
    if data["steps"] > 1:
        lines.append(f"  {data['steps']} steps: {least}{shown_seconds(data['seconds'] / data['steps'])} each")
    moved = f"{data['nbytes'] / (1 << 30):.2f} GiB of memory moved"
    lines.append(f"  {data['flops']:.3g} FLOP, {moved}, {data['launches']:,} kernels")
    if data["communicating"]:
        traffic = f"{data['traffic'] / (1 << 30):.2f} GiB sent"
        lines.append(
            f"  {shown_seconds(data['communicating'])} of communication ({traffic}) beside "
            f"{shown_seconds(data['computing'])} of computation"
        )
    if data["on_host"]:
        lines.append(f"  {host_of(data)}")
    if data["uncounted"]:
        lines.append(f"  not counted: {data['uncounted']} calls, of symbolic sizes or other layouts")
    for title in ("phases", "limits", "families"):
        total = sum(data[title].values()) or 1.0
        shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in list(data[title].items())[:6])
        if shares:
            lines.append(f"  {title}: {shares}")
    for module, seconds in list(data["modules"].items())[:_SHOWN]:
        lines.append(f"  {shown_seconds(seconds):>10}  {module or '(outside of modules)'}")
    return "\n".join(lines)


class Measurement(contextlib.AbstractContextManager["Measurement"]):
    """Counts the work of a mode while entered; its results remain valid afterwards. See `measure`."""

    def __init__(self) -> None:
        self._meter = _C.WorkMeter()
        self._exits = contextlib.ExitStack()
        self._steps: dict[int, int] = defaultdict(int)
        self._parameters: dict[int, int] = defaultdict(
            int
        )  # calls of step() by the number of parameters with gradients
        self._modules = 0  # calls of modules
        self._cards: Cards | None = None
        self._was_entered = False

    def __enter__(self) -> Self:
        if self._was_entered:
            raise RuntimeError("step_time.measure: a measurement can be entered only once; create another one")
        self._was_entered = True
        if _C.current_mode() is None:
            self._exits.enter_context(fake_mode())
        state = _C.current_mode()
        assert state is not None
        mode = current_mode()
        self._cards = mode.cards if isinstance(mode, fake_mode) else None
        entered = _C.EnteredFakeMode(state, self._meter)
        self._exits.callback(entered.leave)
        self._exits.enter_context(ModuleScopes(after_step=self._count_step))
        self._exits.callback(register_module_forward_pre_hook(self._count_module).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()

    def _count_step(self, optimizer: Optimizer) -> None:
        self._steps[id(optimizer)] += 1
        given = sum(p.grad is not None for group in optimizer.param_groups for p in group["params"])
        self._parameters[given] += 1

    def _count_module(self, module: nn.Module, arguments: Any) -> None:
        self._modules += 1

    @property
    def rows(self) -> list[Row]:
        """The counted work, including that on the host, ordered by first call."""
        return [row for row in self.host_rows if row.launches]

    @property
    def host_rows(self) -> list[Row]:
        """`rows` and all else that takes time on the host: views, calls of modules, steps of optimizers."""
        scopes = _C.memory_scopes()
        found = [
            Row(op, scopes[scope], _PHASES[activity], family, device, dtype, tf32, *figures)
            for op, scope, activity, family, device, dtype, tf32, *figures in self._meter.rows()
        ]
        found += [_python_row(STEP, "step", calls, count) for count, calls in self._parameters.items()]
        return found + ([_python_row(MODULE, "forward", self._modules, 0)] if self._modules else [])

    @property
    def flops(self) -> int:
        """Operations in products, convolutions and attention, including those on the host."""
        return sum(row.flops * row.calls for row in self.rows)

    def estimate(
        self, card: str | Card | None = None, *, recording: Recording | None = None, lower_bound: bool = False
    ) -> Estimate:
        """The estimated time of the work counted on claimed cards.

        Args:
            card: The kind of card (`"L40S"`); by default that of the mode.
            recording: A recording to use; by default that of the card, or else of the only recorded card.
            lower_bound: Whether to use the roofline alone.

        Raises:
            ValueError: There is no such card.
        """
        cards = self._cards
        if card is None:
            card = cards[0] if cards is not None and cards.are_limited and len(cards) > 0 else DEFAULT
        known = find_card(card) if isinstance(card, str) else card
        speed = speed_of(known)
        if lower_bound:
            recording = None
        elif recording is None:
            recording = recordings().get(known.name) or next(iter(recordings().values()), None)
        count = len(cards) if cards is not None and cards.are_limited else _USUAL_MACHINE
        is_own = recording is not None and recording.card == known.name
        return Estimate(
            known.name,
            LOWER_BOUND if recording is None else FITTED if is_own else ANALOGY,
            recording.error if recording is not None and is_own else None,
            [_cost(row, speed, recording, count) for row in self.host_rows],
            self._meter.uncounted,
            max(self._steps.values(), default=0),
            "" if recording is None else recording.source,
        )

    def estimates(self, cards: Iterable[str]) -> dict[str, Estimate]:
        """Estimates for several kinds of cards."""
        return {card: self.estimate(card) for card in cards}


def _python_row(name: str, phase: str, calls: int, tensors: int) -> Row:
    return Row(name, "", phase, "python", "cpu", "", False, 0, 0, 0, 0, 0, 0, calls, 0, tensors)


def _is_of_host(row: Row) -> bool:
    return row.device.partition(":")[0] in ("cpu", "meta")


def measure() -> Measurement:
    """Counts the work of the active mode, or of a `fake_mode()` that it enters itself.

    Operators are slower in its scope, because each of them is inspected.
    """
    return Measurement()
