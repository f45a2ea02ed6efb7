"""Counts the cases of a run and prints them: a table of outcomes, then the unlisted failures."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

import compare
from compare import Case
from known_differences import KNOWN, Difference, explanation, wrong_count
from provenance import provenance
from rich.console import Console
from rich.table import Table

#: Rows of the table, in order.
OUTCOMES = (
    compare.SAME,
    compare.BOTH_REFUSE,
    compare.REFUSED_WITH_VALUES,
    compare.DATA_DEPENDENT,
    compare.REAL_ACCEPTS,
    compare.NOT_MATCHED,
    *compare.FAILURES,
)
LISTED = "of these failures, listed"
SHOWN_PER_SUBJECT = 2


class Report:
    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.failures: dict[str, list[Case]] = collections.defaultdict(list)
        self.explained: dict[str, collections.Counter[tuple[Difference, str]]] = collections.defaultdict(
            collections.Counter
        )

    def add(self, engine: str, case: Case) -> None:
        self.counts[case.suite, engine][case.result.outcome] += 1
        if not case.failed:
            return
        known = explanation(case)
        if known is not None:
            self.counts[case.suite, engine][LISTED] += 1
            self.explained[engine][known, case.subject] += 1
        self.failures[engine].append(case)

    def unlisted(self, engine: str) -> list[Case]:
        return [case for case in self.failures[engine] if explanation(case) is None]

    def wrong_counts(self, engine: str, ran: set[tuple[str, str]], is_whole: bool) -> list[str]:
        """Deviations from the list of differences, for the subjects that ran."""
        listed = [(known, subject) for known in KNOWN for subject in known.subjects if (known.suite, subject) in ran]
        counts = ((known, subject, self.explained[engine][known, subject]) for known, subject in listed)
        return [why for found in counts if (why := wrong_count(*found, is_whole))]

    def print_tables(self, console: Console) -> None:
        for name in dict.fromkeys(suite for suite, _ in self.counts):
            columns = {engine: counts for (suite, engine), counts in self.counts.items() if suite == name}
            table = Table("outcome", *columns, title=name)
            for outcome in (*OUTCOMES, LISTED):
                if any(counts[outcome] for counts in columns.values()):
                    style = "red" if outcome in compare.FAILURES else None
                    table.add_row(outcome, *(str(counts[outcome]) for counts in columns.values()), style=style)
            console.print(table)

    def print_failures(self, console: Console, engine: str) -> None:
        by_subject: dict[tuple[str, str], list[Case]] = collections.defaultdict(list)
        for case in self.unlisted(engine):
            by_subject[case.suite, case.subject].append(case)
        for (suite, _), cases in sorted(by_subject.items(), key=lambda item: -len(item[1])):
            for case in cases[:SHOWN_PER_SUBJECT]:
                console.print(f"{suite}: {case}", markup=False, soft_wrap=True)
            if len(cases) > SHOWN_PER_SUBJECT:
                console.print(f"  and {len(cases) - SHOWN_PER_SUBJECT} more of {cases[0].subject}", markup=False)

    def write(self, path: Path) -> None:
        rows: dict[str, Any] = {
            "provenance": provenance(),
            "counts": {f"{suite} {engine}": dict(counts) for (suite, engine), counts in self.counts.items()},
            "failures": {
                engine: [{**dataclasses.asdict(case), "listed": explanation(case) is not None} for case in cases]
                for engine, cases in self.failures.items()
            },
        }
        path.write_text(json.dumps(rows, indent=1))
