"""Makes calls in rounds and collects what is wrong: first random calls, then variations of accepted ones."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .calls import Call, all_overloads, out_positions, random_call, with_one_wrong, with_other_outs
from .known_deviations import explanation
from .observing import REAL, VARIANTS
from .servers import Answer, Limits, Server
from .verdicts import CRASH, Finding, findings

ROUND = 2000


@dataclass
class Report:
    calls: int = 0
    accepted: int = 0
    overloads: set[str] = field(default_factory=set)
    accepted_overloads: set[str] = field(default_factory=set)
    excused: int = 0  # the real operator ended its process
    found: list[Finding] = field(default_factory=list)
    explained: collections.Counter[str] = field(default_factory=collections.Counter)


class Campaign:
    """Two servers: one for the real operators, one for fakes."""

    def __init__(self, limits: Limits, variants: tuple[str, ...] = VARIANTS) -> None:
        self.real = Server(real=True, limits=limits)
        self.fake = Server(real=False, limits=limits)
        self.variants = variants
        self.report = Report()

    def close(self) -> None:
        self.real.close()
        self.fake.close()

    def judge(self, calls: list[Call]) -> list[Answer]:
        """Makes the calls, adds the findings to the report, and returns the results of the real operators."""
        reals, fakes = self._answers(calls)
        for call, real, fake in zip(calls, reals, fakes, strict=True):
            self._count(call, real)
            suspects = list(findings(call, real, fake))
            if suspects:
                self._confirm(call, suspects)
        return reals

    def _answers(self, calls: list[Call]) -> tuple[list[Answer], list[dict[str, Answer]]]:
        reals = self.real.submit([(call, REAL) for call in calls])
        fakes = self.fake.submit([(call, variant) for call in calls for variant in self.variants]).result()
        count = len(self.variants)
        rows = [fakes[i * count : (i + 1) * count] for i in range(len(calls))]
        return reals.result(), [dict(zip(self.variants, row, strict=True)) for row in rows]

    def _count(self, call: Call, real: Answer) -> None:
        report = self.report
        report.calls += 1
        report.overloads.add(call.overload)
        if not real.observations:
            report.excused += 1
        elif real.observations[0].rows is not None:
            report.accepted += 1
            report.accepted_overloads.add(call.overload)

    def _confirm(self, call: Call, suspects: list[Finding]) -> None:
        """Repeats the call in fresh processes, since memory corrupted by another call is not its finding."""
        (real,), (fake,) = self._answers([call])
        confirmed = list(findings(call, real, fake))
        kinds = {(finding.kind, finding.variant) for finding in confirmed}
        # A crash that requires the preceding calls still counts.
        confirmed += [x for x in suspects if x.kind == CRASH and (x.kind, x.variant) not in kinds]
        for finding in confirmed:
            reason = explanation(finding)
            if reason is None:
                self.report.found.append(finding)
            else:
                self.report.explained[reason] += 1


def run(
    campaign: Campaign, calls: int, seed: int, only: str | None, progress: Callable[[Report], None] = lambda _: None
) -> Report:
    """Makes this number of calls: random ones of every overload in turn, then variations of accepted ones."""
    rng = random.Random(seed)
    overloads = [x for x in all_overloads() if only is None or x == only or x.partition(".")[0] == only]
    if not overloads:
        raise ValueError(f"aten has no operator {only}")
    accepted: list[tuple[Call, Answer]] = []
    order: list[str] = []
    while campaign.report.calls < calls:
        size = min(ROUND, calls - campaign.report.calls)
        batch: list[Call] = []
        vary = len(accepted) > 0 and campaign.report.calls >= min(calls // 2, len(overloads))
        while len(batch) < size:
            if vary and rng.random() < 0.6:
                batch.append(_variation(rng, *rng.choice(accepted)))
                continue
            if not order:
                order = rng.sample(overloads, len(overloads))
            batch.append(random_call(rng, order.pop()))
        for call, real in zip(batch, campaign.judge(batch), strict=True):
            if real.observations and real.observations[0].rows is not None:
                accepted.append((call, real))
        progress(campaign.report)
    return campaign.report


def _variation(rng: random.Random, call: Call, real: Answer) -> Call:
    observed = real.observations[0]
    if out_positions(call) and rng.random() < 0.5:
        tensors = [row for row in (observed.rows or [])[: observed.results] if len(row) == 5]
        return with_other_outs(rng, call, tensors)
    return with_one_wrong(rng, call)
