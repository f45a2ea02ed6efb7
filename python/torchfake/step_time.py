"""How long a step takes at least: a roofline over the operators that a program calls.

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
'603 us on NVIDIA H200, lower bound'

Each operator takes as long as the slowest of its products, the memory that it moves, the traffic over its link and its
kernels, at the card's published speed. A recording of a card (`tools/record_step_time.py`) says which part of that its
kernels reach; without one the time is a lower bound, and says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from torch.optim.optimizer import Optimizer

from torchfake import _C
from torchfake._card_speeds import Speed, speed_of
from torchfake._cards import DEFAULT, Card, Cards, find_card
from torchfake._module_scopes import ModuleScopes
from torchfake._step_time_page import fragment_of, shown_seconds
from torchfake.modes import current_mode, fake_mode

__all__ = ["Curves", "Estimate", "Measurement", "Row", "bound_seconds", "load_curves", "measure"]

#: The version of `Estimate.json` (docs/schemas/step-time.schema.json); changes with its meaning.
SCHEMA = 1

#: What is fitted to a recording of the card, and what is not.
FITTED, LOWER_BOUND = "fitted", "lower bound"

_PHASES = ("outside", "forward", "backward", "step")
_RECORDINGS = Path(__file__).parent / "recordings"
_SHOWN = 12  # rows of a table
_USUAL_MACHINE = 8  # cards


class Row(NamedTuple):
    """Equal calls of one operator in one module and phase; figures are those of one call.

    Attributes:
        op: The operator, without its overload.
        module: The path of the module it was called for; "" outside of modules.
        phase: "forward", "backward", "step" or "outside".
        family: What its speed goes by: "matmul", "elementwise", ...
        dtype: That of its first floating-point tensor, as C++ names it.
        flops: Multiplications and additions of products, as PyTorch's `FlopCounterMode` counts them.
        least_flops: Those that a kernel cannot leave out: half of them in causal attention.
        nbytes: Bytes read and written at least.
        traffic: Bytes over the link, of collectives and copies between host and card.
        group_size: The ranks of a collective.
        launches: Kernels.
        calls: How often.
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


@dataclasses.dataclass(frozen=True)
class Curves:
    """Which part of the roofline the kernels of a card reach, by family and size.

    Attributes:
        card: Its name.
        points: By family, or "family/dtype": pairs of seconds at the roofline and the part that was reached, ascending.
        error: The median of the errors over the recorded workloads, as a part; None if there were none.
        source: What was recorded, and with what.
    """

    card: str
    points: dict[str, list[tuple[float, float]]]
    error: float | None
    source: str

    def seconds(self, family: str, dtype: str, bound: float) -> float:
        """The time of a call that takes `bound` seconds at the roofline."""
        points = self.points.get(f"{family}/{dtype}") or self.points.get(family)
        if not points or bound <= 0:
            return bound
        at = bisect_left([size for size, _ in points], bound)
        if at == 0:
            return max(points[0][0] / points[0][1], bound)  # smaller calls take no less than the smallest recorded
        if at == len(points):
            return bound / points[-1][1]
        (low, first), (high, second) = points[at - 1], points[at]
        share = math.log(bound / low) / math.log(high / low)
        return bound / (first + (second - first) * share)


def load_curves(path: Path) -> Curves:
    """Those that `tools/record_step_time.py` wrote.

    Raises:
        ValueError: The file holds something else.
    """
    try:
        data = json.loads(path.read_text())
        points = {
            name: sorted((float(size), float(part)) for size, part in pairs) for name, pairs in data["curves"].items()
        }
        sizes = [(size, part) for pairs in points.values() for size, part in pairs]
        if not all(size > 0 and part > 0 for size, part in sizes):
            raise ValueError("sizes and parts are above 0")
        errors = sorted(abs(row["estimated"] / row["measured"] - 1) for row in data["workloads"])
        error = errors[len(errors) // 2] if errors else None
        return Curves(str(data["card"]), points, error, str(data["source"]))
    except (OSError, KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as problem:
        raise ValueError(f"{path}: no recording of step times: {problem}") from None


@functools.cache
def _recorded_curves(card: str) -> Curves | None:
    for path in sorted(_RECORDINGS.glob("step_time_*.json")):
        curves = load_curves(path)
        if curves.card == card:
            return curves
    return None


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a row takes on a card: seconds of all its calls, and what they wait for."""

    row: Row
    seconds: float
    limit: str  # "products", "memory", "link" or "launches"


def _limits(row: Row, speed: Speed, cards_of_machine: int) -> dict[str, float]:
    """The seconds of one call, by what it may wait for; of its kernels' starts only if nothing else takes as long."""
    link = 0.0
    if row.family == "collective":
        link = row.traffic / (speed.link if row.group_size <= cards_of_machine else speed.network)
    elif row.family == "transfer":
        link = row.traffic / speed.host
    products = row.least_flops / speed.products(row.dtype, row.may_use_tf32)
    return {"products": products, "memory": row.nbytes / speed.memory, "link": link}


def bound_seconds(row: Row, card: str) -> float:
    """The roofline's time of one call on a card, however many kernels it starts: what `Curves` go by."""
    return max(_limits(row, speed_of(find_card(card)), _USUAL_MACHINE).values())


def _cost(row: Row, speed: Speed, curves: Curves | None, cards_of_machine: int) -> Cost:
    limits = _limits(row, speed, cards_of_machine)
    bound = max(limits.values())
    launches = row.launches * speed.launch
    limit = max(limits, key=lambda name: limits[name]) if bound >= launches else "launches"
    reached = bound if curves is None else curves.seconds(row.family, row.dtype, bound)
    return Cost(row, max(reached, launches) * row.calls, limit)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The time on one kind of card.

    Attributes:
        card: Its name.
        basis: "fitted" to a recording of the card, or "lower bound".
        error: The median error of the recorded workloads, as a part; None for a lower bound.
        costs: By row.
        uncounted: Calls whose work is not known: sizes that are symbols, layouts other than strided.
        steps: How often the optimizer stepped that did so most.
    """

    card: str
    basis: str
    error: float | None
    costs: list[Cost]
    uncounted: int
    steps: int

    def _sum(self, of: Callable[[Row], int]) -> int:
        return sum(of(cost.row) * cost.row.calls for cost in self.costs)

    @property
    def flops(self) -> int:
        """Multiplications and additions of products."""
        return self._sum(lambda row: row.flops)

    @property
    def nbytes(self) -> int:
        """Bytes of the card's memory that are read and written."""
        return self._sum(lambda row: row.nbytes)

    @property
    def traffic(self) -> int:
        """Bytes over the link to other cards."""
        return self._sum(lambda row: row.traffic if row.family == "collective" else 0)

    @property
    def launches(self) -> int:
        """Kernels."""
        return self._sum(lambda row: row.launches)

    def _seconds(self, are_collectives: bool) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            if (cost.row.family == "collective") == are_collectives:
                found[cost.row.device] += cost.seconds
        return found

    @property
    def computing(self) -> float:
        """Seconds that the busiest card computes and moves memory."""
        return max(self._seconds(are_collectives=False).values(), default=0.0)

    @property
    def communicating(self) -> float:
        """Seconds that the busiest card exchanges data with others."""
        return max(self._seconds(are_collectives=True).values(), default=0.0)

    @property
    def seconds(self) -> float:
        """The longer of both: as if they overlapped wholly."""
        return max(self.computing, self.communicating)

    def _by(self, name_of: Callable[[Cost], str]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            found[name_of(cost)] += cost.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def by_module(self) -> dict[str, float]:
        """Seconds by the path of the module that the work is for; "" for what is outside of modules."""
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
        """Seconds by what they wait for: "products", "memory", "link" or "launches"."""
        return self._by(lambda cost: cost.limit)

    @property
    def data(self) -> dict[str, Any]:
        """Everything, for programs: docs/schemas/step-time.schema.json."""
        return {
            "schema": SCHEMA,
            "card": self.card,
            "basis": self.basis,
            "error": self.error,
            "seconds": self.seconds,
            "computing": self.computing,
            "communicating": self.communicating,
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
    """What an estimate prints, of its data."""
    if data["basis"] == LOWER_BOUND:
        basis = "a lower bound: the roofline's, not fitted to a recording of the card"
        least = "at least "
    else:
        basis = "fitted to a recording of the card"
        basis += "" if data["error"] is None else f", {data['error']:.0%} off in the median of its workloads"
        least = "about "
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
    """Counts the work of a mode while it is entered; its answers stay valid afterwards. See `measure`."""

    def __init__(self) -> None:
        self._meter = _C.WorkMeter()
        self._exits = contextlib.ExitStack()
        self._steps: dict[int, int] = defaultdict(int)
        self._cards: Cards | None = None
        self._was_entered = False

    def __enter__(self) -> Self:
        if self._was_entered:
            raise RuntimeError("step_time.measure: a measurement is entered once; make another")
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()

    def _count_step(self, optimizer: Optimizer) -> None:
        self._steps[id(optimizer)] += 1

    @property
    def rows(self) -> list[Row]:
        """What was counted, on the host too, in the order of first calls."""
        scopes = _C.memory_scopes()
        return [
            Row(op, scopes[scope], _PHASES[activity], family, device, dtype, tf32, *figures)
            for op, scope, activity, family, device, dtype, tf32, *figures in self._meter.rows()
        ]

    @property
    def flops(self) -> int:
        """Multiplications and additions of products, on the host too."""
        return sum(row.flops * row.calls for row in self.rows)

    def estimate(self, card: str | Card | None = None, *, curves: Curves | None = None) -> Estimate:
        """The time of what was counted on claimed cards.

        Args:
            card: Their kind (`"L40S"`); by default that of the mode.
            curves: A recording of it; by default the one that comes with the package, if there is one.

        Raises:
            ValueError: There is no such card.
        """
        cards = self._cards
        if card is None:
            card = cards[0] if cards is not None and len(cards) > 0 else DEFAULT
        known = find_card(card) if isinstance(card, str) else card
        speed = speed_of(known)
        curves = curves or _recorded_curves(known.name)
        count = len(cards) if cards is not None and cards.are_limited else _USUAL_MACHINE
        costs = [_cost(row, speed, curves, count) for row in self.rows if not _is_of_host(row)]
        return Estimate(
            known.name,
            LOWER_BOUND if curves is None else FITTED,
            None if curves is None else curves.error,
            costs,
            self._meter.uncounted,
            max(self._steps.values(), default=0),
        )

    def estimates(self, cards: Iterable[str]) -> dict[str, Estimate]:
        """The same for several kinds of cards."""
        return {card: self.estimate(card) for card in cards}


def _is_of_host(row: Row) -> bool:
    return row.device.partition(":")[0] in ("cpu", "meta")


def measure() -> Measurement:
    """Counts the work of the mode that is entered, or of a `fake_mode()` that it enters itself.

    Calls are slower meanwhile, because each is looked at.
    """
    return Measurement()
