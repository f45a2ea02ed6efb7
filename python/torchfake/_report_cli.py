"""The command `torchfake report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchfake._memory_compare import NotAReportError, compare, comparison_table, load_report
from torchfake.inspect_model import print_table


def report(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="A report of torchfake run --track --json.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the memory of two runs: peaks, owners and modules, the largest change first.

    Exits with 2 if a file is not a report.
    """
    try:
        rows = compare(load_report(before), load_report(after))
    except NotAReportError as error:
        typer.echo(f"torchfake report: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        print_table(comparison_table(rows))
