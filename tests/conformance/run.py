"""Compares fakes with real tensors: every operator, bad input, GPU record, module and optimizer.

`python tests/conformance/run.py` runs everything and takes long; `--help` shows how to run a part.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from engines import CACHE_MODES, Peer, Torchfake
from report import Report
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from slices import SHARE
from suite_operators import DTYPES, Scope
from suites import BY_NUMBER, PEER_LAYOUTS, PEER_SUITES, SUITES
from variants import CALLS, LAYOUTS
from workers import MACHINE, Job, Started, run_job


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=int, action="append", choices=list(BY_NUMBER), help="all, unless given")
    parser.add_argument("--op", default="", help="only operators, modules and optimizers whose name contains this")
    parser.add_argument("--limit", type=int, default=0, help="samples of each, 0 for all")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="comma-separated")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="comma-separated")
    parser.add_argument("--calls", default=",".join(CALLS), help="comma-separated")
    parser.add_argument("--slice", default="", metavar="SEED", help="a part of the cases, drawn by this seed")
    parser.add_argument("--share", type=float, default=SHARE, help="how large that part is")
    parser.add_argument("--cache", choices=CACHE_MODES, default="on")
    parser.add_argument("--peer", action="store_true", help="run PyTorch's own FakeTensorMode as well")
    parser.add_argument("--json", type=Path, help="write counts and failures to this file")
    return parser.parse_args(arguments)


def jobs(options: argparse.Namespace) -> list[Job]:
    scope = Scope(
        options.limit,
        tuple(options.dtypes.split(",")),
        tuple(options.layouts.split(",")),
        tuple(options.calls.split(",")),
        options.share if options.slice else 1.0,
        options.slice,
    )
    layouts = tuple(layout for layout in scope.layouts if layout in PEER_LAYOUTS)
    peer_scope = dataclasses.replace(scope, layouts=layouts, calls=("function",))
    found = []
    for name in (name for number in options.suite or BY_NUMBER for name in BY_NUMBER[number]):
        subjects = tuple(subject for subject in SUITES[name].subjects() if options.op in subject)
        compared = options.peer and name in PEER_SUITES
        # A comparison of engines uses the same samples.
        found.append(Job(name, Torchfake.name, options.cache, peer_scope if compared else scope, subjects))
        if compared:
            found.append(Job(name, Peer.name, options.cache, peer_scope, subjects))
    return found


def run(found: list[Job], report: Report, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[at]}"),
    )
    with Progress(*columns, console=console) as progress:
        for job in found:
            task = progress.add_task(f"{job.suite}, {job.engine}", total=len(job.subjects), at="")
            for event in run_job(job):
                if isinstance(event, Started):
                    progress.update(task, advance=1, at=event.subject)
                else:
                    report.add(job.engine, event)
            progress.update(task, at="")


def is_whole(options: argparse.Namespace) -> bool:
    """Whether all cases of the subjects run."""
    given = {name: set(getattr(options, name).split(",")) for name in ("dtypes", "layouts", "calls")}
    everything = {"dtypes": set(DTYPES), "layouts": set(LAYOUTS), "calls": set(CALLS)}
    return given == everything and not (options.limit or options.slice or options.peer)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    os.environ.update(MACHINE)  # read on first use
    console = Console()
    report = Report()
    found = jobs(options)
    run(found, report, console)
    report.print_failures(console, Torchfake.name)
    ran = {(job.suite, subject) for job in found if job.engine == Torchfake.name for subject in job.subjects}
    wrong_counts = report.wrong_counts(Torchfake.name, ran, is_whole(options))
    for why in wrong_counts:
        console.print(why, markup=False, soft_wrap=True)
    report.print_tables(console)
    if options.json:
        report.write(options.json)
    return 1 if wrong_counts or report.unlisted(Torchfake.name) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
