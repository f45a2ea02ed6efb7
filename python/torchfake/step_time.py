"""How long a step takes: a roofline estimate over the operators that a program calls.

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

The time of an operator is the longest of those for its arithmetic, its memory traffic, its communication and its kernel
launches at the card's published speeds. A recording of a card (`tools/record_step_time.py`) gives the fraction of these
speeds that its kernels reach; without one, the estimate is a lower bound and is labelled as such.
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

#: The schema version of `Estimate.json` (docs/schemas/step-time.schema.json); incremented when its meaning changes.
SCHEMA = 1

#: The values of `Estimate.basis`.
FITTED, LOWER_BOUND = "fitted", "lower bound"

_PHASES = ("outside", "forward", "backward", "step")
_RECORDINGS = Path(__file__).parent / "recordings"
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
    """The fraction of the roofline that the kernels of a card reach, by family and size.

    Attributes:
        card: Its name.
        points: By family or "family/dtype": pairs of seconds at the roofline, ascending, and the fraction reached.
        error: The median relative error over the recorded workloads; None if there were none.
        source: What was recorded and with which versions.
    """

    card: str
    points: dict[str, list[tuple[float, float]]]
    error: float | None
    source: str

    def seconds(self, family: str, dtype: str, bound: float) -> float:
        """The estimated time of a call that takes `bound` seconds at the roofline."""
        points = self.points.get(f"{family}/{dtype}") or self.points.get(family)
        if not points or bound <= 0:
            return bound
        at = bisect_left([size for size, _ in points], bound)
        if at == 0:
            return max(points[0][0] / points[0][1], bound)  # smaller calls take as long as the smallest recorded one
        if at == len(points):
            return bound / points[-1][1]
        (low, first), (high, second) = points[at - 1], points[at]
        share = math.log(bound / low) / math.log(high / low)
        return bound / (first + (second - first) * share)


def load_curves(path: Path) -> Curves:
    """Reads a file written by `tools/record_step_time.py`.

    Raises:
        ValueError: The file has another format.
    """
    try:
        data = json.loads(path.read_text())
        points = {
            name: sorted((float(size), float(part)) for size, part in pairs) for name, pairs in data["curves"].items()
        }
        sizes = [(size, part) for pairs in points.values() for size, part in pairs]
        if not all(size > 0 and part > 0 for size, part in sizes):
            raise ValueError("sizes and fractions must be above 0")
        errors = sorted(abs(row["estimated"] / row["measured"] - 1) for row in data["workloads"])
        error = errors[len(errors) // 2] if errors else None
        return Curves(str(data["card"]), points, error, str(data["source"]))
    except (OSError, KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as problem:
        raise ValueError(f"{path}: not a recording of step times: {problem}") from None


@functools.cache
def _recorded_curves(card: str) -> Curves | None:
    for path in sorted(_RECORDINGS.glob("step_time_*.json")):
        curves = load_curves(path)
        if curves.card == card:
            return curves
    return None


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a row on a card: the seconds of all its calls, and what limits them."""

    row: Row
    seconds: float
    limit: str  # "products", "memory", "link" or "launches"


def _limits(row: Row, speed: Speed, cards_of_machine: int) -> dict[str, float]:
    """The seconds of one call by limit. Kernel launches only count if nothing else takes as long."""
    link = 0.0
    if row.family == "collective":
        link = row.traffic / (speed.link if row.group_size <= cards_of_machine else speed.network)
    elif row.family == "transfer":
        link = row.traffic / speed.host
    products = row.least_flops / speed.products(row.dtype, row.may_use_tf32)
    return {"products": products, "memory": row.nbytes / speed.memory, "link": link}


def bound_seconds(row: Row, card: str) -> float:
    """The roofline's time of one call on a card, without kernel launches. `Curves` are indexed by it."""
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
    """The estimated time on one kind of card.

    Attributes:
        card: Its name.
        basis: "fitted" to a recording of the card, or "lower bound".
        error: The median relative error over the recorded workloads; None for a lower bound.
        costs: The cost of each row.
        uncounted: The number of calls whose work is not known: those with symbolic sizes or other layouts than strided.
        steps: The number of optimizer steps; the maximum if there are several optimizers.
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
    def seconds(self) -> float:
        """The longer of computation and communication, assuming that they overlap completely."""
        return max(self.computing, self.communicating)

    def _by(self, name_of: Callable[[Cost], str]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            found[name_of(cost)] += cost.seconds
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
        """Seconds by what limits them: "products", "memory", "link" or "launches"."""
        return self._by(lambda cost: cost.limit)

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
    if data["basis"] == LOWER_BOUND:
        basis = "a lower bound from the roofline, not fitted to a recording of the card"
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
    """Counts the work of a mode while entered; its results remain valid afterwards. See `measure`."""

    def __init__(self) -> None:
        self._meter = _C.WorkMeter()
        self._exits = contextlib.ExitStack()
        self._steps: dict[int, int] = defaultdict(int)
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()

    def _count_step(self, optimizer: Optimizer) -> None:
        self._steps[id(optimizer)] += 1

    @property
    def rows(self) -> list[Row]:
        """The counted work, including that on the host, ordered by first call."""
        scopes = _C.memory_scopes()
        return [
            Row(op, scopes[scope], _PHASES[activity], family, device, dtype, tf32, *figures)
            for op, scope, activity, family, device, dtype, tf32, *figures in self._meter.rows()
        ]

    @property
    def flops(self) -> int:
        """Operations in products, convolutions and attention, including those on the host."""
        return sum(row.flops * row.calls for row in self.rows)

    def estimate(self, card: str | Card | None = None, *, curves: Curves | None = None) -> Estimate:
        """The estimated time of the work counted on claimed cards.

        Args:
            card: The kind of card (`"L40S"`); by default that of the mode.
            curves: A recording of that card; by default the one included in the package, if any.

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
        """Estimates for several kinds of cards."""
        return {card: self.estimate(card) for card in cards}


def _is_of_host(row: Row) -> bool:
    return row.device.partition(":")[0] in ("cpu", "meta")


def measure() -> Measurement:
    """Counts the work of the active mode, or of a `fake_mode()` that it enters itself.

    Operators are slower in its scope, because each of them is inspected.
    """
    return Measurement()
