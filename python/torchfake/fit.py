"""The largest value of an option with which a program fits on a card, found in few runs: `torchfake fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchfake._cards import CARDS, Card, parse_size
from torchfake._measures import Measure, usual
from torchfake._search import Search
from torchfake._trials import Runner, Trial, TrialFailedError
from torchfake._varied import Varied

__all__ = ["Advice", "Finding", "Fit", "advise", "fit_card", "fit_cards"]

#: The schema version of `Fit.to_json`.
SCHEMA = 1

#: Called with a message about every run and its result.
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """The largest value for a card.

    Attributes:
        largest: None if no value fits.
        needed: The memory of a card that the largest value needs, in bytes.
        needs: The results of runs without a limit, by value: minimum and maximum bytes.
    """

    card: str
    total_memory: int
    largest: int | None
    needed: int | None
    needs: dict[int, tuple[int, int]]
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "card": self.card,
            "total_memory": self.total_memory,
            "largest": self.largest,
            "needed": self.needed,
            "error": self.error,
            "runs": [
                {"value": value, "needed": needed, "reserved": reserved}
                for value, (needed, reserved) in sorted(self.needs.items())
            ],
        }


@dataclass(frozen=True)
class Advice:
    """The effect of a measure: the largest value with it, or the reason why it cannot be applied."""

    measure: str
    note: str
    largest: int | None
    not_applicable: str | None = None
    needs: dict[int, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        runs = [{"value": v, "needed": least, "reserved": most} for v, (least, most) in sorted(self.needs.items())]
        return {
            "measure": self.measure,
            "note": self.note,
            "largest": self.largest,
            "not_applicable": self.not_applicable,
            "runs": runs,
        }


@dataclass
class Fit:
    """The result of `torchfake fit`."""

    program: str
    varied: Varied
    findings: list[Finding]
    advice: list[Advice] = field(default_factory=list)
    runs: int = 0

    def to_json(self) -> dict[str, Any]:
        """docs/schemas/fit.schema.json describes it."""
        return {
            "schema": SCHEMA,
            "program": self.program,
            "varied": self.varied.name,
            "first": self.varied.values[0],
            "last": self.varied.values[-1],
            "runs": self.runs,
            "cards": [finding.to_json() for finding in self.findings],
            "advice": [advice.to_json() for advice in self.advice],
        }


class _Counted:
    """Runs trials and reports on them."""

    def __init__(self, runner: Runner, varied: Varied, progress: Progress) -> None:
        self.runner, self.varied, self.progress = runner, varied, progress
        self.runs = 0

    def run(self, card: str, value: int, *, unlimited: bool = True, make: Callable[[], Measure] | None = None) -> Trial:
        measure = None if make is None else make()
        parts = 1 if measure is None else measure.micro_batches
        self.runs += 1
        trial = self.runner.run(card, self.varied, max(value // parts, 1), unlimited=unlimited, measure=measure)
        what = f"{card}: {self.varied.describe(value)}" + (f", {measure.name}" if measure is not None else "")
        if trial.not_applicable is not None:
            self.progress(f"{what}: not applicable, {trial.not_applicable}")
        elif unlimited:
            self.progress(f"{what}: needs {trial.allocated / 2**30:.2f} GiB ({trial.seconds:.1f} s)")
        else:
            self.progress(f"{what}: {'does not fit' if trial.refusals else 'fits'} ({trial.seconds:.1f} s)")
        return trial


def _find(
    runs: _Counted,
    card: str,
    limit: int,
    known: dict[int, tuple[int, int]],
    prior: dict[int, tuple[int, int]],
    make: Callable[[], Measure] | None = None,
    measured_on: str | None = None,
    values: Sequence[int] | None = None,
) -> tuple[int | None, int | None]:
    """The largest value that fits, and the bytes of a card that it needs."""
    needed: dict[int, int] = {}

    def measure(value: int) -> tuple[int, int]:
        trial = runs.run(measured_on or card, value, make=make)
        if trial.not_applicable is not None:
            raise _NotApplicable(trial.not_applicable)
        needed[value] = trial.allocated
        return trial.allocated, trial.reserved

    def confirm(value: int) -> bool:
        trial = runs.run(card, value, unlimited=False, make=make)
        needed[value] = trial.allocated
        return trial.refusals == 0

    needed.update({value: least for value, (least, _) in known.items()})
    largest = Search(values or runs.varied.values, limit, measure, confirm, known, prior).largest()
    return largest, None if largest is None else needed[largest]


class _NotApplicable(Exception):
    pass


def _limit_of(runner: Runner, card: Card) -> int:
    return card.total_memory if runner.gpu_memory is None else parse_size(runner.gpu_memory)


def fit_card(runner: Runner, varied: Varied, card: str, progress: Progress = lambda line: None) -> Fit:
    """The largest value for one card.

    Raises:
        TrialFailedError: The program failed for a reason other than memory.
    """
    runs = _Counted(runner, varied, progress)
    limit = _limit_of(runner, CARDS[card])
    known: dict[int, tuple[int, int]] = {}
    largest, needed = _find(runs, card, limit, known, {})
    return Fit(runner.program.name, varied, [Finding(card, limit, largest, needed, known)], runs=runs.runs)


def fit_cards(runner: Runner, varied: Varied, progress: Progress = lambda line: None) -> Fit:
    """The largest value for every known card. Runs are shared by all cards of a compute capability."""
    runs = _Counted(runner, varied, progress)
    by_kind: dict[tuple[int, int], list[str]] = {}
    for name, card in CARDS.items():
        by_kind.setdefault(card.capability, []).append(name)
    found: dict[str, Finding] = {}
    prior: dict[int, tuple[int, int]] = {}
    for names in by_kind.values():
        known: dict[int, tuple[int, int]] = {}
        for name in names:
            limit, error, largest, needed = CARDS[name].total_memory, None, None, None
            try:
                largest, needed = _find(runs, name, limit, known, prior, measured_on=names[0])
            except TrialFailedError as failure:
                error = str(failure)
            found[name] = Finding(name, limit, largest, needed, dict(known), error)
        prior |= known
    if all(finding.error for finding in found.values()):
        raise TrialFailedError(next(iter(found.values())).error)
    return Fit(runner.program.name, varied, [found[name] for name in CARDS], runs=runs.runs)


def advise(runner: Runner, fit: Fit, progress: Progress = lambda line: None) -> None:
    """Tries the usual measures on the only card of `fit`, and adds the results to it."""
    [finding] = fit.findings
    runs = _Counted(runner, fit.varied, progress)
    is_batch = "batch" in fit.varied.name.lower()
    for make in usual(is_batch):
        measure = make()
        known: dict[int, tuple[int, int]] = {}
        largest, reason = None, None
        # Only values that can be divided into the parts.
        values = [value for value in fit.varied.values if value % measure.micro_batches == 0]
        try:
            if values:
                largest, _ = _find(runs, finding.card, finding.total_memory, known, finding.needs, make, values=values)
            else:
                reason = f"no value can be split in {measure.micro_batches}"
        except _NotApplicable as why:
            reason = str(why)
        except TrialFailedError as failure:
            reason = str(failure).splitlines()[0]
        fit.advice.append(Advice(measure.name, measure.note, largest, reason, known))
    if not is_batch:
        unnamed = f"{fit.varied.name} is not a batch size by its name"
        fit.advice.append(Advice("accumulation", "the batch in parts", None, unnamed))
    fit.runs += runs.runs
