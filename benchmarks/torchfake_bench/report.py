"""What the benchmarks print and write: tables, goals, and the machine they were taken on."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import torchfake

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from provenance import provenance

#: Wide enough for every table where the output is no terminal.
console = Console(width=None if sys.stdout.isatty() else 180)


@dataclass(frozen=True)
class Goal:
    """One line of what is to be reached, and what was measured."""

    name: str
    wanted: str
    measured: str
    reached: bool


@dataclass
class Report:
    """Everything one run found, as it goes into the JSON file."""

    rounds: int
    provenance: dict[str, Any] = field(default_factory=provenance)
    results: dict[str, Any] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)

    def goal(self, name: str, value: float, at_least: float | None = None, at_most: float | None = None) -> None:
        """Notes a goal; a value that is not a number counts as missed."""
        reached = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        wanted = f"at least {at_least:g}" if at_least is not None else f"at most {at_most:g}"
        self.goals.append(Goal(name, wanted, f"{value:.3g}", reached and value == value))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def new_table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def number(value: float | None, digits: int = 3) -> str:
    """`value` with about `digits` digits; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def ratio(numerator: float | None, denominator: float | None) -> str:
    """`numerator / denominator`, as 12x; a dash where one is missing."""
    if numerator is None or denominator is None:
        return "-"
    return f"{number(numerator / denominator)}x"


def print_head(report: Report) -> None:
    console.print(f"[bold]$ {report.provenance['command']}[/bold]")
    console.print(
        f"commit {report.provenance['commit']}, {report.provenance['date']}, torchfake {torchfake.__version__}"
    )
    console.print(", ".join(f"{key} {value}" for key, value in report.provenance["machine"].items()))
    console.print()


def print_goals(report: Report) -> None:
    table = new_table("Goals", "goal", "wanted", "measured", "")
    for goal in report.goals:
        table.add_row(goal.name, goal.wanted, goal.measured, "[green]yes" if goal.reached else "[red]no")
    console.print(table)
