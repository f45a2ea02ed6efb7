"""The command `torchfake fit`."""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchfake._cards import CARDS, find_card, parse_gpus, parse_size
from torchfake._memory_report import size
from torchfake._trials import Runner, TrialFailedError
from torchfake._varied import Varied
from torchfake.fit import Fit, advise, fit_card, fit_cards
from torchfake.inspect_model import print_table
from torchfake.run_program import Launch, Program, ProgramNotFoundError

#: Exit codes other than 0.
NOTHING_FITS = 3
PROGRAM_FAILED = 1
BAD_INPUT = 2


def fit(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The program.")],
    rest: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="What it is passed.")] = None,
    vary: Annotated[
        str, typer.Option(metavar="NAME=FIRST..LAST", help="batch_size=1..512, 8..512:8 or 1,2,4; env:NAME=1..8.")
    ] = "",
    gpu: Annotated[str | None, typer.Option(help="The card: H200, A100-80GB, RTX-4090, ...")] = None,
    gpus: Annotated[str | None, typer.Option(help="Several of them: 8xH100-80GB.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="The memory of each card: 24GiB.")] = None,
    cards: Annotated[bool, typer.Option("--cards", help="Find the value for every known card.")] = False,
    args: Annotated[str, typer.Option(metavar="'ARGS'", help="Arguments of the program, as on a command line.")] = "",
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="End each run after this many optimizer steps.")] = None,
    nnodes: Annotated[int, typer.Option(min=1, help="Number of machines.")] = 1,
    nproc_per_node: Annotated[int | None, typer.Option(min=1, help="Number of processes per machine.")] = None,
    advice: Annotated[bool, typer.Option(help="Try the usual measures, unless the last value fits.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Raise an error for unknown values.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not report each run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the largest value of an option with which a program fits on a card.

    Runs the program a few times as `torchfake run` does, each time in a separate process, and reports which of the
    usual measures would allow more; each is tried. Exits with 3 if not even the first value fits, with 1 if the program
    fails for another reason, with 2 if an option is invalid.
    """
    if not vary:
        raise typer.BadParameter("expected NAME=FIRST..LAST, as in batch_size=1..512", param_hint="--vary")
    if (gpu is not None and gpus is not None) or (cards and (gpu, gpus, gpu_memory) != (None, None, None)):
        raise typer.BadParameter("pass one of --gpu, --gpus and --cards", param_hint="--gpu")
    console = Console(stderr=True)
    tell = (lambda line: None) if quiet else (lambda line: console.print(f"  {line}", markup=False, highlight=False))
    try:
        varied = Varied.parse(vary)
        asked = parse_gpus(gpus) if gpus else (find_card(gpu or "H200"),)
        if gpu_memory is not None:
            parse_size(gpu_memory)
        launch = None if nproc_per_node is None and nnodes == 1 else Launch(nnodes, nproc_per_node or 1, 0)
        count = max(len(asked), launch.nproc_per_node if launch else 1)
        program = Program(script, module, [*shlex.split(args), *(rest or [])])
        runner = Runner(program, launch, steps, strict, gpu_memory, count)
        if cards:
            found = fit_cards(runner, varied, tell)
        else:
            found = fit_card(runner, varied, _row(asked[0].name), tell)
            if advice and found.findings[0].largest != varied.values[-1]:
                advise(runner, found, tell)
    except TrialFailedError as error:
        typer.echo(f"torchfake fit: {error}", err=True)
        raise typer.Exit(PROGRAM_FAILED) from None
    except (ValueError, ProgramNotFoundError) as error:
        typer.echo(f"torchfake fit: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from None
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        print_fit(found)
    if all(finding.largest is None for finding in found.findings):
        raise typer.Exit(NOTHING_FITS)


def _row(name: str) -> str:
    """The key of the card in the table."""
    return next(key for key, card in CARDS.items() if card.name == name)


def print_fit(fit: Fit) -> None:
    """Prints the result as tables on standard output."""
    name = fit.varied.name
    # Text: names and errors come from the program, and may look like markup.
    title = Text(f"{fit.program}: the largest {name}")
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("card")
    table.add_column("memory", justify="right")
    table.add_column(Text(f"largest {name}"), justify="right")
    table.add_column("needs there", justify="right")
    table.add_column("remark")
    for finding in fit.findings:
        remark = finding.error.splitlines()[0] if finding.error else ""
        if finding.largest == fit.varied.values[-1]:
            remark = "all requested values"
        table.add_row(
            finding.card,
            size(finding.total_memory),
            "none" if finding.largest is None else str(finding.largest),
            "" if finding.needed is None else size(finding.needed),
            Text(remark),
        )
    print_table(table)
    if fit.advice:
        advice = Table(title="With one measure more", title_justify="left", header_style="bold")
        advice.add_column("measure")
        advice.add_column(Text(f"largest {name}"), justify="right")
        advice.add_column("remark")
        for entry in sorted(fit.advice, key=lambda entry: -(entry.largest or 0)):
            largest = "" if entry.not_applicable else "none" if entry.largest is None else str(entry.largest)
            remark = f"not applicable: {entry.not_applicable}" if entry.not_applicable else entry.note
            advice.add_row(entry.measure, largest, Text(remark))
        print_table(advice)
    typer.echo("1 run" if fit.runs == 1 else f"{fit.runs} runs")
